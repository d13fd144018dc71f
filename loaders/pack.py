"""Puts the clouds of a batch into arrays of their own: dense with a mask, or ragged with offsets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..pipelines.ops import Columns, SerialiseSettings
from ..pipelines.ops.rows import count
from ..pipelines.records import Field
from ..pipelines.run_threads import Threads
from ..samplers.curve import serialise

if TYPE_CHECKING:
    import torch

Empty = Callable[[str, tuple[int, ...], np.dtype[Any]], NDArray[Any]]
"""``empty(name, shape, dtype)``: room for one array of a batch, with anything in it."""


class Ragged(NamedTuple):
    """Arrays of different numbers of rows, one after another: ``values`` (n, ...).

    That of cloud i is the rows ``offsets[i]`` to ``offsets[i + 1]``; ``offsets`` is int64 (b + 1,).
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64]


RESERVED = ("ids", "weight", "mask", "offsets", "transposed")


@dataclass(frozen=True)
class Batch:
    """One replica's part of a global batch; the arrays are its own.

    ``step``: global batches before this one. ``ids`` uint64 (b,), 0 where ``weight`` float32 (b,) is 0: a
    place without a sample, so that all replicas have the same b. Dense: columns (b, k, ...) and ``mask`` bool
    (b, k), False on repeated rows; ``label``, where the dataset has classes, is -1 there. Ragged: columns
    (n, ...), cloud i in rows ``offsets[i]`` to ``offsets[i + 1]`` of int64 (b + 1,). ``k`` is 0 where
    nothing limits the rows. ``annotations``: those that were asked for, with offsets of their own.
    """

    step: int
    epoch: int
    ids: NDArray[np.uint64]
    columns: Columns
    mask: NDArray[np.bool_] | None
    offsets: NDArray[np.int64] | None
    weight: NDArray[np.float32]
    k: int
    annotations: dict[str, Ragged] = field(default_factory=dict)

    def torch(self) -> dict[str, torch.Tensor]:
        """Columns, ids, weight and mask or offsets as tensors that share the batch's memory.

        An annotation NAME is ``NAME`` and ``NAME.offsets``.
        """
        from torch import from_numpy

        arrays: Columns = {**self.columns, "ids": self.ids, "weight": self.weight}
        if self.mask is not None:
            arrays["mask"] = self.mask
        if self.offsets is not None:
            arrays["offsets"] = self.offsets
        for name, (values, offsets) in self.annotations.items():
            arrays |= {offsets_of(name): offsets, name: values}
        return {name: from_numpy(values) for name, values in arrays.items()}


def offsets_of(annotation: str) -> str:
    """What the offsets of an annotation are called among a batch's arrays."""
    return f"{annotation}.offsets"


def fresh(_name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """An `Empty` that takes new memory for each array."""
    return np.empty(shape, dtype)


def dense(
    clouds: list[Columns],
    fields: dict[str, Field],
    places: int,
    k: int,
    order: SerialiseSettings | None,
    threads: Threads,
    empty: Empty = fresh,
) -> tuple[Columns, NDArray[np.bool_]]:
    """Clouds of at most k rows as columns (places, k, ...) and their mask (places, k).

    A shorter cloud repeats its rows in turn; an empty one, or a place without a cloud, is zero. With
    ``order`` the k rows are sorted along a curve, and column ``transposed`` int64 (places, k) sorts them
    along its transpose (Wu et al., Point Transformer V3, 2024).
    """
    columns = {name: empty(name, field.shape(places, k), field.dtype) for name, field in fields.items()}
    mask = empty("mask", (places, k), np.dtype(np.bool_))
    if order:
        columns["transposed"] = empty("transposed", (places, k), np.dtype(np.int64))

    def fill(i: int) -> None:
        n = count(clouds[i]) if i < len(clouds) else 0
        if not n:
            mask[i] = False
            for values in columns.values():
                values[i] = 0
            if order:
                columns["transposed"][i] = np.arange(k)
            return
        index = np.arange(k) % n
        if order:
            sort, columns["transposed"][i] = serialise(clouds[i]["xyz"][index], order.cell)
            index = index[sort]
            mask[i] = sort < n
        else:
            mask[i] = np.arange(k) < n
        whole = n == k and not order
        for name, values in clouds[i].items():
            if whole:
                columns[name][i] = values
            else:
                np.take(values, index, axis=0, out=columns[name][i], mode="clip")

    threads.each(fill, places, None if order else sum(values.nbytes for values in columns.values()))
    return columns, mask


def completed(columns: Columns, sizes: NDArray[np.int64], empty: Empty = fresh) -> NDArray[np.bool_]:
    """What `dense` does for clouds that lie in columns (places, k, ...), ``sizes[i]`` rows each: the mask."""
    k = next(iter(columns.values())).shape[1]
    for i in np.flatnonzero(sizes < k):
        n = int(sizes[i])
        for values in columns.values():
            values[i, n:] = values[i, np.arange(n, k) % n] if n else 0
    mask = empty("mask", (len(sizes), k), np.dtype(np.bool_))
    np.less(np.arange(k), sizes[:, None], out=mask)
    return mask


def ragged(
    clouds: list[Columns],
    fields: dict[str, Field],
    places: int,
    threads: Threads,
    empty: Empty = fresh,
    called: str = "offsets",
) -> tuple[Columns, NDArray[np.int64]]:
    """Clouds one after another as columns (n, ...) and offsets int64 (places + 1,), made under that name."""
    offsets = edges(np.array([count(cloud) for cloud in clouds], np.int64), places, empty, called)
    columns = {
        name: empty(name, field.shape(int(offsets[-1])), field.dtype) for name, field in fields.items()
    }

    def fill(i: int) -> None:
        for name, values in clouds[i].items():
            columns[name][offsets[i] : offsets[i + 1]] = values

    threads.each(fill, len(clouds), sum(values.nbytes for values in columns.values()))
    return columns, offsets


def edges(
    sizes: NDArray[np.int64], places: int, empty: Empty = fresh, called: str = "offsets"
) -> NDArray[np.int64]:
    """Offsets int64 (places + 1,) of clouds of ``sizes`` rows, and of empty ones after them."""
    offsets = empty(called, (places + 1,), np.dtype(np.int64))
    offsets[0] = 0
    np.cumsum(sizes, out=offsets[1 : len(sizes) + 1])
    offsets[len(sizes) + 1 :] = offsets[len(sizes)]
    return offsets
