"""`dataset.json`: what a dataset holds, how it was made, and the digests that every other file must have.

The text carries its own check. Its last member, ``checks``, holds a SHA-256 and a CRC32C of every 256 bytes
of the text before it, at fixed widths, so that damage anywhere, in the checks too, is found and placed.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pydantic
from crc32c import crc32c

from ..config import Model
from ..errors import DataError
from ..samplers.fields import Kind
from .checks import flipped_bit
from .records import Field

VERSION = 1
NAME = "dataset.json"
_BLOCK = 256
_CHECKS_START = b',\n "checks": {\n  "sha256": "'
_SUMS_START = b'",\n  "crc32c": "'


class Column(Model):
    """A column as ``schema`` lists it."""

    name: str
    dtype: str
    width: int
    kind: Kind

    def field(self) -> Field:
        """The column's `Field`."""
        return Field(np.dtype(self.dtype), self.width, self.kind)


class Range(Model):
    """Samples that lie together: shards and index rows, each as (first, stop)."""

    shards: tuple[int, int]
    rows: tuple[int, int]


class Figures(Model):
    """Figures of one column, one float64 for each element of a row; null where nothing is finite."""

    mean: list[float | None]
    std: list[float | None]
    min: list[float | None]
    max: list[float | None]
    p01: list[float | None]
    p99: list[float | None]


class SplitCounts(Model):
    """What one split holds; ``classes`` counts rows by class name, ``ignored`` those of no class;
    both count samples where those have no points.

    ``dropped`` counts rows of its files that were not finite; 0 where splits are blocks of ground, as such a
    row is in no block. ``annotations``: the rows of each.
    """

    samples: int
    points: int
    classes: dict[str, int]
    ignored: int
    dropped: int
    annotations: dict[str, int] = pydantic.Field(default_factory=dict)


class Counts(Model):
    """What the dataset holds; ``dropped`` counts source rows with a coordinate that was not finite.

    ``outside`` counts source rows outside ``data.bounds``.
    """

    samples: int
    points: int
    dropped: int
    outside: int
    splits: dict[str, SplitCounts]


class FileDigest(Model):
    """Size, SHA-256 in hex, and the CRC32C of every MiB of one file."""

    bytes: int
    sha256: str
    crc32c: list[int]


class SourceDigest(Model):
    """Size and SHA-256 of a raw file."""

    bytes: int
    sha256: str


class Skipped(Model):
    """Why a raw file was left out, and what it was then; no digest where it was not tried."""

    reason: str
    digest: SourceDigest | None


class Manifest(Model):
    """The content of ``dataset.json``, without its checks."""

    version: int
    columns: list[Column] = pydantic.Field(alias="schema")
    annotations: list[Column] = pydantic.Field(default_factory=list)
    classes: list[str]
    counts: Counts
    statistics: dict[str, Figures]
    splits: dict[str, list[Range]]
    row_order: str
    configuration: dict[str, Any]
    sources: dict[str, SourceDigest]
    skipped: dict[str, Skipped] = pydantic.Field(default_factory=dict)
    files: dict[str, FileDigest]
    fingerprint: str


class Damage(NamedTuple):
    """The first byte known to be wrong, and whether exactly one flipped bit explains it."""

    offset: int
    one_bit: bool


def fingerprint(
    columns: list[Column],
    annotations: list[Column],
    splits: dict[str, list[Range]],
    files: dict[str, FileDigest],
) -> str:
    """BLAKE2b in hex over schema, annotations, splits and the files' digests: equal for equal content."""
    content: dict[str, Any] = {
        "schema": [column.model_dump() for column in columns],
        "splits": {name: [part.model_dump() for part in parts] for name, parts in splits.items()},
        "files": {name: digest.sha256 for name, digest in files.items()},
    }
    if annotations:
        content["annotations"] = [annotation.model_dump() for annotation in annotations]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def seal(manifest: Manifest) -> bytes:
    """The text of ``dataset.json``, checks included."""
    text = json.dumps(manifest.model_dump(mode="json", by_alias=True), indent=1, sort_keys=True)
    body = text.removesuffix("\n}").encode()
    return body + _checks(body)


def unseal(path: Path, data: bytes) -> Manifest:
    """Check the text and read it. Raises DataError for another version and for damage, with its offset."""
    damage = find_damage(data)
    check_version(path, data, damage)
    if damage is not None:
        raise DataError(path, f"is damaged at offset {damage.offset}", "copy or build the dataset again")
    values = _parsed(data)
    values.pop("checks", None)
    try:
        return Manifest.model_validate_json(json.dumps(values))
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise DataError(path, f"key '{key}': {first['msg']}", "build the dataset again") from None


def check_version(path: Path, data: bytes, damage: Damage | None) -> None:
    """Raise DataError for a dataset of another version, unless one flipped bit made it look so."""
    values = _parsed(data)
    version = values.get("version")
    if values and version != VERSION and not (damage and damage.one_bit):
        cause = f"is of version {version!r}, this tamis reads version {VERSION}"
        raise DataError(path, cause, "build the dataset again")


def find_damage(data: bytes) -> Damage | None:
    """Where the text of ``dataset.json`` stops being what `seal` wrote; None if it is whole."""
    end = data.rfind(_CHECKS_START)
    body = data[: end if end >= 0 else _body_size(len(data))]
    wanted, found = _checks(body), data[len(body) :]
    if wanted == found:
        return None
    in_checks = Damage(len(body) + _first_difference(wanted, found), False)
    if hashlib.sha256(body).hexdigest().encode() in found:
        return in_checks
    _, marker, sums = found.partition(_SUMS_START)
    if not marker:
        return Damage(len(data), False)  # cut short
    for block, text in enumerate(sums.partition(b'"')[0].split()):
        part = body[block * _BLOCK : (block + 1) * _BLOCK]
        if b"%08x" % crc32c(part) != text:
            bit = flipped_bit(crc32c(part) ^ _hex(text), len(part))
            exact = bit is not None and _repaired(body, block * _BLOCK, bit) in found
            return Damage(block * _BLOCK + (bit // 8 if exact and bit is not None else 0), exact)
    return in_checks


def _parsed(data: bytes) -> dict[str, Any]:
    """The object that ``data`` is the JSON of; empty where it is none."""
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _hex(text: bytes) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return 0


def _repaired(body: bytes, start: int, bit: int) -> bytes:
    """SHA-256, in hex, of ``body`` with one bit turned back."""
    whole = bytearray(body)
    whole[start + bit // 8] ^= 1 << bit % 8
    return hashlib.sha256(whole).hexdigest().encode()


def _first_difference(a: bytes, b: bytes) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _checks(body: bytes) -> bytes:
    sums = " ".join(f"{crc32c(body[i : i + _BLOCK]):08x}" for i in range(0, len(body), _BLOCK))
    digest = hashlib.sha256(body).hexdigest()
    return b"%b%b%b%b%b" % (_CHECKS_START, digest.encode(), _SUMS_START, sums.encode(), b'"\n }\n}\n')


def _body_size(size: int) -> int:
    """Bytes before the checks of a text of ``size`` bytes: the checks grow by 9 bytes a block."""
    fixed = len(_checks(b"x")) - 9
    blocks = max(-(-(size - fixed) // (_BLOCK + 9)), 0)
    return max(size - fixed - 9 * blocks, 0)
