"""Tar shards as WebDataset wrote them first: for a cloud its .xyz.npy, .rgb.npy and .cls."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np

from ..clouds import Clouds

FORMAT = "tar"
_SHARD_BYTES = 64 << 20


def write(clouds: Clouds, folder: Path) -> None:
    """Shards of about 64 MiB, unless they are there."""
    ready = folder / "ready"
    if ready.is_file():
        return
    starts = clouds.first * 15 // _SHARD_BYTES
    for shard in range(int(starts[-1]) + 1):
        with tarfile.open(folder / f"{shard:05d}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for i in np.flatnonzero(starts[:-1] == shard).tolist():
                xyz, rgb = clouds.read(i)
                _add(tar, f"{i:06d}.xyz.npy", _npy(xyz))
                _add(tar, f"{i:06d}.rgb.npy", _npy(rgb))
                _add(tar, f"{i:06d}.cls", str(clouds.label[i]).encode())
    ready.touch()


def shards(folder: Path) -> list[str]:
    """The paths of the shards."""
    return sorted(map(str, folder.glob("*.tar")))


def _npy(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    about = tarfile.TarInfo(name)
    about.size = len(data)
    tar.addfile(about, io.BytesIO(data))
