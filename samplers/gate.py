"""The gate before every sampler: a cloud in a known form, or a refusal that names what was given."""

from __future__ import annotations

import logging
import operator
import os
import sys
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from .bounds import bounds
from .tables import Triple

log = logging.getLogger(__name__)

_OVERFLOW = 3e38

_MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
"""Bytes that this machine has."""


class Cloud(NamedTuple):
    """A cloud that passed the gate.

    ``xyz``: float32 or float64 (n, 3), C order, native bytes. ``rows``: int64, the rows whose coordinates
    are all finite, or None where all are. ``low``, ``high``: the lowest and highest finite x, y and z, of a
    `part` those of the whole; 0 where there are none. ``tensor``: it came as a torch tensor.
    """

    xyz: NDArray[Any]
    rows: NDArray[np.int64] | None
    low: Triple
    high: Triple
    tensor: bool

    @property
    def finite(self) -> NDArray[Any]:
        """The finite rows, float32 or float64 (m, 3)."""
        return self.xyz if self.rows is None else self.xyz[self.rows]

    def part(self, first: int, last: int) -> Cloud:
        """The rows [first, last)."""
        rows = None
        if self.rows is not None:
            a, b = np.searchsorted(self.rows, (first, last))
            rows = self.rows[a:b] - first if b - a < last - first else None
        return Cloud(self.xyz[first:last], rows, self.low, self.high, self.tensor)


def checked(xyz: Any) -> Cloud:
    """Convert a cloud (n, 3) to float32 or float64 in C order and find its finite rows.

    float16 becomes float32, whole numbers become float64; any stride or byte order will do. Rows with a
    non-finite coordinate are counted in a warning. Raises UsageError, with dtype and shape, for the rest.
    """
    array = as_rows(xyz)
    dtype = array.dtype
    floats = np.float32 if dtype.kind == "f" and dtype.itemsize <= 4 else np.float64
    converted = np.ascontiguousarray(array, dtype=floats)
    if dtype.kind in "iu" and dtype.itemsize == 8 and array.size and np.abs(converted).max() > 2.0**53:
        raise UsageError("xyz", f"has {dtype} values beyond 2^53", "subtract an origin first")
    (low, high, finite), rows = _ends(converted), None
    if not finite:
        rows = np.flatnonzero(np.isfinite(converted).all(axis=1))
        bad, n = len(converted) - len(rows), len(converted)
        log.warning("%d of %d rows have a non-finite coordinate and are left out", bad, n)
        low, high, _ = _ends(converted[rows])
    return Cloud(converted, rows, low, high, is_tensor(xyz))


def as_rows(xyz: Any) -> NDArray[Any]:
    """A cloud (n, 3) of real numbers, otherwise as it comes; UsageError for the rest."""
    array = as_array(xyz, "xyz")
    dtype = array.dtype
    if array.ndim != 2 or array.shape[1] != 3 or dtype.kind not in "iuf" or dtype.itemsize > 8:
        cause = f"has shape {array.shape} and dtype {dtype}"
        raise UsageError("xyz", cause, "give real numbers of shape (n, 3), float64 or narrower")
    return array


def _ends(xyz: NDArray[Any]) -> tuple[Triple, Triple, bool]:
    if not len(xyz):
        return (0.0, 0.0, 0.0), (0.0, 0.0, 0.0), True
    low, high, finite = bounds(xyz)
    (a, b, c), (x, y, z) = low.tolist(), high.tolist()
    return (a, b, c), (x, y, z), finite


def as_float32(cloud: Cloud, where: str) -> NDArray[np.float32]:
    """The finite rows, float32 (m, 3); float64 ones are counted from the first before they are cast.

    Raises UsageError where squared distances between them could overflow float32.
    """
    points = cloud.finite
    if not _narrow(cloud.low, cloud.high):  # of a part, that is of the whole
        low, high, _ = _ends(points)
        if not _narrow(low, high):
            cause = f"the cloud spans {low} to {high}: squared distances overflow float32"
            raise UsageError(where, cause, "scale the coordinates or drop the outliers")
    return points if points.dtype == np.float32 else (points - points[0]).astype(np.float32)


def _narrow(low: Triple, high: Triple) -> bool:
    extent = [b - a for a, b in zip(low, high, strict=True)]
    return sum(edge * edge for edge in extent) < _OVERFLOW


def as_array(value: Any, name: str) -> NDArray[Any]:
    """A numpy array of ``value`` without a copy where that is possible.

    Raises UsageError for what would lose its meaning, or cannot be one: a tensor that is sparse or not on the
    CPU, a masked array of which something is masked, rows of unlike length.
    """
    if type(value) is np.ndarray:
        return value
    if is_tensor(value):
        if value.device.type != "cpu":
            raise UsageError(name, f"is a tensor on {value.device}", "move it to the CPU with .cpu()")
        if value.is_nested or str(value.layout) != "torch.strided":
            layout = "nested" if value.is_nested else str(value.layout).removeprefix("torch.")
            raise UsageError(name, f"is a {layout} tensor", "make it dense, as with .to_dense()")
        try:
            return np.asarray(value.detach().resolve_conj().resolve_neg().numpy())
        except TypeError:
            raise UsageError(name, f"has dtype {value.dtype}", "convert it to one numpy knows") from None
    if np.ma.is_masked(value):
        fix = "drop the rows with numpy.ma.compress_rows, or fill them with .filled()"
        raise UsageError(name, "is a masked array, and no sampler heeds a mask", fix)
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise UsageError(name, f"is no array: {error}", "give a numpy array or a torch CPU tensor") from None


def is_tensor(value: Any) -> bool:
    """Whether ``value`` is a torch tensor; torch is not imported to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def as_given(array: NDArray[Any], tensor: bool) -> Any:
    """``array``, or a tensor that shares its memory."""
    return sys.modules["torch"].from_numpy(array) if tensor else array


def whole(value: Any, name: str) -> int:
    """A whole number as int; UsageError for anything else, True and 3.0 too."""
    try:
        if not isinstance(value, bool | np.bool):
            return operator.index(value)
    except TypeError:
        pass
    raise UsageError(name, f"is {value!r}", "give a whole number")


def share(k: Any, n: int, where: str, rows: str = "rows") -> int:
    """``k`` as an int; UsageError unless it is a whole number from 0 to ``n``, the ``rows`` there are."""
    count = whole(k, "k")
    if not n and count:
        raise UsageError(where, f"cannot take {count}: there are no {rows}", "check the input, or ask for 0")
    if not 0 <= count <= n:
        raise UsageError(where, f"cannot take {count} of {n} {rows}", f"ask for 0 to {n}")
    return count


def room(size: int, where: str, fix: str) -> None:
    """UsageError where a result of ``size`` bytes is more than the memory of this machine."""
    if size > _MEMORY:
        cause = f"the result would take {size / 1e9:,.0f} GB, this machine has {_MEMORY / 1e9:,.0f}"
        raise UsageError(where, cause, fix)
