"""Random rows without replacement, the same on every machine."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from . import draw
from .gate import whole


def random(n: int, k: int, *, seed: int = 0, id: int = 0) -> NDArray[np.int64]:
    """``k`` different rows of ``n``: those with the smallest hashes of (seed, id, row), smallest first.

    Returns int64 (k,). The first j of them are ``random(n, j)``, and all n are a shuffle. Two rows never have
    equal hashes, so there are no ties. Raises UsageError unless 0 <= k <= n.
    """
    n, k = whole(n, "n"), whole(k, "k")
    if not 0 <= k <= n:
        raise UsageError("random", f"cannot take {k} different rows of {n}", f"ask for 0 to {n}")
    hashes = draw.hashes(draw.key("random", seed, id), n)
    rows = np.arange(n) if k == n else np.argpartition(hashes, k)[:k]
    return rows[np.argsort(hashes[rows])]
