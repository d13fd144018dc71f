"""What the rows of the quality benchmark say: tables, and what articles claim beside what was seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean, stdev

import numpy as np

from .compare import Report, Row
from .registration import ITERATIONS, NEIGHBOURS, OTHER_REACHES_M, REACH_M, apart

ABOUT = (
    "Mean over seeds, and the standard deviation where it is at least half of the last digit. A seed draws "
    "the rows (random), the first row (farthest), or where the grid lies (voxel: its size is searched for "
    "the number of points, and the label of a cell is its majority's). Seconds are the least of the seeds."
)
"""How to read the tables."""

_DISTANCES = {
    "coverage": ("coverage, m", 1, 3),
    "chamfer": ("chamfer, mm", 1e3, 1),
    "hausdorff": ("Hausdorff, m", 1, 3),
}
_SCAN = {
    "kept": ("points", 1, 0),
    **_DISTANCES,
    "rotation_deg": ("rotation off, deg", 1, 3),
    "translation_m": ("translation off, mm", 1e3, 1),
    "icp_s": ("ICP, s", 1, 3),
    "ms": ("sampling, ms", 1, 1),
}
_TILES = {
    "kept": ("points a tile", 1, 0),
    **_DISTANCES,
    "rarest_after": ("rarest class, %", 100, 3),
    "moved": ("shares moved, %", 100, 2),
    "labels": ("labels kept, %", 100, 2),
    "ms": ("sampling, ms", 1, 1),
}
"""Figure of a row -> its column, in how many of its units, decimals."""

_TIMES = ("icp_s", "ms")

Columns = dict[str, tuple[str, float, int]]


def render(report: Report) -> str:
    """Tables in Markdown."""
    scan, tiles, rows = report["scan"], report["tiles"], report["rows"]
    before = next(row["rarest_before"][0] for row in rows if row["cloud"] == "tiles")
    return "\n".join(
        [
            ABOUT,
            "",
            f"The scan: {scan['source']:,} points; registered onto {scan['target']:,}, both sampled alike, "
            f"by point-to-plane ICP from the identity (at most {REACH_M:g} m between partners, normals of "
            f"{NEIGHBOURS} neighbours among the points kept, {ITERATIONS} iterations). Off: from what ICP "
            f"finds on the full clouds in {scan['icp_s']:.2f} s, which is {scan['rotation_deg']:.2f} deg and "
            f"{scan['translation_m']:.2f} m from the identity. That is itself not sure: {_others(scan)}.",
            "",
            *_table([row for row in rows if row["cloud"] == "scan"], _SCAN),
            "",
            f"The tiles: {tiles['files']} labelled ones of {tiles['points']:,} points in all; distances are "
            f"means over tiles; the rarest class has {100 * before:.3f} % of all points. Labels kept: rows "
            "whose nearest kept point has their class.",
            "",
            *_table([row for row in rows if row["cloud"] == "tiles"], _TILES),
            "",
            *_methods(rows),
            "",
            "| claim | seen here |",
            "|:--|:--|",
            *(f"| {claim} | {seen} |" for claim, seen in claims(rows)),
        ]
    )


def _others(scan: Row) -> str:
    """What the full clouds give with other distances between partners."""
    return " and ".join(
        f"with partners within {reach:g} m it is {1e3 * other['translation_m']:.0f} mm and "
        f"{other['rotation_deg']:.2f} deg away"
        for reach, other in zip(OTHER_REACHES_M, scan["others"], strict=True)
    )


def _methods(rows: Sequence[Row]) -> Iterator[str]:
    """What adaptive chose."""
    for cloud in ("scan", "tiles"):
        chosen = {method for row in rows if row["cloud"] == cloud for method in row["methods"]}
        if chosen:
            yield f"On the {cloud} adaptive chose {' or '.join(sorted(chosen))}."


def _table(rows: Sequence[Row], columns: Columns) -> Iterator[str]:
    heads = [name for name, _, _ in columns.values()]
    yield f"| kept | sampler | {' | '.join(heads)} |"
    yield f"|--:|:--|{'--:|' * len(heads)}"
    for row in sorted(rows, key=lambda row: row["share"]):  # stable: samplers stay in their order
        cells = [
            _cell([min(row[figure])] if figure in _TIMES else row[figure], factor, digits)
            for figure, (_, factor, digits) in columns.items()
        ]
        yield f"| {100 * row['share']:g} % | {row['sampler']} | {' | '.join(cells)} |"


def _cell(values: Sequence[float], factor: float, digits: int) -> str:
    mean = f"{factor * fmean(values):,.{digits}f}"
    spread = factor * stdev(values) if len(values) > 1 else 0.0
    return f"{mean} ± {spread:,.{digits}f}" if spread >= 0.5 * 10**-digits else mean


def claims(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """What articles say of samplers, and what the same or the nearest quantity is in these rows."""
    yield "farthest: +18 % registration accuracy over random", _registration(rows)
    yield "voxel: -78 % of the points at 92 % accuracy", _thinned(rows)
    yield (
        "random keeps 62 % of the features",
        ("not to be tested: no article says what a feature is or how it is counted"),
    )
    yield "random is 3.2 times faster than nearest-neighbour sampling", _speed(rows)


def _registration(rows: Sequence[Row]) -> str:
    parts = []
    for share in _shares(rows):
        ours, other = (_row(rows, "scan", name, share) for name in ("farthest", "random"))
        if ours and other:
            change = [_change(ours[of], other[of]) for of in ("rotation_deg", "translation_m")]
            parts.append(f"{100 * share:g} %: {change[0]:+.0f} % and {change[1]:+.0f} %")
    return (
        f"farthest's error compared with random's, rotation and translation, at {'; '.join(parts)}. From "
        f"each other voxel's and farthest's answers are {'; '.join(_between(rows))}"
    )


def _between(rows: Sequence[Row]) -> Iterator[str]:
    """How far apart two samplers are that spread points evenly: they may agree on another answer."""
    for share in _shares(rows):
        one, other = (_row(rows, "scan", name, share) for name in ("voxel", "farthest"))
        if one and other:
            found = [
                apart(np.array(a), np.array(b))["translation_m"]
                for a, b in zip(one["transform"], other["transform"], strict=True)
            ]
            yield f"{1e3 * fmean(found):.0f} mm at {100 * share:g} %"


def _thinned(rows: Sequence[Row]) -> str:
    scan, tiles = _row(rows, "scan", "voxel", 0.22), _row(rows, "tiles", "voxel", 0.22)
    if not scan or not tiles:
        return "not measured"
    labels, off = 100 * fmean(tiles["labels"]), 1e3 * fmean(scan["translation_m"])
    return (
        f"accuracy of what is not said; at 22 % of the points {labels:.1f} % of all rows find their class in "
        "the nearest kept point, and registration is "
        f"{fmean(scan['rotation_deg']):.3f} deg and {off:.0f} mm off"
    )


def _speed(rows: Sequence[Row]) -> str:
    parts = []
    for share in _shares(rows):
        quick = _row(rows, "scan", "random", share)
        others = [(name, _row(rows, "scan", name, share)) for name in ("voxel", "farthest")]
        if quick:
            times = [
                f"{name} {min(row['ms']) / min(quick['ms']):.0f}" for name, row in others if row is not None
            ]
            parts.append(f"{100 * share:g} %: {', '.join(times)}")
    return (
        "nearest-neighbour sampling is not defined; times that random is faster than others here, on the "
        f"scan, at {'; '.join(parts)}"
    )


def _shares(rows: Sequence[Row]) -> list[float]:
    return sorted({row["share"] for row in rows if row["sampler"] == "random"})


def _row(rows: Sequence[Row], cloud: str, sampler: str, share: float) -> Row | None:
    wanted = (cloud, sampler, share)
    return next((row for row in rows if (row["cloud"], row["sampler"], row["share"]) == wanted), None)


def _change(ours: Sequence[float], other: Sequence[float]) -> float:
    return 100 * (fmean(ours) / fmean(other) - 1) if fmean(other) else 0.0
