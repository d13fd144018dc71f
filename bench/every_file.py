"""Every file below a folder becomes a dataset that verifies, or is refused with a reason.

What is stored is compared with what the reader gave, and with what another library reads.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, TamisError
from ..files import write_atomic
from ..pipelines import sources
from ..pipelines.build import build
from ..pipelines.readers import Scan, read, storable
from ..pipelines.readers.formats import format_of
from ..pipelines.settings import DataSettings
from ..pipelines.tiles import TileSettings
from ..pipelines.verify import verify
from .compare import Report, Row
from .other_readers import above_surface, flat, other
from .reader_cases import cases
from .stored import differs, stored

log = logging.getLogger(__name__)

_NEAR = 1e-6
"""Of a mesh's extent: as far as points that were drawn from it may be off, stored as float32."""


def run(data: Path | None, out: Path | None = None) -> Report:
    """A row for each file below ``data`` and each made file; the report is written to ``out``."""
    root = sources.folder(data)
    report: Report = {"files": [], "cases": []}
    with TemporaryDirectory(prefix="tamis-files-") as temporary:
        for number, name in enumerate(names(root)):
            row = checked(root, name, Path(temporary, f"built-{number}"))
            log.info("%s: %s", name, row["result"])
            report["files"].append(row)
        report["cases"] = [*cases(Path(temporary, "cases"))]
    if out:
        write_atomic(out, json.dumps(report, indent=1) + "\n")
    return report


def names(root: Path) -> list[str]:
    """Every file below a folder, relative to it."""
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def unexpected(report: Report) -> list[str]:
    """What is not as it has to be, a line each."""
    rows = [(row["file"], row) for row in report["files"]]
    rows += [(f"{row['report']}, {row['case']}", row) for row in report["cases"]]
    return [f"{name}: {row['wrong']}" for name, row in rows if row["wrong"]]


def checked(root: Path, name: str, out: Path) -> Row:
    """Build a dataset of one file below ``root`` in ``out``, and look at it.

    ``result``: "built" or "refused"; ``reason``: why it was refused; ``as_read_by``: the library that reads
    the same points with the same fields, or the mesh that they lie on; ``wrong``: what is not as it has to
    be. A file of a format that is known has to be built if another library reads it, and one of no format to
    be refused.
    """
    path = root / name
    row: Row = {"file": name, "format": "", "points": 0, "dropped": 0, "fields": 0, "as_read_by": ""}
    row |= {"result": "refused", "reason": "", "wrong": ""}
    try:
        row["format"] = format_of(path).name
    except DataError:
        known = False
    else:
        known = True
    found = other(path) if known else None
    try:
        scan = _cloud(path) if known else None
        dataset = build(_settings(root, name, scan), out)
    except TamisError as error:
        row["reason"] = error.cause
        if found is not None:
            row["wrong"] = f"{found.library} reads it"
        return row
    counts = dataset.manifest.counts
    row |= {"result": "built", "points": counts.points, "dropped": counts.dropped}
    row["fields"] = len(dataset.schema.keys() - {"xyz", "row"})
    problems = verify(dataset.path)
    if not known:
        row["wrong"] = "is of no known format"
    elif problems:
        row["wrong"] = str(problems[0])
    elif scan is not None:
        xyz, columns = stored(dataset)
        row["wrong"] = _unlike(scan, xyz, columns, counts.dropped)
        if found is not None and not row["wrong"]:
            row["wrong"] = differs(found.xyz, found.columns, xyz, flat(columns))
            row["as_read_by"] = "" if row["wrong"] else found.library
        away = None if row["wrong"] else above_surface(path, xyz)
        if away is not None:
            row["as_read_by"] = "trimesh" if away <= _NEAR else ""
            row["wrong"] = "" if away <= _NEAR else f"points are {away:.0e} of its extent off the mesh"
    return row


def _cloud(path: Path) -> Scan | None:
    """What a file holds; None where that is images."""
    return None if format_of(path).module == "idx" else read(path)


def _settings(root: Path, name: str, scan: Scan | None) -> DataSettings:
    """Three tiles along the longer side, so that no row may be lost or doubled at an edge."""
    tiles = None
    if scan is not None:
        finite = scan.xyz[np.isfinite(scan.xyz).all(axis=1)]
        size = float(np.ptp(finite[:, :2], axis=0).max()) / 3 if len(finite) else 0.0
        tiles = TileSettings(size=size or 1.0)
    return DataSettings(root=root, files=[name], tiles=tiles, row_order="random", workers=1)


def _unlike(scan: Scan, xyz: NDArray[np.float64], columns: dict[str, NDArray[Any]], dropped: int) -> str:
    """What differs from what the reader gave."""
    finite = np.isfinite(scan.xyz).all(axis=1)
    if dropped != np.count_nonzero(~finite):
        return f"{dropped} rows were dropped, {np.count_nonzero(~finite)} are not finite"
    if not np.array_equal(columns["row"], np.flatnonzero(finite)):
        return "the rows are not those of the file, each once"
    ours = {n if n not in ("xyz", "row") else f"source_{n}": v for n, v in scan.fields.items()}
    if ours.keys() != columns.keys() - {"xyz", "row"}:
        return f"has the fields {sorted(columns.keys() - {'xyz', 'row'})}, not {sorted(ours)}"
    kept = {name: storable(Path(name), name, values) for name, values in ours.items()}
    for name, values in kept.items():
        if columns[name].dtype != values.dtype:
            return f"'{name}' is {columns[name].dtype}, not {values.dtype}"
    return differs(scan.xyz, kept, xyz, columns)


def render(report: Report) -> str:
    """Both tables as plain text, and what is not as it has to be."""
    lines = [*_table(_file(row) for row in report["files"]), ""]
    lines += [*_table(_case(row) for row in report["cases"]), ""]
    found = unexpected(report)
    lines += [f"not as expected: {line}" for line in found] or ["all as expected"]
    return "\n".join(lines)


def _file(row: Row) -> dict[str, str]:
    found = {"file": row["file"], "format": row["format"] or "-", "result": row["result"]}
    if row["result"] == "built":
        found |= {"points": f"{row['points']:,}", "dropped": f"{row['dropped']:,}"}
        found |= {"fields": str(row["fields"]), "as read by": row["as_read_by"] or "-"}
    return found | {"reason": row["reason"]}


def _case(row: Row) -> dict[str, str]:
    found = {"report": row["report"], "case": row["case"], "result": row["result"]}
    found |= {"points": f"{row['points']:,}", "tests": row["tests"], "reason": row["reason"]}
    return found


def _table(rows: Iterator[dict[str, str]]) -> Iterator[str]:
    """Lines of a table; the last column is as long as it is."""
    found = [*rows]
    heads = max(found, key=len, default={})
    lines = [dict(zip(heads, heads, strict=True)), *found]
    widths = {name: max(len(line.get(name, "")) for line in lines) for name in heads}
    for line in lines:
        yield "  ".join(line.get(name, "").ljust(width) for name, width in widths.items()).rstrip()
