"""``tamis sample``: a scan thinned by one of the samplers, with every field it has."""

from __future__ import annotations

import logging
import math
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, cast

import laspy
import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, UsageError
from ..samplers.adaptive import adaptive
from ..samplers.farthest import farthest
from ..samplers.fields import Reduction, kind_of, reduction
from ..samplers.group import PICKS, Pick
from ..samplers.random import random
from ..samplers.voxel import voxel
from .cut import LARGEST, corner
from .readers import Scan, read
from .save import Sampled, check_out, save

log = logging.getLogger(__name__)

Method = Literal["voxel", "farthest", "random", "adaptive"]


def sample(
    path: Path, out: Path, method: Method, amount: float, *, pick: str | None = None, seed: int = 0
) -> str:
    """Write what ``method`` takes of the scan at ``path`` to ``out``; tell how many points that is.

    ``amount``: the edge of a voxel, a number of points, or, for random up to 1, a ratio. Positions are
    counted from an origin inside the scan, in float64, before a sampler sees them as float32. Rows come whole
    and as the sampler gives them: farthest point and random as they were picked, so that the first of them
    are a sample too, voxels by their cell. Only the picks "centroid", the default, and "center" of a voxel
    move positions, and "centroid" merges fields by kind. Rows without a finite position are left out and
    counted.

    Raises UsageError for names, amounts and counts that will not do, and DataError for what is no scan.
    """
    _check_amount(method, amount, pick)
    check_out(path, out)
    scan = read(path)
    rows = np.flatnonzero(np.isfinite(scan.xyz).all(axis=1))
    if len(rows) < len(scan.xyz):
        log.warning("%s: left out %d rows whose position is not finite", path, len(scan.xyz) - len(rows))
    xyz = scan.xyz[rows]
    origin = _origin(path, xyz)
    near = (xyz - origin).astype(np.float32)
    why = ""
    if method == "voxel":
        sampled = _by_voxel(path, scan, rows, near, origin, amount, cast(Pick, pick or "centroid"), seed)
    else:
        count = _count(path, method, amount, len(rows))
        if method == "farthest":
            index = farthest(near, count)
        elif method == "random":
            index = random(len(rows), count, seed=seed)
        else:
            chosen = adaptive(near, count, seed=seed)
            index, why = chosen.index, f"; {chosen.reason}"
        sampled = Sampled(rows[index])
    save(path, scan, sampled, origin, out)
    return f"{out}: {len(scan.xyz):,} -> {len(sampled.index):,} points{why}"


def _check_amount(method: str, amount: float, pick: str | None) -> None:
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


def _count(path: Path, method: Method, amount: float, n: int) -> int:
    """How many of ``n`` rows; of a ratio the nearest number, a half rounded up, and at least one."""
    if method == "random" and amount <= 1:
        return min(max(math.floor(Fraction(str(float(amount))) * n + Fraction(1, 2)), 1), n)
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


def _by_voxel(
    path: Path,
    scan: Scan,
    rows: NDArray[np.int64],
    near: NDArray[np.float32],
    origin: NDArray[np.float64],
    size: float,
    pick: Pick,
    seed: int,
) -> Sampled:
    fields: dict[str, NDArray[Any]] = {}
    reduce: dict[str, Reduction] = {}
    if pick == "centroid":
        known = _las_codes(path)
        for name, values in scan.fields.items():
            kind = kind_of(name, values.dtype)
            how: Reduction = "first" if name in known else reduction(kind, values.dtype)
            if how != "first":  # first rows are copied whole
                fields[name], reduce[name] = values[rows], how
            elif kind == "none" and name not in known:
                log.warning("field %r is of no known kind: a voxel keeps its first point's value", name)
    voxels = voxel(near, size, pick=pick, fields=fields, reduce=reduce, origin=origin, seed=seed)
    moved = voxels.xyz.astype(np.float64) + origin if pick in ("centroid", "center") else None
    return Sampled(rows[voxels.index], moved, voxels.fields)


def _las_codes(path: Path) -> set[str]:
    """The flags and codes that LAS itself has, of no known kind: a voxel keeps its first point's."""
    with path.open("rb") as file:
        if file.read(4) != b"LASF":
            return set()
    with laspy.open(path) as reader:
        names = reader.header.point_format.standard_dimension_names
    return {name for name in names if kind_of(name, np.dtype(np.int64)) == "none"}
