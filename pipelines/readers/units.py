"""Units of length: how many metres the units of a file's coordinates have, as its coordinate system says.

WKT 1 (OGC 01-009), WKT 2 (OGC 18-010) and ESRI's kind of it; GeoTIFF keys (OGC 19-008), as LAS carries both.
"""

from __future__ import annotations

import logging
import math
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ...errors import DataError
from .formats import Format
from .settings import ReadSettings

log = logging.getLogger(__name__)

KNOWING = ("las", "e57")
"""The modules of formats that say in what unit their coordinates are."""

FIX = "write its coordinate system into it, or leave data.read.unit at 'source'"

_TOKEN = re.compile(r'\s*(?:"((?:[^"]|"")*)"|([\[(])|([\])])|(,)|([^\s,\[\]()"]+))')

_FLAT = ("PROJCS", "PROJCRS", "PROJECTEDCRS", "LOCAL_CS", "ENGCRS", "ENGINEERINGCRS")
_ROUND = ("GEOGCS", "GEOGCRS", "GEOGRAPHICCRS", "GEODCRS", "GEODETICCRS", "GEOCCS")
_UPRIGHT = ("VERT_CS", "VERTCS", "VERTCRS", "VERTICALCRS")
_WRAPPED = ("COMPD_CS", "COMPOUNDCRS", "BOUNDCRS", "SOURCECRS")

# Keys (OGC 19-008, 7), and the lengths that EPSG gives to its codes of units.
_MODEL, _LINEAR, _LINEAR_SIZE, _SPATIAL_LINEAR, _VERTICAL = 1024, 3076, 3077, 2052, 4099
_GEOGRAPHIC, _GEOCENTRIC, _OWN = 2, 3, 32767
_EPSG = {
    9001: 1.0,
    9002: 0.3048,
    9003: 1200 / 3937,
    9005: 0.3047972654,
    9036: 1000.0,
    9095: 0.3048007491,
    9096: 0.9144,
    1025: 0.001,
    1033: 0.01,
}


class Lengths(NamedTuple):
    """Metres of a unit of x and y, and of one of z; None where that is not said."""

    across: float | None
    up: float | None


@dataclass
class _Node:
    """A keyword of WKT with what stands in its brackets."""

    word: str
    values: list[str] = field(default_factory=list)
    nodes: list[_Node] = field(default_factory=list)


def check(path: Path, format: Format, settings: ReadSettings) -> None:
    """Refuse to bring coordinates to metres where a format has no place for their unit."""
    if settings.unit == "metre" and format.module not in KNOWING:
        cause = f"is {format.name}, which does not say in what unit its coordinates are"
        raise DataError(path, cause, "leave data.read.unit at 'source'")


def metres(path: Path, wkt: str, keys: Mapping[int, float]) -> tuple[float, float]:
    """Metres of a unit of x and y, and of one of z, as WKT says or, where it does not, GeoTIFF keys.

    Where neither names a vertical unit, z is in that of x and y. Raises DataError for none at all, for
    degrees, and for WKT that is damaged.
    """
    by_text, by_keys = of_wkt(path, wkt), of_keys(path, keys)
    across = by_text.across or by_keys.across
    if across is None:
        code = f" (of its coordinate system it gives the code {keys[3072]:.0f})" if 3072 in keys else ""
        raise DataError(path, f"names no unit of its coordinates{code}", FIX)
    if by_text.across and by_keys.across and not math.isclose(by_text.across, by_keys.across, rel_tol=1e-9):
        log.warning(
            "%s: its WKT has units of %.10g m, its GeoTIFF keys of %.10g m: the first holds",
            path,
            *(by_text.across, by_keys.across),
        )
    up = by_text.up or by_keys.up
    if up is None:
        log.info("%s: names no vertical unit, z is taken to be in that of x and y", path)
    return across, up or across


def of_wkt(path: Path, text: str) -> Lengths:
    """What WKT says of units; nothing for an empty text. Raises DataError for degrees and for damage."""
    across = up = None
    for node in _systems(_parsed(path, text)):
        own = _units(path, node)
        if node.word in _UPRIGHT:
            up = own[0] if own else up
            continue
        if node.word in _ROUND and not _is_spatial(node):
            raise _degrees(path)
        if own and not math.isclose(own[0], own[min(1, len(own) - 1)]):
            raise DataError(path, f"has units of {own[0]:g} m in x and {own[1]:g} m in y", FIX)
        across = own[0] if own else across
        up = own[0] if own and node.word in _ROUND else own[2] if len(own) > 2 else up
    return Lengths(across, up)


