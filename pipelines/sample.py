"""``tamis sample``: a scan thinned by one of the samplers, with every field it has."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import laspy
import numpy as np
from numpy.typing import NDArray

from ..aside import Result, aside
from ..errors import DataError, UsageError
from ..samplers.adaptive import adaptive
from ..samplers.farthest import farthest
from ..samplers.fields import REDUCTIONS, Reduction, kind_of, reduction_of
from ..samplers.group import PICKS, Pick
from ..samplers.random import random
from ..samplers.voxel import voxel
from .cut import LARGEST
from .pieces import corner
from .readers import Scan, idx, read
from .save import LAS, NPY, Sampled, check_out, save, signature

log = logging.getLogger(__name__)

Method = Literal["voxel", "farthest", "random", "adaptive"]


def sample(
    path: Path,
    out: Path,
    method: Method,
    amount: float,
    *,
    pick: str | None = None,
    reduce: Mapping[str, str] | None = None,
    seed: int = 0,
) -> str:
    """Write what ``method`` takes of the scan at ``path`` to ``out``; tell how many points that is.

    ``amount``: the edge of a voxel, a number of points, or, for random up to 1, a ratio. Positions are
    counted from an origin inside the scan, in float64; voxels take them so, the others as float32. Rows come
    whole and as the sampler gives them: farthest point and random as they were picked, so that the first of
    them are a sample too, voxels by their cell. Only the picks "centroid", the default, and "center" of a
    voxel move positions, and "centroid" merges fields by kind. These positions are float32 from the origin:
    off by up to 2^-24 of the scan's extent, which may be more than size * 2^-22. ``reduce``, for voxel only:
    field -> how its rows merge, with any pick. Rows without a finite position are left out and counted.

    Raises UsageError for names, amounts and counts that will not do, and DataError for what is no scan.
    """
    _check_options(method, amount, pick, reduce or {})
    check_out(path, out)
    scan = _read(path)
    rows = np.flatnonzero(np.isfinite(scan.xyz).all(axis=1))
    count = 0 if method == "voxel" else _count(path, method, amount, len(rows))
    if not len(rows):
        log.warning("%s: has no row with a finite position: %s holds no points", path, out)
    elif len(rows) < len(scan.xyz):
        log.warning("%s: left out %d rows whose position is not finite", path, len(scan.xyz) - len(rows))
    xyz = scan.xyz[rows]
    origin = _origin(path, xyz)
    near, why = xyz - origin, ""
    if method == "voxel":
        how = cast(Pick, pick or "centroid")
        reductions = _reductions(path, scan, how, reduce or {})
        fields = {name: scan.fields[name][rows] for name in reductions}
        options: dict[str, Any] = {"fields": fields, "reduce": reductions, "origin": origin, "seed": seed}
        voxels = _answering(partial(voxel, near, amount, pick=how, **options))
        moved = voxels.xyz.astype(np.float64) + origin if how in ("centroid", "center") else None
        sampled = Sampled(rows[voxels.index], moved, voxels.fields)
    else:
        if method == "farthest":
            index = _answering(partial(farthest, near.astype(np.float32), count))
        elif method == "random":
            index = random(len(rows), count, seed=seed)
        else:
            chosen = _answering(partial(adaptive, near.astype(np.float32), count, seed=seed))
            index, why = chosen.index, f"; {chosen.reason}"
        sampled = Sampled(rows[index])
    save(path, scan, sampled, origin, out)
    return f"{out}: {len(scan.xyz):,} -> {len(sampled.index):,} points{why}"


def _answering(work: Callable[[], Result]) -> Result:
    """``work()``, while this thread waits, and so answers a signal, which a kernel does not."""
    return aside(work, "sample").result()


def _check_options(method: str, amount: float, pick: str | None, reduce: Mapping[str, str]) -> None:
    option = f"--{method}"
    if method == "voxel":
        if not 0 < amount < math.inf:
            raise UsageError(option, f"is {amount:g}", "give a length above 0, in the unit of the scan")
    elif method == "random":
        if not (0 < amount <= 1 or (amount > 1 and float(amount).is_integer())):
            raise UsageError(
                option, f"is {amount:g}", "give a ratio above 0, at most 1, or a number of points"
            )
    elif amount < 1:
        raise UsageError(option, f"is {amount}", "give 1 or more points")
    if pick is not None and method != "voxel":
        raise UsageError("--pick", f"says which point a voxel gives, not {option}", "leave it out")
    if pick is not None and pick not in PICKS:
        raise UsageError("--pick", f"is {pick!r}", f"choose one of {', '.join(PICKS)}")
    if reduce and method != "voxel":
        raise UsageError("--reduce", f"says how a voxel merges a field, not {option}", "leave it out")
    for name, how in reduce.items():
        if how not in REDUCTIONS:
            raise UsageError(f"--reduce {name}", f"is {how!r}", f"choose one of {', '.join(REDUCTIONS)}")


def _read(path: Path) -> Scan:
    """The scan. Raises DataError as `read` does; warns of arrays that may be meant otherwise."""
    start = signature(path)
    if start and not start.startswith((LAS, NPY, idx.MAGIC, idx.GZIP)):  # the reader tells of images
        cause = f"is neither LAS/LAZ nor NPY (it starts with {start!r})"
        fix = "convert it: open3d reads PLY and PCD, numpy.loadtxt CSV; numpy.save writes NPY, laspy LAS"
        raise DataError(path, cause, fix)
    try:
        scan = read(path)
    except DataError as error:
        if start == NPY and "Python objects" in error.cause:  # in numpy's words
            fix = "convert it before numpy.save: array.astype(float)"
            raise DataError(path, "holds Python objects, not numbers", fix) from None
        raise
    if start == NPY and {"x", "y", "z"} <= scan.fields.keys():
        log.warning("%s: positions are those of its field xyz; x, y and z are kept as other fields", path)
    if start == NPY and len(scan.xyz) == 3 and "column_3" in scan.fields:
        n = 3 + len(scan.fields)
        log.warning("%s: has shape (3, %d): these are 3 points; for %d save array.T", path, n, n)
    return scan


def _count(path: Path, method: Method, amount: float, n: int) -> int:
    """How many of ``n`` rows; of a ratio the nearest number, a half rounded up, and at least one."""
    if method == "random" and amount <= 1:
        return min(max(math.floor(Fraction(str(float(amount))) * n + Fraction(1, 2)), 1), n)
    if not n:
        raise DataError(path, "has no row with a finite position", "give a scan with points")
    if amount > n:
        raise UsageError(
            path, f"has {n:,} finite points, --{method} asks for {int(amount):,}", f"ask for 1 to {n}"
        )
    return int(amount)


def _origin(path: Path, xyz: NDArray[np.float64]) -> NDArray[np.float64]:
    """Whole numbers near the middle of the box in x and y, and its bottom: the fewest digits to lose."""
    furthest = np.abs(xyz).max(initial=0)
    if furthest >= LARGEST:
        raise DataError(path, f"a coordinate is {furthest:g}, none may reach 2^53", "mend the file")
    origin: NDArray[np.float64] = np.floor(corner(xyz))
    return origin


def _reductions(path: Path, scan: Scan, pick: Pick, asked: Mapping[str, str]) -> dict[str, Reduction]:
    """How fields merge, of those that do: of the rest the rows are copied whole."""
    for name in asked:
        if name not in scan.fields:
            there = ", ".join(scan.fields) or "no field but x, y, z"
            raise UsageError("--reduce", f"names {name!r}, {path} has {there}", "name one of them")
    found: dict[str, Reduction] = {}
    known = _las_codes(path)
    for name, values in scan.fields.items():
        if name in asked or (pick == "centroid" and name not in known):
            how = reduction_of(name, values.dtype, cast(Reduction | None, asked.get(name)))
            if how != "first":
                found[name] = how
    return found


def _las_codes(path: Path) -> set[str]:
    """The flags and codes that LAS itself has, of no known kind: a voxel keeps its first point's."""
    if signature(path) != LAS:
        return set()
    with laspy.open(path) as reader:
        names = reader.header.point_format.standard_dimension_names
    return {name for name in names if kind_of(name, np.dtype(np.int64)) == "none"}
