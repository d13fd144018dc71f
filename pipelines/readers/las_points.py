"""Points of LAS files: packed records, taken apart into columns while the processor's cache holds them."""

from __future__ import annotations

import os
from io import BufferedReader
from typing import Any

import laspy
import lazrs
import numpy as np
from numpy.typing import NDArray

_COLOURS = ("red", "green", "blue")

# Points: of packed records that are taken apart at once, about half of a processor's second cache; that are
# read at once, of files with no chunks; and most that are, of those with chunks that are larger.
_PART, _BLOCK, _LARGEST = 1 << 14, 1 << 15, 1 << 17
_THREADS = 16


class Points:
    """The points of an open file, in their order, a number at a time.

    Coordinates and extra bytes that have a scale become float64, scaled as laspy does: times the scale, plus
    the offset. Whatever laspy, lazrs and numpy raise on damaged bytes comes through.
    """

    def __init__(self, file: BufferedReader, header: laspy.LasHeader) -> None:
        kind = header.point_format
        self._header, self._file, self._packed = header, file, kind.dtype()
        bit_fields = laspy.PackedPointRecord.empty(kind).sub_fields_dict
        self._names = [name for name in kind.dimension_names if name not in ("X", "Y", "Z")]
        # Of each octet, what its bits mean: name, mask, shift.
        self._bits: dict[str, list[tuple[str, int, int]]] = {}
        self._scaled: dict[str, laspy.point.dims.DimensionInfo] = {}
        self._plain: list[str] = []
        for name in self._names:
            if name in bit_fields:
                octet, field = bit_fields[name]
                shift = (field.mask & -field.mask).bit_length() - 1
                self._bits.setdefault(octet, []).append((name, field.mask, shift))
            elif not (found := kind.dimension_by_name(name)).is_standard and found.is_scaled:
                self._scaled[name] = found
            else:
                self._plain.append(name)
        colours = [self._packed[name] for name in _COLOURS if name in self._plain]
        self._joins = len(colours) == 3 and len({*colours}) == 1 and not colours[0].shape
        self._joins &= "rgb" not in self._names
        file.seek(header.offset_to_point_data)
        self._decompressor, self._block = None, _BLOCK
        if header.are_points_compressed and header.point_count:
            record = header.vlrs.get("LasZipVlr")[0].record_data
            every = lazrs.DecompressionSelection(lazrs.SELECTIVE_DECOMPRESS_ALL)
            self._decompressor = lazrs.ParLasZipDecompressor(file, record, every)
            chunk = lazrs.LazVlr(record).chunk_size()
            # Its threads share out whole chunks.
            self._block = min(chunk, _LARGEST) * _threads()
        self._space = np.empty(0, self._packed)

    def take(self, n: int) -> tuple[NDArray[np.float64], dict[str, NDArray[Any]]]:
        """The next ``n`` points: coordinates (n, 3), and fields; fewer where the file ends before."""
        xyz, columns = np.empty((n, 3)), self._columns(n)
        done = 0
        while done < n:
            wanted = min(self._block, n - done)
            if len(self._space) < wanted:
                self._space = np.empty(wanted, self._packed)
            found = self._fill(self._space[:wanted])
            for start in range(0, found, _PART):
                stop = min(start + _PART, found)
                part = self._space[start:stop]
                self._split(part, xyz, columns, slice(done + start, done + stop))
            done += found
            if found < wanted:
                break
        fields = self._fields(columns)
        if done < n:
            return xyz[:done], {name: values[:done] for name, values in fields.items()}
        return xyz, fields

    def _fill(self, space: NDArray[Any]) -> int:
        """Read packed records; says how many there were."""
        octets = space.view(np.uint8)
        if self._decompressor is None:
            # A buffered file reads until it has all, or has come to its end.
            return int(self._file.readinto(octets.data) // self._packed.itemsize)
        self._decompressor.decompress_many(octets)
        return len(space)

    def _columns(self, n: int) -> dict[str, NDArray[Any]]:
        """Space for ``n`` values of every field; three colours lie together."""
        columns: dict[str, NDArray[Any]] = {}
        for name in self._plain:
            columns[name] = np.empty((n, *self._packed[name].shape), self._packed[name].base)
        for name, kind in self._scaled.items():
            columns[name] = np.empty((n, kind.num_elements) if kind.num_elements > 1 else n)
        for own in self._bits.values():
            columns |= {name: np.empty(n, np.uint8) for name, _, _ in own}
        if self._joins:
            joined = np.empty((n, 3), self._packed[_COLOURS[0]])
            columns |= {name: joined[:, at] for at, name in enumerate(_COLOURS)}
        return columns

    def _fields(self, columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        fields: dict[str, NDArray[Any]] = {}
        for name in self._names:
            if not self._joins or name not in _COLOURS:
                fields[name] = columns[name]
            elif name == "red":
                joined = columns[name].base
                assert joined is not None
                fields["rgb"] = joined
        return fields

    def _split(
        self, part: NDArray[Any], xyz: NDArray[Any], columns: dict[str, NDArray[Any]], at: slice
    ) -> None:
        """Take packed records apart into rows ``at`` of the columns."""
        for axis, name in enumerate("XYZ"):
            values = part[name].astype(np.float64)
            values *= self._header.scales[axis]
            np.add(values, self._header.offsets[axis], out=xyz[at, axis])
        for name in self._plain:
            columns[name][at] = part[name]
        for name, kind in self._scaled.items():
            columns[name][at] = part[name] * kind.scales + kind.offsets
        for octet, own in self._bits.items():
            octets = np.ascontiguousarray(part[octet])
            for name, mask, shift in own:
                target = columns[name][at]
                np.bitwise_and(octets, np.uint8(mask), out=target)
                np.right_shift(target, np.uint8(shift), out=target)


def _threads() -> int:
    """How many chunks are decompressed at a time, as rayon, which does it, decides."""
    given = os.environ.get("RAYON_NUM_THREADS", "")
    return min((int(given) if given.isdigit() else 0) or len(os.sched_getaffinity(0)), _THREADS)
