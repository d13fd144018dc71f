"""What the rows of the samplers' benchmark say: tables, and figures wanted and got."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from .compare import Figure, Report, Row, table
from .sampler_check import TOLERANCE
from .sampler_peers import SLOW
from .sampler_ways import FEW, THREADS

ABOUT = {
    "ms, CPU ms": "medians of rounds in turn, warm; CPU of all threads of the process; peers use one thread",
    "ratio": "of the peer's time to ours; the best peer is named first, others follow with their ms",
    "same work": (
        f"centroids of equal cells within {TOLERANCE:.3f} of a voxel; equal counts, first rows and cells of "
        "rows, cells in any order; farthest points, on a small cloud: ours equal brute force, peers cover as "
        "brute force does from the row they began with"
    ),
    "input": "numpy arrays for all but open3d, which has them in its own clouds already",
    "rounds": f"{FEW} for a peer clearly slower than another",
    "left out": "; ".join(f"{name} above {work:.0e} rows times picks" for name, work in SLOW.items()),
}
"""What the columns of a row mean."""

_SAMPLED = (
    (10_000, 1024, 3.2),
    (100_000, 1024, 4.0),
    (100_000, 10_000, 5.0),
    (1_000_000, 1024, 3.0),
)
_AVERAGED = ((10_000, 2.0), (100_000, 2.0), (1_000_000, 2.5))
_MILLION = 1_000_000
_BY_HAND = ("pandas factorize", "numpy sort")
"""Programs of our own on top of a library, which check nothing; the others are what libraries offer."""
_BATCH = 24 * 10_000


def figures(rows: list[Row]) -> list[Figure]:
    """What has to be shown, on the cloud where it is least."""
    single = [row for row in rows if row["threads"] == 1]
    double = [row for row in rows if row["threads"] == 2 and row["peer"] != THREADS[1]]
    alone = [row for row in rows if row["threads"] == 2 and row["peer"] == THREADS[1]]
    found = [
        _least(f"farthest {n:,} -> {k:,}: times faster than the best peer", least, single, "farthest", n, k=k)
        for n, k, least in _SAMPLED
    ]
    for n, least in _AVERAGED:
        library = [row for row in single if row["peer"] not in _BY_HAND]
        for peer, some in (("library", library), ("program by hand", single)):
            what = f"voxel {n:,}: times faster than the best {peer}"
            found.append(_least(what, least, some, "voxel", n, outputs="xyz"))
    million = f"voxel {_MILLION:,}"
    unique = [row for row in single if row["peer"] == "numpy unique"]
    return [
        *found,
        _least(f"{million}, on two threads: than any", 2.5, double, "voxel", _MILLION, outputs="xyz"),
        _least(f"{million}, all outputs: than numpy unique", 3.0, unique, "voxel", _MILLION, outputs="full"),
        _least(f"{million}, all outputs: than any", 3.0, single, "voxel", _MILLION, outputs="full"),
        _least(f"{million}, all, two threads: than any", 3.0, double, "voxel", _MILLION, outputs="full"),
        _carried(f"{million}, four fields averaged: of the time without", single),
        _least(f"{million}: times faster on two threads", 1.25, alone, "voxel", _MILLION, outputs="xyz"),
        _least("batch of 24 clouds: times faster on two threads", 1.7, alone, "farthest_batch", _BATCH),
    ]


def _least(what: str, least: float, rows: list[Row], op: str, n: int, **wanted: Any) -> Figure:
    """The ratio to the best peer of each cloud, on the cloud where it is least."""
    wanted |= {"op": op, "n": n, "fields": 0}
    fitting = [row for row in rows if row["peer"] and all(row[name] == v for name, v in wanted.items())]
    best = [min(of, key=lambda row: row["ratio"]) for of in _by_cloud(fitting).values()]
    if not best:
        return Figure(what, None, least)
    row = min(best, key=lambda row: row["ratio"])
    return Figure(what, row["ratio"], least, beside=f"{row['cloud']}, {row['peer']}")


def _carried(what: str, rows: list[Row]) -> Figure:
    clouds = _by_cloud(row for row in rows if row["op"] == "voxel" and row["n"] == _MILLION)
    ratios = {}
    for cloud, of in clouds.items():
        ms = {row["fields"]: row["ours_ms"] for row in of if row["outputs"] == "xyz"}
        if len(ms) == 2:
            ratios[cloud] = ms[max(ms)] / ms[0]
    worst = max(ratios, key=lambda cloud: ratios[cloud], default="")
    return Figure(what, ratios.get(worst), most=2.0, beside=worst)


def _by_cloud(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["cloud"], []).append(row)
    return found


def render(report: Report) -> str:
    """Rows and figures as plain text."""
    lines: list[str] = []
    rows = sorted(report["rows"], key=_title)  # stable: clouds and threads stay in the order measured
    for title, of in groupby(rows, key=_title):
        lines += ["", _text(title), _HEAD, *_lines(list(of))]
    lines += ["", _FLOOR_HEAD, *(_floor(row) for row in report["floor"])]
    lines += ["", *(f"{name}: {text}" for name, text in ABOUT.items())]
    lines += [f"missing: {name}: {why}" for name, why in report["missing"].items()]
    lines += [f"disagreement: {text}" for text in report["disagreements"]] or ["all that was timed agrees"]
    verdict = ["", *table(figures(report["rows"]))] if report["figures"] else []
    return "\n".join([*lines[1:], *verdict])


def _title(row: Row) -> tuple[Any, ...]:
    k = 0 if row["op"] == "voxel" else row["k"]
    return row["op"], row["n"], k, row["fields"], row["outputs"] != "xyz", row["outputs"]


def _text(title: tuple[Any, ...]) -> str:
    op, n, k, fields, _, outputs = title
    return f"{op} {n:,}" + (f" -> {k:,}" if k else f", {outputs}") + (f", {fields} fields" if fields else "")


_HEAD = f"  {'cloud':6} {'threads':>7} {'ms':>9} {'CPU ms':>9} {'ratio':>6}  best peer, others"


def _lines(rows: list[Row]) -> Iterator[str]:
    for (cloud, threads), of in groupby(rows, key=lambda row: (row["cloud"], row["threads"])):
        ranked = sorted(of, key=lambda row: row["ratio"] or 0)
        alone = [row for row in ranked if row["peer"] == THREADS[1]]
        peers = [row for row in ranked if row not in alone] or ranked
        first = peers[0]
        start = f"  {cloud:6} {threads:7} {first['ours_ms']:9.2f} {first['ours_cpu_ms']:9.2f}"
        if first["peer"] is None:
            yield f"{start} {'-':>6}  no peer"
            continue
        best = f"{first['peer']} {first['peer_ms']:.2f} (CPU {first['peer_cpu_ms']:.2f})"
        others = "".join(f"; {row['peer']} {row['peer_ms']:.2f}" for row in peers[1:])
        if alone:
            others = f"; {alone[0]['ratio']:.2f} times faster than on one thread"
        yield f"{start} {first['ratio']:6.2f}  {best}{others}"


_FLOOR_HEAD = f"{'above what memory allows':26} {'cloud':6} {'n':>9} {'floor ms':>8} {'ms':>9} {'times':>7}"


def _floor(row: Row) -> str:
    figures = f"{row['floor_ms']:8.3f} {row['ours_ms']:9.2f} {row['of_floor']:7.1f}"
    return f"{row['stage']:26} {row['cloud']:6} {row['n']:9,} {figures}"
