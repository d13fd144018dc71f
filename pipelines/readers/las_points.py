"""Points of LAS files: packed records, taken apart into columns while the processor's cache holds them."""

from __future__ import annotations

import os
from collections.abc import Collection
from io import BufferedReader
from typing import Any

import laspy
import lazrs
import numpy as np
from numpy.typing import NDArray

from . import join_colours

_COLOURS = ("red", "green", "blue")
_WAVES = ("wavepacket_index", "wavepacket_offset", "wavepacket_size", "return_point_wave_location")
_FLAGS = ("synthetic", "key_point", "withheld", "overlap", "scan_direction_flag", "edge_of_flight_line")

# Layers that chunks of point formats 6 to 10 are compressed in, and what they hold. The first holds x and y
# too and is always decompressed, as is that of z; all extra bytes are taken for one more.
_LAYERS = {
    lazrs.SELECTIVE_DECOMPRESS_XY_RETURNS_CHANNEL: ("return_number", "number_of_returns", "scanner_channel"),
    lazrs.SELECTIVE_DECOMPRESS_CLASSIFICATION: ("classification",),
    lazrs.SELECTIVE_DECOMPRESS_FLAGS: _FLAGS,
    lazrs.SELECTIVE_DECOMPRESS_INTENSITY: ("intensity",),
    lazrs.SELECTIVE_DECOMPRESS_SCAN_ANGLE: ("scan_angle",),
    lazrs.SELECTIVE_DECOMPRESS_USER_DATA: ("user_data",),
    lazrs.SELECTIVE_DECOMPRESS_POINT_SOURCE_ID: ("point_source_id",),
    lazrs.SELECTIVE_DECOMPRESS_GPS_TIME: ("gps_time",),
    lazrs.SELECTIVE_DECOMPRESS_RGB: _COLOURS,
    lazrs.SELECTIVE_DECOMPRESS_NIR: ("nir",),
    lazrs.SELECTIVE_DECOMPRESS_WAVEPACKET: (*_WAVES, "x_t", "y_t", "z_t"),
}
_LAYER_OF = {name: layer for layer, names in _LAYERS.items() for name in names}

# Points: of packed records that are taken apart at once, about half of a processor's second cache; that are
# read at once, of files with no chunks; and most that are, of those with chunks that are larger.
_PART, _BLOCK, _LARGEST = 1 << 14, 1 << 15, 1 << 17
_THREADS = 16


class Points:
    """The points of an open file, in their order, a number at a time.

    Coordinates and extra bytes that have a scale become float64, scaled as laspy does: times the scale, plus
    the offset. Fields that are not ``wanted`` (None: all are) are left out, and layers that hold no others
    are not decompressed. ``names``: of all fields that the file has. Whatever laspy, lazrs and numpy raise on
    damaged bytes comes through.
    """

    def __init__(
        self, file: BufferedReader, header: laspy.LasHeader, wanted: Collection[str] | None = None
    ) -> None:
        kind = header.point_format
        every = [name for name in kind.dimension_names if name not in ("X", "Y", "Z")]
        taken = every if wanted is None else _taken(every, wanted)
        self._fields, whole = _Fields(header, taken), _Fields(header, every)
        self.names = tuple(join_colours(whole.named(whole.columns(0))))
        self._file, self._packed = file, kind.dtype()
        file.seek(header.offset_to_point_data)
        self._decompressor, self._block = None, _BLOCK
        if header.are_points_compressed and header.point_count:
            record = header.vlrs.get("LasZipVlr")[0].record_data
            layers = lazrs.DecompressionSelection(_layers(kind, taken))
            self._decompressor = lazrs.ParLasZipDecompressor(file, record, layers)
            chunk = lazrs.LazVlr(record).chunk_size()
            # Its threads share out whole chunks.
            self._block = min(chunk, _LARGEST) * _threads()
        self._space = np.empty(0, self._packed)

    def take(self, n: int) -> tuple[NDArray[np.float64], dict[str, NDArray[Any]]]:
        """The next ``n`` points: coordinates (n, 3), and fields; fewer where the file ends before."""
        xyz, columns = np.empty((n, 3)), self._fields.columns(n)
        done = 0
        while done < n:
            wanted = min(self._block, n - done)
            if len(self._space) < wanted:
                self._space = np.empty(wanted, self._packed)
            found = self._fill(self._space[:wanted])
            for start in range(0, found, _PART):
                stop = min(start + _PART, found)
                part = self._space[start:stop]
                self._fields.split(part, xyz, columns, slice(done + start, done + stop))
            done += found
            if found < wanted:
                break
        fields = self._fields.named(columns)
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


class _Fields:
    """Some fields of packed records: space for their values, and how to take records apart into it."""

    def __init__(self, header: laspy.LasHeader, names: list[str]) -> None:
        kind = header.point_format
        self._names, self._header, self._packed = names, header, kind.dtype()
        bit_fields = laspy.PackedPointRecord.empty(kind).sub_fields_dict
        # Of each octet, what its bits mean: name, mask, shift.
        self._bits: dict[str, list[tuple[str, int, int]]] = {}
        self._scaled: dict[str, laspy.point.dims.DimensionInfo] = {}
        self._plain: list[str] = []
        for name in names:
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
        self._joins &= "rgb" not in names

    def columns(self, n: int) -> dict[str, NDArray[Any]]:
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

    def named(self, columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The columns in the order of the records, joined colours as one."""
        fields: dict[str, NDArray[Any]] = {}
        for name in self._names:
            if not self._joins or name not in _COLOURS:
                fields[name] = columns[name]
            elif name == "red":
                joined = columns[name].base
                assert joined is not None
                fields["rgb"] = joined
        return fields

    def split(
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


def _taken(every: list[str], wanted: Collection[str]) -> list[str]:
    """The fields that are wanted; with one colour all, as whether three are one field depends on all."""
    colours = {*_COLOURS, "rgb"}
    names = colours.union(wanted) if colours.intersection(wanted) else wanted
    return [name for name in every if name in names]


def _layers(kind: laspy.PointFormat, names: list[str]) -> int:
    """The layers that x, y, z and some fields lie in."""
    layers: int = lazrs.SELECTIVE_DECOMPRESS_Z
    extra = {*kind.extra_dimension_names}  # one may have the name of another format's field
    for name in names:
        # Before LAS 1.4 there are no layers, and a field that is in none is there with any of them.
        layers |= lazrs.SELECTIVE_DECOMPRESS_ALL_EXTRA_BYTES if name in extra else _LAYER_OF.get(name, 0)
    return layers


def _threads() -> int:
    """How many chunks are decompressed at a time, as rayon, which does it, decides."""
    given = os.environ.get("RAYON_NUM_THREADS", "")
    return min((int(given) if given.isdigit() else 0) or len(os.sched_getaffinity(0)), _THREADS)
