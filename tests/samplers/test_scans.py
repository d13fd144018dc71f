"""The grid on real scans: which cells are taken does not depend on the origin a file is read with."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import laspy
import numpy as np
from numpy.typing import NDArray

from tamis.samplers import voxel

SIZES = (0.25, 0.5, 1.0)


def exact_cells(steps: NDArray[Any], scale: Fraction, offset: Fraction, size: Fraction) -> NDArray[np.int64]:
    """floor((steps * scale + offset + size / 1024) / size) in whole numbers."""
    slope, shift = scale / size, offset / size + Fraction(1, 1024)
    common = slope.denominator * shift.denominator
    if max(int(slope * common) * 2**31, abs(int(shift * common))) >= 2**61:
        steps = steps.astype(object)  # unbounded, and slow
    return ((steps * int(slope * common) + int(shift * common)) // common).astype(np.int64)


def check(path: Path) -> int:
    """Compare a file's cells for two origins with exact arithmetic, for every size its scale divides."""
    las = laspy.read(path)
    scales = [Fraction(str(s)) for s in las.header.scales]
    offsets = [Fraction(str(o)) for o in las.header.offsets]
    steps = np.stack([las.X, las.Y, las.Z], axis=1).astype(np.int64)
    world = np.stack([las.x, las.y, las.z], axis=1).astype(np.float64)
    sizes = [s for s in SIZES if all((Fraction(s) / scale).denominator == 1 for scale in scales)]
    for size in sizes:
        axes = [exact_cells(steps[:, a], scales[a], offsets[a], Fraction(size)) for a in range(3)]
        for origin in (world.min(axis=0), world.mean(axis=0)):
            voxels = voxel((world - origin).astype(np.float32), size, origin=origin)
            np.testing.assert_array_equal(voxels.cell[voxels.inverse], np.stack(axes, axis=1), str(path))
    return len(sizes)


def test_cells_of_the_shipped_scan_do_not_depend_on_the_origin(shipped_laz: Path) -> None:
    assert check(shipped_laz) == 3


def test_cells_of_every_scan_do_not_depend_on_the_origin(data_folder: Path) -> None:
    files = sorted(p for p in data_folder.rglob("*") if p.suffix in (".las", ".laz"))
    assert len(files) > 10
    assert sum(check(path) for path in files) > 30