def of_keys(path: Path, keys: Mapping[int, float]) -> Lengths:
    """What GeoTIFF keys (`geo_keys`) say of units. Raises DataError for degrees."""
    if keys.get(_MODEL) == _GEOGRAPHIC:
        raise _degrees(path)
    if keys.get(_MODEL) == _GEOCENTRIC:
        length = _EPSG.get(int(keys.get(_SPATIAL_LINEAR, 9001)))
        return Lengths(length, length)
    across = _EPSG.get(int(keys.get(_LINEAR, 0)))
    if keys.get(_LINEAR) == _OWN and 0 < keys.get(_LINEAR_SIZE, 0) < math.inf:
        across = keys[_LINEAR_SIZE]
    return Lengths(across, _EPSG.get(int(keys.get(_VERTICAL, 0))))


def geo_keys(directory: bytes, doubles: bytes) -> dict[int, float]:
    """The numbers of a GeoKeyDirectoryTag (LAS: record 34735) by key, with those of record 34736."""
    numbers = struct.unpack(f"<{len(doubles) // 8}d", doubles[: len(doubles) // 8 * 8])
    shorts = struct.unpack(f"<{len(directory) // 2}H", directory[: len(directory) // 2 * 2])
    keys: dict[int, float] = {}
    for at in range(4, len(shorts) - 3, 4):
        key, place, count, value = shorts[at : at + 4]
        if place == 0:
            keys[key] = value
        elif place == 34736 and count == 1 and value < len(numbers):
            keys[key] = numbers[value]
    return keys


def _degrees(path: Path) -> DataError:
    return DataError(path, "has coordinates in degrees, which are no lengths", "project them first")


def _parsed(path: Path, text: str) -> list[_Node]:
    """The outermost nodes of a WKT text: one, or two as ESRI writes a vertical system behind another."""
    root = _Node("")
    stack, at, end = [root], 0, len(text.rstrip())
    while at < end:
        found = _TOKEN.match(text, at)
        if found is None:
            raise _damaged(path, text, at)
        at = found.end()
        quoted, opens, closes, _, bare = found.groups()
        if opens:
            if not stack[-1].values:
                raise _damaged(path, text, found.start())
            node = _Node(stack[-1].values.pop().upper())
            stack[-1].nodes.append(node)
            stack.append(node)
        elif closes:
            if len(stack) == 1:
                raise _damaged(path, text, found.start())
            stack.pop()
        elif quoted is not None or bare:
            stack[-1].values.append(bare or quoted)
    if len(stack) > 1:
        raise _damaged(path, text, end)
    return root.nodes


def _damaged(path: Path, text: str, at: int) -> DataError:
    return DataError(path, f"has damaged WKT: character {at} of {len(text)}", FIX)


def _systems(nodes: list[_Node]) -> Iterator[_Node]:
    """The coordinate systems, those that others are made of in their place."""
    waiting = nodes[::-1]
    while waiting:
        node = waiting.pop()
        if node.word in _WRAPPED:
            waiting += node.nodes[::-1]
        elif node.word in _FLAT + _ROUND + _UPRIGHT:
            yield node


def _is_spatial(node: _Node) -> bool:
    """Whether a system of the globe has x, y and z from its middle, and not latitude and longitude."""
    kinds = [part.values[0].lower() for part in node.nodes if part.word == "CS" and part.values]
    return node.word == "GEOCCS" or kinds[:1] == ["cartesian"]


def _units(path: Path, system: _Node) -> list[float]:
    """Metres of the unit of each axis, or of the one that is given for all."""
    own = [node for node in system.nodes if node.word in ("UNIT", "LENGTHUNIT")]
    axes = [node for node in system.nodes if node.word == "AXIS"]
    each = [unit for axis in axes for unit in axis.nodes if unit.word in ("UNIT", "LENGTHUNIT")]
    return [_length(path, node) for node in (own[:1] * max(len(axes), 1) if own else each)]


def _length(path: Path, node: _Node) -> float:
    try:
        length = float(node.values[1])
    except (IndexError, ValueError):
        length = math.nan
    if not 0 < length < math.inf:
        raise DataError(path, f"has damaged WKT: {node.word} {node.values} has no length", FIX)
    return length
