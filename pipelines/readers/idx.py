"""IDX: the images of MNIST (LeCun, Cortes and Burges 1998) and its kin, a point for each pixel above zero.

A file of images has bytes in three dimensions, one of labels in one. Both may be compressed with gzip.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, overload

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ...lazy import lazy
from . import Scan

MAGIC, GZIP = b"\0\0\x08", b"\x1f\x8b"
"""How a file of bytes begins, before the number of its dimensions; and a compressed file."""

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Images(Sequence[Scan]):
    """Images as clouds, each made when it is asked for. ``pixels`` uint8 (n, rows, columns), ``label`` (n,).

    A point lies at (column, rows above the lowest, 0) and has the pixel as ``intensity`` and the image's
    label as ``classification``. An image without a pixel above zero is a cloud of no points.
    """

    pixels: NDArray[np.uint8]
    label: NDArray[np.uint8]

    @lazy
    def counts(self) -> NDArray[np.int64]:
        """Points of each image, int64 (n,)."""
        flat = self.pixels.reshape(len(self.pixels), -1)
        return np.asarray(np.count_nonzero(flat, axis=1), np.int64)

    @lazy
    def _behind(self) -> NDArray[np.int64]:
        return np.cumsum(self.counts)

    def __len__(self) -> int:
        return len(self.pixels)

    @overload
    def __getitem__(self, number: int) -> Scan: ...
    @overload
    def __getitem__(self, number: slice) -> list[Scan]: ...
    def __getitem__(self, number: int | slice) -> Scan | list[Scan]:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        row, column = np.nonzero(self.pixels[number])
        xyz = np.zeros((len(row), 3))
        xyz[:, 0], xyz[:, 1] = column, self.pixels.shape[1] - 1 - row
        fields = {
            "intensity": self.pixels[number][row, column],
            "classification": np.full(len(row), self.label[number]),
        }
        return Scan(xyz, fields, int(self._behind[number]) - len(row))


def read(path: Path) -> Images:
    """Read all images and their labels.

    Raises DataError, with the offset, where a file is no such one or not whole, and where the labels are not
    there or not as many.
    """
    pixels = _read(path, 3, "images")
    if not pixels.size:
        raise DataError(path, f"holds no image (its shape is {pixels.shape})", "name another file")
    labels = labels_of(path)
    label = _read(labels, 1, "labels")
    if len(label) != len(pixels):
        cause = f"offset 4: has {len(label)} labels, {path.name} has {len(pixels)} images"
        raise DataError(labels, cause, "copy both again")
    return Images(pixels, label)


def labels_of(path: Path) -> Path:
    """The file with the labels of a file of images, found by name. Raises DataError where there is none."""
    name = path.name.replace("images", "labels").replace("idx3", "idx1")
    if name == path.name:
        raise DataError(
            path, "has a name without 'images', so that its labels are not found", "name it as MNIST does"
        )
    plain = name.removesuffix(".gz")
    for other in (name, plain, f"{plain}.gz"):
        if path.with_name(other).is_file():
            return path.with_name(other)
    raise DataError(path, f"its labels {name} are not beside it", "copy them there")


def _read(path: Path, dimensions: int, what: str) -> NDArray[np.uint8]:
    try:
        with path.open("rb") as file:
            compressed = file.read(2) == GZIP
            file.seek(0)
            if not compressed:
                return _parsed(path, file, dimensions, what)
            try:
                with gzip.GzipFile(fileobj=file, mode="rb") as inner:
                    return _parsed(path, inner, dimensions, what)
            except EOFError:
                cause = f"is cut: its gzip stream ends at offset {file.seek(0, 2)}"
                raise DataError(path, cause, "copy it again") from None
            except (gzip.BadGzipFile, zlib.error) as error:
                cause = f"is damaged before offset {file.tell()} of its gzip stream ({error})"
                raise DataError(path, cause, "copy it again") from None
    except OSError as error:
        raise DataError(path, f"cannot be read ({error.strerror})", "check the path") from None


def _parsed(path: Path, file: BinaryIO | gzip.GzipFile, dimensions: int, what: str) -> NDArray[np.uint8]:
    """The array: after the magic number, its dimensions as big-endian uint32, then its bytes."""
    start = 4 + 4 * dimensions
    head = b"".join(_chunks(file, start))
    wanted = MAGIC + bytes([dimensions])
    if head[:4] != wanted:
        cause = f"holds no {what}: offset 0 has {head[:4]!r}, not {wanted!r}"
        raise DataError(path, cause, f"name a file of {what} in IDX format")
    if len(head) < start:
        raise DataError(path, f"is cut: it ends at offset {len(head)}, inside its header", "copy it again")
    shape = struct.unpack(f">{dimensions}I", head[4:])
    size = math.prod(shape)
    data = b"".join(_chunks(file, size + 1))  # one more, which reaches the end and gzip's checksum
    if len(data) != size:
        has = "goes on" if len(data) > size else "ends"
        cause = f"{has} at offset {start + min(len(data), size)}, its header promises {size} bytes of {what}"
        raise DataError(path, cause, "copy it again")
    return np.frombuffer(data, np.uint8).reshape(shape)


def _chunks(file: BinaryIO | gzip.GzipFile, size: int) -> Iterator[bytes]:
    """At most ``size`` bytes: memory is taken for what is there, not for what a damaged header promises."""
    while size and (chunk := file.read(min(size, _CHUNK))):
        size -= len(chunk)
        yield chunk
