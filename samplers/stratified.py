"""Rows by quota: so many of each class, or of each voxel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..errors import UsageError
from . import draw
from .gate import as_array, as_given, is_tensor, share, whole
from .random import random

Quota = Literal["equal", "proportional"] | Mapping[int, int]

_IGNORED = -1


def stratified(strata: Any, k: int, *, quota: Quota = "equal", seed: int = 0, id: int = 0) -> Any:
    """``k`` different rows, of each stratum its quota of them.

    ``strata``: whole numbers (n,), numpy or a torch CPU tensor, one a row: class labels, or the ``inverse``
    of `voxel`. Rows of -1 (no class, no finite position) are never taken.
    ``quota``:

    - "equal": as even as can be. Strata with fewer rows than their share give all, and the others share the
      rest evenly. What cannot be shared evenly goes, one row each, to the strata with rows left that have the
      smallest hashes of (seed, id, stratum); so where there are more strata than ``k``, k of them give a row.
    - "proportional": by largest remainder (Hamilton, 1792) of k times a stratum's share of the rows; of equal
      remainders the smallest hash of (seed, id, stratum) wins. Where k is at least the number of strata,
      those whose share is below one row give one, and the others share the rest in the same way.
    - a mapping, stratum -> rows: exactly these, ``k`` in all; strata not named give none.

    A stratum gives its rows with the smallest hashes of (seed, id, row), and all come smallest hash first:
    they are in the order of ``random(n, n, seed=seed, id=id)``. Returns int64 (k,), numpy or
    torch as ``strata`` is. How strata are numbered does not matter, but for who gets what cannot be shared.

    Raises UsageError where k is below 0 or above the rows there are, for a mapping that names an unknown
    stratum, asks for more rows than it has or has another sum than k, and for another shape or dtype.
    """
    labels, seed, id = as_array(strata, "strata"), whole(seed, "seed"), whole(id, "id")
    if labels.ndim != 1 or labels.dtype.kind not in "iub":
        cause = f"has shape {labels.shape} and dtype {labels.dtype}"
        raise UsageError("strata", cause, "give one whole number a row, (n,)")
    values, codes, counts = _numbered(labels)
    k = share(k, int(counts.sum()), "stratified", "rows with a stratum")
    if isinstance(quota, Mapping):
        quotas = _asked(quota, values, counts, k)
    else:
        rank = np.argsort(np.argsort(draw.keys(len(values), "strata", seed, id, values.astype(np.uint64))))
        if quota == "equal":
            quotas = _equal(counts, k, rank)
        elif quota == "proportional":
            quotas = _proportional(counts, k, rank)
        else:
            raise UsageError(
                "stratified", f"quota is {quota!r}", "choose 'equal', 'proportional' or {stratum: rows}"
            )
    order = random(len(codes), len(codes), seed=seed, id=id)
    return as_given(_taken(order, codes, quotas, k), is_tensor(strata))


def _numbered(labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]]:
    """The strata in rising order, of each row the number of its own (-1: ignored), and the rows of each."""
    codes = np.full(len(labels), _IGNORED, np.int64)
    kept = labels != _IGNORED if labels.dtype.kind == "i" else np.ones(len(labels), bool)
    labels = labels[kept]
    low, high = (int(labels.min()), int(labels.max())) if len(labels) else (0, 0)
    if high - low > 4 * len(labels) + 1024:
        number = np.unique(labels, return_inverse=True)[1]
    else:  # by counting, as sorting a million rows takes ten times as long
        above = (labels.astype(np.uint64) - np.uint64(low % 2**64)).astype(np.int64)
        number = (np.cumsum(np.bincount(above, minlength=1) > 0) - 1)[above]
    counts = np.bincount(number)
    values = np.empty(len(counts), labels.dtype)
    values[number] = labels
    codes[kept] = number
    return values, codes, counts


def _asked(
    quota: Mapping[int, int], values: NDArray[Any], counts: NDArray[np.int64], k: int
) -> NDArray[np.int64]:
    """The rows asked of each stratum, refused where they cannot be had."""
    at = {value: number for number, value in enumerate(values.tolist())}
    quotas = np.zeros(len(values), np.int64)
    for stratum, rows in quota.items():
        name, rows = f"quota[{stratum!r}]", whole(rows, f"quota[{stratum!r}]")
        if stratum not in at:
            known = ", ".join(map(str, values[:20].tolist())) + (", ..." if len(values) > 20 else "")
            raise UsageError(name, "there is no such stratum", f"there are {known or 'none'}")
        if not 0 <= rows <= counts[at[stratum]]:
            held = counts[at[stratum]]
            raise UsageError(name, f"cannot take {rows} different rows of {held}", f"ask for 0 to {held}")
        quotas[at[stratum]] = rows
    if quotas.sum() != k:
        raise UsageError("stratified", f"quota sums to {quotas.sum()}, k is {k}", "make them equal")
    return quotas


def _equal(counts: NDArray[np.int64], k: int, rank: NDArray[np.int64]) -> NDArray[np.int64]:
    """Fill all strata to the highest level for which k rows are enough, then one more where rank is low."""
    if not len(counts):
        return counts
    rising = np.sort(counts)
    full = np.concatenate(([0], np.cumsum(rising)))
    # What it takes to fill all to the level of the j-th smallest; beyond the last that fits, share evenly.
    needed = full[:-1] + rising * (len(counts) - np.arange(len(counts)))
    j = int(np.searchsorted(needed, k, side="right"))
    level = int((k - full[j]) // (len(counts) - j)) if j < len(counts) else int(rising[-1])
    quotas = np.minimum(counts, level)
    open_ = np.flatnonzero(counts > level)
    quotas[open_[np.argsort(rank[open_])][: k - int(quotas.sum())]] += 1
    return quotas


def _proportional(counts: NDArray[np.int64], k: int, rank: NDArray[np.int64]) -> NDArray[np.int64]:
    """Largest remainder among the strata whose share is at least a row; the others give one if all can."""
    if not len(counts):
        return counts
    small = np.zeros(len(counts), bool)
    while k >= len(counts):  # taking the small ones out lowers the shares of the rest
        left, rows = k - int(small.sum()), int(counts[~small].sum())
        below = ~small & (counts < -(-rows // max(left, 1)))  # left * count / rows < 1
        if not below.any():
            break
        small |= below
    quotas = small.astype(np.int64)
    large = np.flatnonzero(~small)
    if len(large):
        left, rows = k - int(small.sum()), int(counts[large].sum())
        shares = [divmod(left * count, rows) for count in counts[large].tolist()]  # beyond int64 too
        quotas[large] = [share for share, _ in shares]
        remainders = np.array([-float(remainder) for _, remainder in shares])
        most = np.lexsort((rank[large], remainders))
        quotas[large[most[: k - int(quotas.sum())]]] += 1
    return quotas


@njit(cache=True, nogil=True, error_model="numpy")
def _taken(
    order: NDArray[np.int64], codes: NDArray[np.int64], quotas: NDArray[np.int64], k: int
) -> NDArray[np.int64]:
    """The first rows of ``order`` that fill the quotas."""
    left, index, m = quotas.copy(), np.empty(k, np.int64), 0
    for i in range(len(order)):
        if m == k:
            break
        code = codes[order[i]]
        if code >= 0 and left[code] > 0:
            left[code] -= 1
            index[m] = order[i]
            m += 1
    return index
