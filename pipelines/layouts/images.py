"""Image files: told by how they begin, and whether they are whole, without decoding a pixel.

JPEG (ITU-T T.81, annex B), PNG (ISO 15948), WebP (RFC 9649) and BMP (its BITMAPINFOHEADER, and the older
BITMAPCOREHEADER). What follows the end of an image is left alone: cameras write there.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

from ...errors import DataError

_FIX = "copy it again"
_PNG = b"\x89PNG\r\n\x1a\n"
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
"""A marker within the data of a JPEG scan: not a stuffed byte, a restart or padding."""
_LONE = (0x01, *range(0xD0, 0xD8))
"""Markers of JPEG without a segment: TEM and restarts."""
_EOI, _SOS = 0xD9, 0xDA
_CORE = 12
"""Bytes of a BITMAPCOREHEADER."""


def check_image(path: Path, data: bytes) -> None:
    """Refuse what is no whole image: DataError with the offset where it ends or is damaged."""
    for start, check in _CHECKS.items():
        if data.startswith(start):
            check(path, data)
            return
    if not data:
        raise DataError(path, "is empty", _FIX)
    cause = f"is no JPEG, PNG, WebP or BMP image: it starts with {data[:8]!r}"
    raise DataError(path, cause, "convert it, or leave it out with data.files")


def _jpeg(path: Path, data: bytes) -> None:
    at, scans = 2, 0
    while True:
        begin = at
        while data[at : at + 1] == b"\xff":  # any number of them may stand before a marker
            at += 1
        if at >= len(data):
            raise _cut(path, data, "where a JPEG should go on")
        code = data[at]
        if at == begin or code == 0:
            raise _damaged(path, begin, f"has {data[begin : begin + 2]!r}, no marker of JPEG")
        at += 1
        if code == _EOI:
            if not scans:
                raise _damaged(path, begin, "ends a JPEG that holds no pixels")
            return
        if code in _LONE:
            continue
        if len(data) < at + 2:
            raise _cut(path, data, f"inside the JPEG segment at offset {begin}")
        size = int.from_bytes(data[at : at + 2], "big")
        if size < 2:
            raise _damaged(path, at, f"gives a JPEG segment {size} bytes")
        at += size
        if len(data) < at:
            raise _cut(path, data, f"inside the JPEG segment at offset {begin}")
        if code == _SOS:
            scans += 1
            marker = _MARKER.search(data, at)
            if marker is None:
                raise _cut(path, data, f"inside the JPEG's pixels, which begin at offset {at}")
            at = marker.start()


def _png(path: Path, data: bytes) -> None:
    at, pixels = len(_PNG), False
    while True:
        head = data[at : at + 8]
        size, kind = int.from_bytes(head[:4], "big"), head[4:]
        if len(data) < at + 12 + size:
            raise _cut(
                path, data, f"inside the PNG chunk at offset {at}" if head else "where a PNG should go on"
            )
        behind = at + 8 + size
        if zlib.crc32(memoryview(data)[at + 4 : behind]) != int.from_bytes(data[behind : behind + 4], "big"):
            raise _damaged(path, at, f"has a PNG chunk {kind!r} that its checksum does not fit")
        if (at == len(_PNG)) != (kind == b"IHDR"):
            raise _damaged(path, at, f"has a PNG chunk {kind!r} in a place that is not its own")
        pixels |= kind == b"IDAT"
        if kind == b"IEND":
            if not pixels:
                raise _damaged(path, at, "ends a PNG that holds no pixels")
            return
        at = behind + 4


def _webp(path: Path, data: bytes) -> None:
    if len(data) >= 12 and data[8:12] != b"WEBP":
        raise _damaged(path, 8, f"has {data[8:12]!r}: a RIFF file, but no WebP")
    end = 8 + int.from_bytes(data[4:8], "little")
    if len(data) < max(end, 12):
        raise _cut(path, data, f"inside a WebP of {end} bytes")
    at, pixels = 12, False
    while at < end:
        kind, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        if at + 8 + size > end:
            raise _damaged(path, at, f"has a WebP chunk {kind!r} that ends behind its file")
        pixels |= kind in (b"VP8 ", b"VP8L", b"ANMF")
        at += 8 + size + size % 2
    if not pixels:
        raise _damaged(path, 12, "begins a WebP that holds no pixels")


def _bmp(path: Path, data: bytes) -> None:
    if len(data) < 54 and (len(data) < 26 or data[14:18] != struct.pack("<I", _CORE)):
        raise _cut(path, data, "inside the header of a BMP")
    (start,) = struct.unpack_from("<I", data, 10)
    packing = stated = 0
    if int.from_bytes(data[14:18], "little") == _CORE:
        width, height, _, bits = struct.unpack_from("<HHHH", data, 18)
    else:
        width, height, _, bits, packing, stated = struct.unpack_from("<iiHHII", data, 18)
    if width <= 0 or not height or bits not in (0, 1, 2, 4, 8, 16, 24, 32):
        raise _damaged(path, 18, f"has a BMP of {width} x {height} pixels of {bits} bits")
    plain = packing in (0, 3, 6)  # otherwise runs or a JPEG, whose bytes are stated
    size = (width * bits + 31) // 32 * 4 * abs(height) if plain else stated
    if len(data) < start + size:
        raise _cut(path, data, f"inside the pixels of a BMP, {size} bytes from offset {start} on")


def _cut(path: Path, data: bytes, where: str) -> DataError:
    return DataError(path, f"is cut: it ends at offset {len(data)}, {where}", _FIX)


def _damaged(path: Path, at: int, what: str) -> DataError:
    return DataError(path, f"is damaged: offset {at} {what}", _FIX)


_CHECKS: dict[bytes, Callable[[Path, bytes], None]] = {
    b"\xff\xd8\xff": _jpeg,
    _PNG: _png,
    b"RIFF": _webp,
    b"BM": _bmp,
}
