"""What the figures of a run say about each other: figure, wanted, got."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

Row = dict[str, Any]
Report = dict[str, Any]

OURS, BARE, DATALOADER = "tamis", "bare preadv", "torch DataLoader"
SETS = ("clouds", "8mb")

ABOUT = {
    "gb_s, samples_s": "median over epochs, page cache warm, every byte of every batch read by one consumer",
    "first_s": "from opening the loader to its first batch, without imports",
    "cpu_ms": "user and system time a batch of all processes, the consumer's reading included",
    "rss_mb": "most memory of all processes while warming up: PSS, in which a shared page counts once",
}
"""What the columns of a row mean."""


@dataclass(frozen=True)
class Figure:
    """``got`` is None where a row it needs is missing; ``least`` and ``most`` are what it should reach."""

    what: str
    got: float | None
    least: float | None = None
    most: float | None = None
    beside: str = ""

    @property
    def holds(self) -> bool:
        """Whether it is as wanted."""
        if self.got is None:
            return False
        return (self.least is None or self.got >= self.least) and (self.most is None or self.got <= self.most)

    def values(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "holds": self.holds}


def best(rows: Iterable[Row], figure: str = "gb_s", **wanted: Any) -> Row | None:
    """The row with the highest GB/s, or the lowest of another figure, among those with these values.

    A name may be one of a setting. Failed rows do not count.
    """

    def fits(row: Row) -> bool:
        values = {**row["settings"], **row}
        return "failed" not in row and all(values.get(name) == value for name, value in wanted.items())

    found = [row for row in rows if fits(row)]
    if not found:
        return None
    return max(found, key=lambda r: r["gb_s"]) if figure == "gb_s" else min(found, key=lambda r: r[figure])


def best_peer(rows: Iterable[Row], **wanted: Any) -> Row | None:
    """As `best`, among other people's loaders."""
    return best([row for row in rows if row["loader"] not in (OURS, BARE)], **wanted)


def figures(report: Report) -> list[Figure]:
    """What has to be shown, from the rows and the further comparisons of a run."""
    rows = report["rows"]
    found = []
    for name in SETS:
        ours, peer = (of(rows, set=name, delivery="process") for of in (_ours, best_peer))
        beside = name_of(peer)
        found.append(
            Figure(f"{name}: GB/s across processes, of the best peer's", _ratio(ours, peer), 2, beside=beside)
        )
    ours, default = _ours(rows, set="8mb", delivery="process"), _dataloader(rows, collate="default")
    found.append(
        Figure("8mb: GB/s across processes, of DataLoader's default collate", _ratio(ours, default), 4)
    )
    ours = best(rows, "cpu_ms", loader=OURS, set="8mb", delivery="process")
    lean = best(rows, "cpu_ms", loader=DATALOADER, set="8mb", delivery="process")
    cpu = _ratio(lean, ours, "cpu_ms")
    found.append(Figure("8mb: CPU a batch, DataLoader's best variant to ours", cpu, 3, beside=name_of(lean)))
    for name in SETS:
        bare = best(rows, loader=BARE, set=name)
        never = _ours(rows, set=name, delivery="in-process", verify="never")
        found.append(Figure(f"{name}: GB/s inline, verify never, of bare preadv's", _ratio(never, bare), 0.9))
        always = _ours(rows, set=name, delivery="in-process", verify="always")
        found.append(Figure(f"{name}: GB/s inline, verify always, of bare preadv's", _ratio(always, bare)))
    return [*found, *_of_readers(report["readers"]), *_of_sampling(report["sampling"])]


def _of_readers(rows: list[Row]) -> list[Figure]:
    one, four, theirs = (
        best(rows, "cpu_ms", **wanted)
        for wanted in (
            {"loader": OURS, "readers": 1},
            {"loader": OURS, "readers": 4},
            {"loader": DATALOADER, "readers": 4},
        )
    )
    return [
        Figure(
            "8mb: the feeder's CPU with 4 readers, of that with 1", _ratio(four, one, "others_ms"), most=1.3
        ),
        Figure(
            "8mb: CPU of all processes with 4 readers, of 4 DataLoaders'",
            _ratio(four, theirs, "cpu_ms"),
            most=0.25,
        ),
    ]


def _of_sampling(found: dict[str, Row]) -> list[Figure]:
    way, prefix = found.get("on_the_way", {}), found.get("prefix", {})
    return [
        Figure(
            "farthest on the way, clouds/s, of the bare kernel's",
            _quotient(way.get("loader_samples_s"), way.get("kernel_samples_s")),
            0.95,
        ),
        Figure(
            "prefix of a farthest order, clouds/s, of read-and-sample's",
            _quotient(prefix.get("prefix_samples_s"), prefix.get("sampled_samples_s")),
            50,
        ),
    ]


def _ours(rows: Iterable[Row], **wanted: Any) -> Row | None:
    return best(rows, loader=OURS, **wanted)


def _dataloader(rows: Iterable[Row], **wanted: Any) -> Row | None:
    return best(rows, loader=DATALOADER, set="8mb", delivery="process", **wanted)


def _ratio(one: Row | None, other: Row | None, figure: str = "gb_s") -> float | None:
    return None if one is None or other is None else _quotient(one[figure], other[figure])


def _quotient(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None


def name_of(row: Row | None) -> str:
    if row is None:
        return ""
    return str(row["loader"]) + "".join(f", {name} {value}" for name, value in row["settings"].items())


def render(report: Report) -> str:
    """Rows, best first, and figures, as plain text."""
    lines = []
    for name in SETS:
        for delivery in ("process", "in-process"):
            rows = [r for r in report["rows"] if (r["set"], r["delivery"]) == (name, delivery)]
            if rows:
                lines += ["", f"set {name}, delivery {delivery}", *_table(rows)]
    lines += ["", *(f"{name}: {text}" for name, text in ABOUT.items()), "", *table(figures(report))]
    return "\n".join(lines[1:])


def table(figures: Iterable[Figure]) -> Iterator[str]:
    """Lines of what is wanted and what was got."""
    yield f"{'figure':60} {'wanted':>8} {'got':>8}"
    for figure in figures:
        wanted = f">= {figure.least:g}" if figure.least else f"<= {figure.most:g}" if figure.most else "-"
        got = "-" if figure.got is None else f"{figure.got:.2f}"
        verdict = "" if figure.holds else "   missed" if figure.got is not None else "   not measured"
        beside = f"   ({figure.beside})" if figure.beside else ""
        yield f"{figure.what:60} {wanted:>8} {got:>8}{verdict}{beside}"


def _table(rows: list[Row]) -> Iterable[str]:
    yield f"  {'GB/s':>6} {'clouds/s':>9} {'first s':>8} {'CPU ms':>7} {'MB':>6}  loader, settings"
    for row in sorted(rows, key=lambda row: -row.get("gb_s", 0)):
        yield f"  {line(row)}"


def line(row: Row) -> str:
    """A row as plain text."""
    if "failed" in row:
        return f"{'failed':>40}  {name_of(row)}: {row['failed']}"
    numbers = f"{row['gb_s']:6.2f} {row['samples_s']:9.0f} {row['first_s']:8.2f} {row['cpu_ms']:7.2f}"
    return f"{numbers} {row['rss_mb']:6.0f}  {name_of(row)}"
