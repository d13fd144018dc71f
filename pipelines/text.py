"""Texts to token samples: the documents of a split one after another, cut into pieces of one length.

A token is a byte; `END` follows each document, so that documents end where it stands and no token is padding.
What is kept in memory is one shard, however large the corpus.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..metrics import Meter
from ..samplers.fields import kind_of
from . import shards
from .finish import About, Described, finish, warn_of_empty_splits
from .manifest import Column, Counts, SourceDigest, SplitCounts
from .records import SPLITS
from .settings import DataSettings, TextSettings
from .shard_writer import ShardWriter
from .stored import Stored

log = logging.getLogger(__name__)

END = 256
"""The token after each document."""

VOCABULARY = 257
"""Tokens there are: the bytes, and the end of a document."""

TOKENS = "tokens"
"""The annotation's name."""

FILES = ("**/*.txt",)
"""The files that are read where none are named."""

_CHUNK = 1 << 20

Tokens = NDArray[np.uint16]


@dataclass
class _Split:
    """One split: its shards by their samples, what is stored in them, and where each sample begins."""

    name: str
    sizes: list[int] = field(default_factory=list)
    stored: dict[str, Stored] = field(default_factory=dict)
    source: list[str] = field(default_factory=list)
    tile: list[int] = field(default_factory=list)
    tokens: int = 0


def without_hidden(root: Path, names: Sequence[str]) -> list[str]:
    """The names without those of hidden files, and of files in hidden folders, which are told of.

    Tools keep texts of their own there. Raises DataError where all are hidden.
    """
    found = [name for name in names if not any(part.startswith(".") for part in name.split("/"))]
    if not found:
        raise DataError(root, "holds no *.txt file but hidden ones", "name others in data.files")
    if len(found) < len(names):
        first = min({*names} - {*found})
        log.warning(
            "%s: left out %d hidden files, as %s: data.files may name them",
            *(root, len(names) - len(found), first),
        )
    return found


def assemble(
    folder: Path,
    root: Path,
    names: Sequence[str],
    listed: Mapping[str, str],
    settings: DataSettings,
    meter: Meter,
) -> None:
    """Write a whole dataset of token samples to ``folder``, ``dataset.json`` last.

    ``names``: the files below ``root``, in the order of the documents; ``listed``: those of val and test.
    Each file is read once. The bytes depend on the files and the settings alone: nothing is kept of a build
    that is cut, the next one begins anew. Raises DataError for a file that cannot be read.
    """
    assert settings.text is not None
    sources: dict[str, SourceDigest] = {}
    splits: list[_Split] = []
    first = 0  # shard of the split
    for name in SPLITS:
        own = [source for source in names if listed.get(source, "train") == name]
        if own:
            documents = Documents(root, own, meter)
            splits.append(_write(folder, name, first, documents, settings.text, settings.shard_mb, meter))
            first += len(splits[-1].sizes)
            sources |= documents.sources
    warn_of_empty_splits({split.name for split in splits}, settings)
    sizes = [size for split in splits for size in split.sizes]
    behind = np.cumsum(sizes).tolist()
    layout = [range(stop - size, stop) for stop, size in zip(behind, sizes, strict=True)]
    samples = behind[-1]
    counts = {
        split.name: SplitCounts(
            samples=len(split.tile),
            points=0,
            classes={},
            ignored=0,
            dropped=0,
            annotations={TOKENS: split.tokens},
        )
        for split in splits
    }
    about = About(
        source=[source for split in splits for source in split.source],
        tile=[tile for split in splits for tile in split.tile],
        split=[split.name for split in splits for _ in split.tile],
        origin=np.zeros((samples, 3)),
        bounds=np.zeros((samples, 6)),
        label=np.full(samples, -1, np.int32).tolist(),
    )
    described = Described(
        columns=[],
        annotations=[_column()],
        counts=Counts(samples=samples, points=0, dropped=0, outside=0, splits=counts),
        moments={},
        row_order="source",
        sources=dict(sorted(sources.items())),
    )
    known = {name: stored for split in splits for name, stored in split.stored.items()}
    finish(folder, about, layout, described, settings, known)


