"""Samples in tars and TFRecord files: those that `convert_out` wrote, and others'."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from . import tfrecord, webdataset_tar
from .convert_card import FEATURE, Card, Stored, opened, quoted
from .convert_foreign import of_features, of_members
from .dali_files import Member, npy
from .tfrecord import Values

Kind = Literal["tar", "tfrecord"]


class Packed(ABC):
    """A sample in a file: ``where`` is its file and byte, ``source`` and ``tile`` its name if it has no card.

    All methods raise DataError for damage, and for what is missing.
    """

    def __init__(self, path: Path, where: str, source: str, tile: int) -> None:
        self.path, self.where, self.source, self.tile = path, where, source, tile

    @abstractmethod
    def card(self) -> Card | None:
        """Its card, None for others' samples."""

    @abstractmethod
    def array(self, stored: Stored) -> NDArray[Any]:
        """An array that the card lists."""

    @abstractmethod
    def fields(self) -> dict[str, NDArray[Any]]:
        """All that another's sample has: numbers by name, and as uint8 (n,) what is none."""

    def release(self) -> None:  # noqa: B027 - most hold nothing
        """Let go of what was read."""


class TarSample(Packed):
    """The members of one key."""

    def __init__(self, path: Path, name: str, key: str, members: dict[str, Member]) -> None:
        start = min(member.offset for member in members.values())
        super().__init__(path, f"{path}: sample '{key}' at byte {start}", f"{name}/{key}", 0)
        self._members = members

    def card(self) -> Card | None:
        """See `Packed`."""
        member = self._members.get("json")
        if member is None:
            return None
        where = f"{self.where}: member 'json' at byte {member.offset}"
        return opened(where, webdataset_tar.content(self.path, member))

    def array(self, stored: Stored) -> NDArray[Any]:
        """See `Packed`."""
        extension = f"{quoted(stored.name)}.npy"
        member = self._members.get(extension)
        if member is None:
            present = ", ".join(map(repr, self._members))
            raise DataError(self.where, f"lacks '{extension}': present {present}", "convert it again")
        where = f"{self.path}: member '{extension}' at byte {member.offset}"
        data = webdataset_tar.content(self.path, member)
        try:
            values = npy(np.frombuffer(data, np.uint8))
        except ValueError as error:
            raise DataError(where, str(error), "fetch it again") from None
        return stored.checked(where, values)

    def fields(self) -> dict[str, NDArray[Any]]:
        """See `Packed`."""
        contents = (
            (extension, webdataset_tar.content(self.path, member))
            for extension, member in self._members.items()
        )
        return of_members(self.where, contents)


class RecordSample(Packed):
    """A record; what it holds is kept until `release`."""

    def __init__(self, path: Path, name: str, number: int, start: int, data: bytes) -> None:
        super().__init__(path, f"{path}: record {number} at byte {start}", name, number)
        self._start = start
        self._features: dict[str, Values] | None = self._read(data)

    def release(self) -> None:
        """See `Packed`."""
        self._features = None

    def card(self) -> Card | None:
        """See `Packed`."""
        text = self._all().get(FEATURE)
        return opened(self.where, text[0]) if isinstance(text, list) and len(text) == 1 else None

    def array(self, stored: Stored) -> NDArray[Any]:
        """See `Packed`."""
        name = quoted(stored.name)
        values = self._all().get(name)
        if not isinstance(values, list) or len(values) != 1:
            present = ", ".join(map(repr, self._all()))
            raise DataError(
                self.where, f"lacks the bytes of feature '{name}': present {present}", "convert it again"
            )
        field = stored.field()
        if len(values[0]) != stored.rows * field.row_bytes:
            cause = f"feature '{name}' has {len(values[0])} bytes, {stored.rows * field.row_bytes} are wanted"
            raise DataError(self.where, cause, "convert it again")
        flat = np.frombuffer(values[0], field.dtype.newbyteorder("<")).astype(field.dtype)
        return stored.checked(self.where, flat.reshape(field.shape(stored.rows)))

    def fields(self) -> dict[str, NDArray[Any]]:
        """See `Packed`."""
        return of_features(self.where, self._all())

    def _all(self) -> dict[str, Values]:
        if self._features is None:
            self._features = self._read(tfrecord.record(self.path, self._start))
        return self._features

    def _read(self, data: bytes) -> dict[str, Values]:
        try:
            return tfrecord.features(data)
        except ValueError as error:
            raise DataError(self.where, f"holds no tf.train.Example ({error})", "write it again") from None


def samples(paths: Sequence[Path], names: Sequence[str], kind: Kind) -> Iterator[Packed]:
    """The samples of files, one after another; ``names``: what the files are called in sources."""
    for path, name in zip(paths, names, strict=True):
        if kind == "tar":
            for key, members in webdataset_tar.samples(path).items():
                yield TarSample(path, name, key, members)
        else:
            for number, (start, data) in enumerate(tfrecord.records(path)):
                yield RecordSample(path, name, number, start, data)
