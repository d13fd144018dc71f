"""Farthest-point sampling, equal to brute force.

The method is that of Gonzalez, "Clustering to minimize the maximum intercluster distance", 1985, which Eldar
et al., "The farthest point strategy", 1997, brought to sampling: pick the row farthest from all picked ones,
again and again. `search` does it without visiting every row for every pick.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from . import draw
from .gate import Cloud, as_array, as_float32, as_given, checked, share, whole
from .search import search
from .threads import each, threads_for

Start = int | Literal["random", "centroid"]

_MOST_ROWS = 2**31 - 1

_WORTH = 20_000
"""Fewest rows, sampled in about a millisecond, for which a thread is started."""


def farthest(xyz: Any, k: int, *, start: Start = 0, seed: int = 0) -> Any:
    """``k`` different rows, each the farthest from all before it; the first j are ``farthest(xyz, j)``.

    ``xyz``: (n, 3) real numbers, numpy or a torch CPU tensor. float64 and whole numbers are shifted by their
    first finite row, in float64, and then cast to float32. Returns int64 (k,), of the same kind as ``xyz``.
    Equal to brute force in float32 with the squared distance (dx*dx + dy*dy) + dz*dz; the lowest row wins a
    tie, so copies of a position come last, in their order.

    ``start``: the first row, an int in [0, n); "random": drawn from ``seed``; "centroid": the row farthest
    from the float64 mean. Rows with a non-finite coordinate are never picked (a warning counts them); if
    ``start`` is one, the next finite row takes its place, after the last row the first.

    Raises UsageError where k is above the number of finite rows or below 0, where start is out of range or
    unknown, where the cloud is so wide (about 1e19) that squared distances overflow float32, and for 2^31
    finite rows or more.
    """
    cloud = checked(xyz)
    return as_given(_picks(cloud, k, start, ("farthest", whole(seed, "seed"))), cloud.tensor)


def farthest_batch(
    xyz: Any, offsets: Any, k: Any, *, start: Start = 0, seed: int = 0, threads: int | None = None
) -> Any:
    """`farthest` of many clouds laid end to end.

    ``xyz``: (n, 3). ``offsets``: whole numbers (clouds + 1,), from 0 to n, not falling: cloud c is the rows
    [offsets[c], offsets[c + 1]). ``k``: an int, or one a cloud. ``start``: as for `farthest`, an int counts
    from each cloud's own first row; "random" draws for each cloud from ``seed`` and its number c.
    ``threads``: how many work at it, by default as many as there are CPUs and as pay.

    Returns (index, offsets), int64: index holds rows of ``xyz``, cloud c's picks at [offsets[c],
    offsets[c + 1]) of the returned offsets. The answer for a cloud does not depend on the others, but for a
    random start on its number; threads change nothing. Raises UsageError as `farthest` does, with the cloud
    named, and for offsets that misfit.
    """
    cloud, bounds, counts = checked(xyz), as_array(offsets, "offsets"), as_array(k, "k")
    if bounds.ndim != 1 or bounds.dtype.kind not in "iu" or not bounds.size:
        cause = f"{_shown(bounds)} have shape {bounds.shape} and dtype {bounds.dtype}"
        raise UsageError("offsets", cause, "give whole numbers of shape (clouds + 1,), rising from 0 to n")
    if bounds[0] != 0 or bounds[-1] != len(cloud.xyz) or (bounds[1:] < bounds[:-1]).any():
        cause = f"{_shown(bounds)} do not divide {len(cloud.xyz)} rows"
        raise UsageError("offsets", cause, f"give whole numbers rising from 0 to {len(cloud.xyz)}")
    ends, clouds, seed = bounds.tolist(), bounds.size - 1, whole(seed, "seed")
    if counts.shape not in ((), (clouds,)):
        cause = f"has shape {counts.shape}"
        raise UsageError("k", cause, f"give one number, or one for each of {clouds} clouds")
    wanted = np.broadcast_to(counts, clouds).tolist()
    found: list[NDArray[np.int64]] = [np.empty(0, np.int64)] * clouds
    failures: dict[int, UsageError] = {}
    waiting = deque(range(clouds))

    def work() -> None:
        # Clouds are begun in order, so the first that fails is known when those in work are done.
        while waiting and not failures:
            try:
                c = waiting.popleft()
            except IndexError:  # another thread was faster
                return
            part = cloud.part(ends[c], ends[c + 1])
            try:
                found[c] = ends[c] + _picks(part, wanted[c], start, ("farthest", seed, c))
            except UsageError as error:
                failures[c] = error

    most = min(clouds, len(cloud.xyz) // _WORTH) if threads is None else clouds
    each(work, [()] * threads_for(threads, most))
    if failures:
        c = min(failures)
        error = failures[c]
        raise UsageError(f"cloud {c}, {error.where}", error.cause, error.fix) from None
    index = np.concatenate([np.empty(0, np.int64), *found])
    picked = np.cumsum([0, *map(len, found)], dtype=np.int64)
    return as_given(index, cloud.tensor), as_given(picked, cloud.tensor)


def _shown(offsets: NDArray[Any]) -> str:
    return np.array2string(offsets, threshold=10, separator=", ")


def _picks(cloud: Cloud, k: int, start: Start, draw_for: tuple[int | str, ...]) -> NDArray[np.int64]:
    """`farthest` with a random start that is drawn for ``draw_for``."""
    n = len(cloud.xyz if cloud.rows is None else cloud.rows)
    k = share(k, n, "farthest", "finite rows")
    if n > _MOST_ROWS:
        raise UsageError("farthest", f"has {n} finite rows", f"split it into clouds of at most {_MOST_ROWS}")
    first = _first(cloud, start, draw_for)
    index = search(as_float32(cloud, "farthest"), k, first) if k else np.empty(0, np.int64)
    return index if cloud.rows is None else cloud.rows[index]


def _first(cloud: Cloud, start: Start, draw_for: tuple[int | str, ...]) -> int:
    """The first pick, as a row of the finite ones."""
    n = len(cloud.xyz)
    finite_rows = n if cloud.rows is None else len(cloud.rows)
    if start == "random":
        return draw.key(*draw_for) % max(finite_rows, 1)
    if start == "centroid":
        finite = cloud.finite
        offset = finite.astype(np.float64) - finite.mean(axis=0, dtype=np.float64) if len(finite) else finite
        return int(np.argmax(np.square(offset).sum(axis=1))) if len(finite) else 0
    if isinstance(start, str):
        raise UsageError("farthest", f"start is {start!r}", "give a row, 'random' or 'centroid'")
    row = whole(start, "start")
    if not 0 <= row < max(n, 1):
        raise UsageError("farthest", f"start is {row}, of {n} rows", f"give 0 to {max(n - 1, 0)}")
    return row if cloud.rows is None else int(np.searchsorted(cloud.rows, row) % max(finite_rows, 1))
