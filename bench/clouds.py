"""The clouds that every loader delivers: written once, in one file, a run of bytes a cloud."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
"""A batch: ``xyz`` float32 and ``rgb`` uint8, (n, 3) or (clouds, rows, 3), ``label`` int64, ``offsets``."""

SIDE = 100.0
POINT_BYTES = 12 + 3


@dataclass(frozen=True)
class Shape:
    """``clouds`` clouds of ``fewest`` to ``most`` rows each, ``batch`` of them a batch."""

    name: str
    clouds: int
    fewest: int
    most: int
    batch: int = 32


SHAPES = (
    Shape("clouds", 4000, 2_000, 20_000),  # packed batches of about 5 MB, each of another size
    Shape("8mb", 1600, 16_672, 16_672),  # batches of 8.0 MB of equal shape
)


class Clouds:
    """A set of clouds on disk, opened.

    ``rows`` and ``label`` int64 (clouds,), ``first`` int64 (clouds + 1,): rows before each cloud.
    ``total``: see `content`, of all clouds together.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        about = json.loads((folder / "about.json").read_text())
        self.shape, self.total = Shape(**about["shape"]), tuple(about["total"])
        self.name, self.batch = self.shape.name, self.shape.batch
        with np.load(folder / "index.npz") as index:
            self.rows: NDArray[np.int64] = index["rows"]
            self.label: NDArray[np.int64] = index["label"]
        self.first: NDArray[np.int64] = np.concatenate([[0], np.cumsum(self.rows)])
        self._fd = os.open(folder / "clouds.bin", os.O_RDONLY)

    def __len__(self) -> int:
        return len(self.rows)

    def __reduce__(self) -> tuple[type[Clouds], tuple[Path]]:
        return Clouds, (self.folder,)  # a descriptor does not cross processes

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)

    @property
    def batches(self) -> list[range]:
        """The clouds of each batch, in stored order."""
        return [range(a, min(a + self.batch, len(self))) for a in range(0, len(self), self.batch)]

    def read(self, i: int) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        """Coordinates and colours of a cloud, by one preadv into fresh memory."""
        n = int(self.rows[i])
        xyz, rgb = np.empty((n, 3), np.float32), np.empty((n, 3), np.uint8)
        self.read_into(i, xyz, rgb)
        return xyz, rgb

    def read_into(self, i: int, xyz: NDArray[np.float32], rgb: NDArray[np.uint8]) -> None:
        """As `read`, into arrays of the caller."""
        # numpy arrays offer their memory as buffers; the stubs of this Python version do not say so
        buffers: Any = [xyz, rgb]
        got = os.preadv(self._fd, buffers, int(self.first[i]) * POINT_BYTES)
        if got != int(self.rows[i]) * POINT_BYTES:
            raise OSError(f"{self.folder / 'clouds.bin'}: cloud {i} was read short")

    def about(self, indices: Sequence[int] | NDArray[np.int64]) -> Arrays:
        """Labels and offsets of the batch of these clouds."""
        chosen = np.asarray(indices)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.rows[chosen])])
        return {"label": self.label[chosen], "offsets": offsets}

    def batch_of(self, indices: Sequence[int]) -> Arrays:
        """The packed batch of these clouds, each read straight to its place."""
        about = self.about(indices)
        first = about["offsets"].tolist()
        xyz, rgb = np.empty((first[-1], 3), np.float32), np.empty((first[-1], 3), np.uint8)
        self.read_packed(indices, first, xyz, rgb)
        return {"xyz": xyz, "rgb": rgb, **about}

    def read_packed(
        self, indices: Sequence[int], first: Sequence[int], xyz: NDArray[np.float32], rgb: NDArray[np.uint8]
    ) -> None:
        """Read these clouds into arrays of the caller, cloud j from row ``first[j]`` on."""
        for i, a, b in zip(indices, first, first[1:], strict=False):
            self.read_into(i, xyz[a:b], rgb[a:b])


def pack(samples: Sequence[tuple[NDArray[np.float32], NDArray[np.uint8], int]]) -> Arrays:
    """The batch of clouds given as (coordinates, colours, label)."""
    sizes = [len(xyz) for xyz, _, _ in samples]
    return {
        "xyz": np.concatenate([xyz for xyz, _, _ in samples]),
        "rgb": np.concatenate([rgb for _, rgb, _ in samples]),
        "label": np.array([label for _, _, label in samples], np.int64),
        "offsets": np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)]),
    }


def content(batch: Arrays) -> tuple[int, int]:
    """Sums of coordinates (as 32-bit words) and colours: the same for any order of clouds and rows.

    Both are modulo 2^32.
    """
    xyz, rgb = (np.ascontiguousarray(batch[name]) for name in ("xyz", "rgb"))
    return int(np.add.reduce(xyz.view(np.uint32), None, np.uint32)), int(np.add.reduce(rgb, None, np.uint32))


def added(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    """The content of both."""
    return (one[0] + other[0]) % 2**32, (one[1] + other[1]) % 2**32


def write(shape: Shape, folder: Path) -> Clouds:
    """Random clouds in ``folder``, the same for the same shape; those that are there already are opened."""
    if not (folder / "about.json").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(0)
        rows = rng.integers(shape.fewest, shape.most, shape.clouds, endpoint=True)
        np.savez(folder / "index.npz", rows=rows, label=rng.integers(0, 40, shape.clouds))
        total = (0, 0)
        with (folder / "clouds.bin").open("wb") as file:
            for n in rows:
                xyz = (rng.random((n, 3), np.float32) - 0.5) * np.float32(SIDE)
                xyz[:, 2] += SIDE / 2
                # Opposite corners: with them the origin of the cloud is zero, and tamis stores what is here.
                xyz[0], xyz[1] = (-SIDE / 2, -SIDE / 2, 0), (SIDE / 2, SIDE / 2, SIDE)
                rgb = rng.integers(0, 256, (n, 3), np.uint8)
                total = added(total, content({"xyz": xyz, "rgb": rgb}))
                file.write(xyz.tobytes() + rgb.tobytes())
        (folder / "about.json").write_text(json.dumps({"shape": asdict(shape), "total": total}))
    return Clouds(folder)
