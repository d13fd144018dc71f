from __future__ import annotations

import numpy as np
import pytest

from tamis.samplers import kind_of, reduction


@pytest.mark.parametrize(
    ("name", "dtype", "kind", "how"),
    [
        ("xyz", "f4", "point", "mean"),
        ("normals", "f4", "vector", "unit"),
        ("normal", "i2", "vector", "first"),
        ("rgb", "u1", "colour", "rounded"),
        ("intensity", "u2", "colour", "rounded"),
        ("Reflectance", "f4", "colour", "mean"),
        ("label", "i4", "class", "majority"),
        ("classification", "u1", "class", "majority"),
        ("gps_time", "f8", "time", "first"),
        ("return_number", "u1", "count", "first"),
        ("boxes", "f4", "box", "first"),
        ("height", "f4", "none", "mean"),
        ("ring", "u2", "none", "first"),
        ("label", "M8[s]", "class", "first"),
        ("label", "U8", "none", "first"),
    ],
)
def test_kind_and_reduction(name: str, dtype: str, kind: str, how: str) -> None:
    assert kind_of(name, np.dtype(dtype)) == kind
    assert reduction(kind_of(name, np.dtype(dtype)), np.dtype(dtype)) == how
