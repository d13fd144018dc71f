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


def float_points(path: Path) -> NDArray[np.float64]:
    """x, y and z of a binary PLY file of floats."""
    raw = path.read_bytes()
    head, _, body = raw.partition(b"end_header\n")
    names = [line.split() for line in head.decode().splitlines() if line.startswith("property")]
    assert all(kind == "float" for _, kind, _ in names)
    rows = np.frombuffer(body, np.float32).reshape(-1, len(names))
    return rows[:, :3].astype(np.float64)


def test_few_rows_of_float_files_change_cell_with_the_origin(data_folder: Path) -> None:
    """Floats lie anywhere, so a boundary may lie between a coordinate and its rounding."""
    for path in (data_folder / "reader" / "source.ply", data_folder / "reader" / "target.ply"):
        world = float_points(path)
        for size in SIZES:
            at = voxel(world.astype(np.float32), size)
            for origin in (world.min(axis=0), world.mean(axis=0)):
                moved = voxel((world - origin).astype(np.float32), size, origin=origin)
                differ = (moved.cell[moved.inverse] != at.cell[at.inverse]).any(axis=1).sum()
                assert differ <= 5e-5 * len(world), (path, size, origin)