class Documents:
    """The tokens of files, in pieces; what is met on the way is noted.

    ``starts``: the place of each document in the sequence of all tokens. ``sources``: the files' digests.
    """

    def __init__(self, root: Path, names: Sequence[str], meter: Meter) -> None:
        self._root, self._names, self._meter = root, names, meter
        self.starts: list[int] = []
        self.sources: dict[str, SourceDigest] = {}

    def __iter__(self) -> Iterator[Tokens]:
        """All tokens, uint16 (n,) at a time."""
        end, at = np.array([END], np.uint16), 0
        for name in self._names:
            self.starts.append(at)
            size, sha256 = 0, hashlib.sha256()
            for chunk in self._chunks(self._root / name):
                size += len(chunk)
                sha256.update(chunk)
                yield np.frombuffer(chunk, np.uint8).astype(np.uint16)
            self.sources[name] = SourceDigest(bytes=size, sha256=sha256.hexdigest())
            self._meter.add("build.read", items=1)
            yield end
            at += size + 1

    def _chunks(self, path: Path) -> Iterator[bytes]:
        try:
            with path.open("rb", buffering=0) as file:
                while True:
                    with self._meter.time("build.read", items=0):
                        chunk = file.read(_CHUNK)
                    if not chunk:
                        return
                    self._meter.add("build.read", points_out=len(chunk), bytes=len(chunk))
                    yield chunk
        except OSError as error:
            cause = f"cannot be read ({error.strerror})"
            raise DataError(path, cause, "check its rights, or leave it out with data.files") from None

    def places(self, at: NDArray[np.int64]) -> tuple[list[str], list[int]]:
        """The file and the byte in it of the tokens at ``at``; its size is the place of its end."""
        starts = np.array(self.starts, np.int64)
        number = np.searchsorted(starts, at, "right") - 1
        return [self._names[i] for i in number.tolist()], (at - starts[number]).tolist()


def regroup(pieces: Iterable[Tokens], size: int) -> Iterator[Tokens]:
    """The same tokens, ``size`` at a time, the last ones fewer; each array is valid until the next."""
    room, filled = np.empty(size, np.uint16), 0
    for piece in pieces:
        taken = 0
        while taken < len(piece):
            n = min(len(piece) - taken, size - filled)
            room[filled : filled + n] = piece[taken : taken + n]
            taken, filled = taken + n, filled + n
            if filled == size:
                yield room
                filled = 0
    if filled:
        yield room[:filled]


def _write(
    folder: Path,
    name: str,
    first: int,
    documents: Documents,
    text: TextSettings,
    shard_mb: int,
    meter: Meter,
) -> _Split:
    """Write the shards of one split, the first one with number ``first``."""
    split, column = _Split(name), _column()
    length, field = text.length, column.field()
    per_shard = max((shard_mb << 20) // (length * field.row_bytes), 1)
    for tokens in regroup(documents, per_shard * length):
        samples = -(-len(tokens) // length)
        rows = [length] * (samples - 1) + [len(tokens) - length * (samples - 1)]
        path = folder / shards.shard_name(first + len(split.sizes), TOKENS)
        with meter.time("build.write", items=samples), ShardWriter(path, {TOKENS: field}) as shard:
            shard.write({TOKENS: tokens}, rows)
            split.stored[path.name] = shard.finish()
        meter.add("build.write", points_in=len(tokens), points_out=len(tokens), bytes=tokens.nbytes)
        split.sizes.append(samples)
        split.tokens += len(tokens)
    split.source, split.tile = documents.places(np.arange(0, split.tokens, length))
    return split


def _column() -> Column:
    dtype = np.dtype(np.uint16)
    return Column(name=TOKENS, dtype=dtype.name, width=1, kind=kind_of(TOKENS, dtype))
