"""What a dataset stores, in the order of the rows of its source, and what it differs in from what it must."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pipelines.dataset import Dataset

ERROR = 0.5e-3
"""Most that a stored coordinate may be off, in the file's units."""


def stored(dataset: Dataset) -> tuple[NDArray[np.float64], dict[str, NDArray[Any]]]:
    """Positions (n, 3) and columns of all samples, in the order of the rows of the source."""
    samples = [dataset.sample(number) for number in range(len(dataset))]
    order = np.argsort(np.concatenate([sample.columns["row"] for sample in samples]), kind="stable")
    joined = {
        name: np.concatenate([sample.columns[name] for sample in samples])[order] for name in dataset.schema
    }
    return np.concatenate([sample.positions() for sample in samples])[order], joined


def differs(
    wanted: NDArray[np.float64],
    fields: dict[str, NDArray[Any]],
    xyz: NDArray[np.float64],
    columns: dict[str, NDArray[Any]],
) -> str:
    """What differs from points that are ``wanted``, of which those that are not finite are left out."""
    finite = np.isfinite(wanted).all(axis=1)
    if len(xyz) != np.count_nonzero(finite):
        return f"{len(xyz)} points, not {np.count_nonzero(finite)}"
    if len(xyz) and not np.abs(xyz - wanted[finite]).max() <= ERROR:
        return f"coordinates are off by {np.abs(xyz - wanted[finite]).max():g}"
    for name, values in fields.items():
        own = columns.get(f"source_{name}", columns.get(name))
        if own is None:
            return f"has no field '{name}'"
        if not np.array_equal(own, values[finite].reshape(own.shape), equal_nan=own.dtype.kind == "f"):
            return f"other values of '{name}'"
    return ""
