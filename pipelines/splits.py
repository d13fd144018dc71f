"""What a model learns from and what it is judged on: by files, listed or drawn, or by blocks of ground."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from ..config import Model
from ..errors import DataError
from .records import SPLITS

Cut = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, lt=1)]


class FilesSplit(Model):
    """Files (or patterns) that are evaluated; all others are trained on."""

    kind: Literal["files"]
    val: list[str] = Field(default_factory=list)
    test: list[str] = Field(default_factory=list)


class HashSplit(Model):
    """About these shares are evaluated: of the files or, where a file holds images, of the images.

    It is those with the lowest hashes of their names.
    """

    kind: Literal["hash"]
    val: Share = 0.0
    test: Share = 0.0

    @model_validator(mode="after")
    def _trains(self) -> HashSplit:
        if self.val + self.test >= 1:
            raise ValueError("val and test leave nothing to train on")
        return self

    def of(self, name: str) -> str:
        """The split of a file or image, told by its name alone: no other one added or left out moves it."""
        digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
        place = int.from_bytes(digest, "little") / 2.0**64
        if place < self.test:
            return "test"
        return "val" if place < self.test + self.val else "train"


class BlocksSplit(Model):
    """Ground in blocks of ``size`` [x, y]; 0 leaves an axis uncut.

    A block's number is floor(x / size x) + floor(y / size y), modulo ``of``.
    """

    kind: Literal["blocks"]
    size: Annotated[list[Cut], Field(min_length=2, max_length=2)]
    of: Annotated[int, Field(ge=2)] = 2
    test: list[int] = Field(default_factory=lambda: [1])
    val: list[int] = Field(default_factory=list)

    @model_validator(mode="after")
    def _numbers(self) -> BlocksSplit:
        if not any(self.size):
            raise ValueError("size [0, 0] cuts no axis")
        listed = self.test + self.val
        if len(set(listed)) < len(listed):
            raise ValueError("a block number is listed twice")
        if not all(0 <= number < self.of for number in listed):
            raise ValueError(f"block numbers go from 0 to {self.of - 1}")
        if len(listed) == self.of:
            raise ValueError("no block is left to train on")
        return self


Split = Annotated[FilesSplit | HashSplit | BlocksSplit, Field(discriminator="kind")]


def divide(
    xyz: NDArray[Any],
    split: FilesSplit | HashSplit | BlocksSplit | None,
    source: str,
    listed: Mapping[str, str],
) -> dict[str, NDArray[np.int64]]:
    """Rows of one scan, ascending, for each split that has any; an empty scan goes to its file's split.

    ``xyz``: float64 (n, 3), global. ``listed``: source -> split of the files that are val or test.
    Raises DataError where blocks are so small that float64 cannot number them.
    """
    if not isinstance(split, BlocksSplit):
        return {listed.get(source, "train"): np.arange(len(xyz))}
    number = np.zeros(len(xyz))
    for axis, size in enumerate(split.size):
        if size:
            reach = np.abs(xyz[:, axis]).max(initial=0)
            if not reach < size * 2.0**50:
                cause = f"reaches {reach:g}, too far from zero for blocks of {size:g}"
                raise DataError(source, cause, "raise data.split.size")
            number += np.floor(xyz[:, axis] / size)
    number = np.mod(number, split.of)
    members = {"val": np.isin(number, split.val), "test": np.isin(number, split.test)}
    members["train"] = ~(members["val"] | members["test"])
    rows = {name: np.flatnonzero(members[name]) for name in SPLITS}
    return {name: found for name, found in rows.items() if len(found)} or {"train": np.arange(0)}
