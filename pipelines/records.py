"""The sample: one record of a dataset, a named bundle of arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..samplers.fields import Kind

Array = NDArray[Any]

CHECK_ROWS = 256
"""Rows between two checksums: a read is widened to whole blocks of this many rows."""

IGNORED = -1
"""The label of a row that counts for nothing: its code belongs to no class."""

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Field:
    """How one column is stored: element ``dtype``, ``width`` elements a row (1: a scalar), and its kind."""

    dtype: np.dtype[Any]
    width: int
    kind: Kind

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * self.width

    def shape(self, *rows: int) -> tuple[int, ...]:
        """Shape of a column of ``rows``: (*rows,), or (*rows, width) for a vector."""
        return rows if self.width == 1 else (*rows, self.width)

    def empty(self, rows: int) -> Array:
        """An uninitialised column of ``rows`` rows."""
        return np.empty(self.shape(rows), self.dtype)


@dataclass(frozen=True)
class Sample:
    """One record.

    ``columns``: name -> array with one row a point; ``xyz`` is float32 (n, 3), counted from ``origin``.
    ``annotations``: name -> array with rows of its own (boxes, tokens, image bytes).
    ``kinds``: name -> how the values move and merge. ``origin``: float64 (3,) in the source's units.
    ``tile`` is the number of the sample inside its source.
    """

    columns: Mapping[str, Array]
    kinds: Mapping[str, Kind]
    origin: NDArray[np.float64]
    id: int
    name: str
    source: str
    tile: int = 0
    annotations: Mapping[str, Array] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Number of rows of every column."""
        return len(next(iter(self.columns.values()))) if self.columns else 0

    def positions(self) -> NDArray[np.float64]:
        """Global coordinates, float64 (n, 3): what the source held, to 0.5 mm where its unit is a metre."""
        return self.columns["xyz"].astype(np.float64) + self.origin


def sample_name(source: str, tile: int) -> str:
    """The readable name of tile ``tile`` of ``source``."""
    return f"{source}#{tile}"


def sample_id(source: str, tile: int) -> int:
    """The uint64 identity of a sample: the first 8 bytes of BLAKE2b over its name, little-endian."""
    digest = hashlib.blake2b(sample_name(source, tile).encode()).digest()
    return int.from_bytes(digest[:8], "little")
