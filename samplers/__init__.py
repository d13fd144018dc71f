"""Samplers: which rows of a cloud stand for the whole.

Each takes a numpy array or a torch CPU tensor and gives the same kind back. They are exact: the answer
depends on the input alone, not on threads, batch splits or the machine.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from numba import config


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def _private_folder() -> Path:
    """A cache folder in the temporary one that nobody else can have filled: numba unpickles what is there."""
    folder = Path(tempfile.gettempdir(), f"tamis-numba-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid == os.getuid() and status.st_mode & 0o170077 == 0o040000:
        return folder
    return Path(tempfile.mkdtemp(prefix="tamis-numba-"))


def _find_cache() -> None:
    """Give numba a folder for compiled kernels where it would find none and refuse the import."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    candidates = (Path(__file__).parent / "__pycache__", home / "numba")
    if "NUMBA_CACHE_DIR" not in os.environ and not any(map(_writable, candidates)):
        os.environ["NUMBA_CACHE_DIR"] = str(_private_folder())  # child processes inherit it
        config.reload_config()  # type: ignore[no-untyped-call]


_find_cache()  # before the first @njit(cache=True) below

from .accumulate import AccumulatedVoxels, VoxelAccumulator  # noqa: E402
from .adaptive import Adaptive, adaptive  # noqa: E402
from .curve import serialise  # noqa: E402
from .farthest import farthest, farthest_batch  # noqa: E402
from .fields import Kind, Reduction, kind_of, reduction  # noqa: E402
from .random import random  # noqa: E402
from .ratio import RatioSchedule, RatioSettings  # noqa: E402
from .stratified import stratified  # noqa: E402
from .voxel import Voxels, voxel  # noqa: E402
from .voxelise import Voxelised, voxelise  # noqa: E402

__all__ = [
    "AccumulatedVoxels",
    "Adaptive",
    "Kind",
    "RatioSchedule",
    "RatioSettings",
    "Reduction",
    "VoxelAccumulator",
    "Voxelised",
    "Voxels",
    "adaptive",
    "farthest",
    "farthest_batch",
    "kind_of",
    "random",
    "reduction",
    "serialise",
    "stratified",
    "voxel",
    "voxelise",
]
