"""What the rows of the build's benchmark say: tables, and figures wanted and got."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..metrics import limiting_stage
from ..metrics import render as render_stages
from .compare import Figure, Report, Row, table

OURS, SCRIPT, DECODE = "tamis", "script", "decode"
EVERY = "every field"

ABOUT = {
    "decode": "laspy.read of each file, coordinates as float64 and every dimension as a numpy array; no more",
    "script": "laspy, numpy and pyarrow by hand, with the same tiles, columns, statistics and digests; it "
    "has no checksums of row blocks, does not flush to the disk, and a kill loses all of it",
    "s, CPU s": "medians of rounds in turn, all processes, from after the imports; whole: with the imports",
    "points/s": "of the seconds from after the imports",
    "open3d": "reads no LAS, so that there is no row of it",
    "tiles": "square, edge to edge, rows in random order, with a label and every field",
    "few": "only intensity and the label are kept; decode and the script read whole files all the same",
}
"""What the columns of a row mean."""


def figures(rows: list[Row]) -> list[Figure]:
    """What has to be shown, of rows that keep the same fields, beside the kind of file where it is least."""
    return [
        figure
        for kept in dict.fromkeys(row["fields"] for row in rows)
        for figure in _figures(f", {kept}", [row for row in rows if row["fields"] == kept])
    ]


def _figures(end: str, rows: list[Row]) -> list[Figure]:
    one, two, script, decode = (OURS, 1), (OURS, 2), (SCRIPT, 1), (DECODE, 1)
    return [
        _ratio(f"one CPU: points/s, of decode alone{end}", rows, one, decode, 0.85),
        _ratio(f"one CPU: points/s, of the script's{end}", rows, one, script, 1.5),
        _ratio(f"two CPUs: points/s, of its own on one{end}", rows, two, one, 1.8),
        _ratio(f"two CPUs: points/s, of the script's{end}", rows, two, (SCRIPT, 2)),
        _ratio(f"one CPU: decode's CPU time to ours{end}", rows, one, decode, figure="cpu_s"),
        _ratio(f"one CPU: the script's CPU time to ours{end}", rows, one, script, figure="cpu_s"),
        _ratio(f"one CPU, with imports: of decode alone{end}", rows, one, decode, figure="whole_s"),
        _ratio(f"one CPU, with imports: of the script's{end}", rows, one, script, figure="whole_s"),
    ]


def _ratio(
    what: str,
    rows: list[Row],
    ours: tuple[str, int],
    theirs: tuple[str, int],
    least: float | None = None,
    *,
    figure: str = "wall_s",
) -> Figure:
    """Of the others' seconds to ours, for the same points."""
    mine, other = ({row["kind"]: row[figure] for row in rows if _way(row) == way} for way in (ours, theirs))
    if not mine or mine.keys() != other.keys():
        return Figure(what, None, least)
    each = {kind: other[kind] / mine[kind] for kind in mine}
    worst = min(each, key=lambda kind: each[kind])
    got = sum(other.values()) / sum(mine.values())
    return Figure(what, got, least, beside=f"{each[worst]:.2f} for {worst}")


def _way(row: Row) -> tuple[str, int]:
    return row["way"], row["workers"]


def render(report: Report) -> str:
    """Rows, stages and figures as plain text."""
    lines: list[str] = []
    for kind, points in report["points"].items():
        rows = [row for row in report["rows"] if row["kind"] == kind]
        lines += ["", f"{kind}, {points:,} points", _HEAD, *map(_line, rows)]
    for name, stages in report["stages"].items():
        lines += ["", f"stages: {name}", *_stages(stages)]
    lines += ["", *(f"{name}: {text}" for name, text in ABOUT.items())]
    return "\n".join([*lines[1:], "", *table(figures(report["rows"]))])


_HEAD = (
    f"  {'way':8} {'CPUs':>4} {'Mpoints/s':>9} {'s':>7} {'least-most':>12} {'CPU s':>7} {'whole s':>8}"
    "  whole CPU s"
)


def _line(row: Row) -> str:
    spread = f"{min(row['walls_s']):.2f}-{max(row['walls_s']):.2f}"
    start = f"  {row['way']:8} {row['workers']:4} {row['points'] / row['wall_s'] / 1e6:9.2f}"
    times = f"{row['wall_s']:7.2f} {spread:>12} {row['cpu_s']:7.2f} {row['whole_s']:8.2f}"
    return f"{start} {times}  {row['whole_cpu_s']:11.2f}"


def _stages(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield from (f"  {line}" for line in render_stages(rows, limiting_stage(rows)).splitlines())
