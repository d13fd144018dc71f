"""The operators over torch tensors do what those over numpy do: here on the CPU, with the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.errors import UsageError
from tamis.pipelines.ops import (
    TABLE,
    Call,
    Columns,
    FarthestSettings,
    FlipSettings,
    JitterSettings,
    NormaliseSettings,
    OperatorSettings,
    RandomSettings,
    RotateSettings,
    ScaleSettings,
)
from tamis.pipelines.ops.on_device import farthest_rows, hashes
from tamis.samplers import draw
from tamis.samplers.farthest import farthest
from tamis.samplers.fields import Kind

KINDS: dict[str, Kind] = {"xyz": "point", "normal": "vector", "label": "class", "intensity": "colour"}
keys = st.integers(0, 2**64 - 1)
EXACT: list[OperatorSettings] = [
    RotateSettings(axis="x"),
    RotateSettings(degrees=20.0),
    FlipSettings(axes=("x", "y", "z")),
    ScaleSettings(low=0.5, high=2.0),
    JitterSettings(sigma=0.1),
    JitterSettings(sigma=3.0, clip=1.0),
    RandomSettings(),
    FarthestSettings(),
]


def cloud(n: int, seed: int = 0) -> Columns:
    rng = np.random.default_rng(seed)
    return {
        "xyz": rng.normal(scale=10, size=(n, 3)).astype(np.float32),
        "normal": rng.normal(size=(n, 3)).astype(np.float32),
        "label": rng.integers(-1, 5, n).astype(np.int32),
        "intensity": rng.integers(0, 60_000, n).astype(np.uint16),
    }


def both(
    operator: OperatorSettings, clouds: list[Columns], key: int, k: int | None
) -> tuple[list[Columns], list[Columns]]:
    """What the table's two functions make of the clouds."""
    calls: list[Call[Any]] = [Call(operator, KINDS, key + i, k) for i in range(len(clouds))]
    function = TABLE[operator.kind, "threads"]
    wanted = [function(columns, call) for columns, call in zip(clouds, calls, strict=True)]
    tensors = [{name: torch.from_numpy(v.copy()) for name, v in columns.items()} for columns in clouds]
    found = TABLE[operator.kind, "device"](tensors, calls)
    for columns, same in zip(clouds, tensors, strict=True):  # nothing was changed in place
        assert all(values.tobytes() == same[name].numpy().tobytes() for name, values in columns.items())
    return [{name: tensor.numpy() for name, tensor in one.items()} for one in found], wanted


@settings(deadline=None, max_examples=40)
@given(
    operator=st.sampled_from(EXACT),
    sizes=st.lists(st.integers(0, 300), min_size=0, max_size=5),
    key=keys,
    k=st.none() | st.integers(1, 100),
)
def test_an_operator_gives_the_bits_of_the_threads(
    operator: OperatorSettings, sizes: list[int], key: int, k: int | None
) -> None:
    found, wanted = both(operator, [cloud(n, i) for i, n in enumerate(sizes)], key, k)
    for a, b in zip(found, wanted, strict=True):
        for name, values in b.items():
            assert (a[name].dtype, a[name].shape) == (values.dtype, values.shape)
            assert a[name].tobytes() == values.tobytes(), name


@settings(deadline=None)
@given(sizes=st.lists(st.integers(0, 300), min_size=1, max_size=4), offset=st.floats(-1e3, 1e3), key=keys)
def test_normalise_is_within_two_steps_of_the_threads(sizes: list[int], offset: float, key: int) -> None:
    clouds = [cloud(n, i) for i, n in enumerate(sizes)]
    for columns in clouds:
        columns["xyz"] += np.float32(offset)
    found, wanted = both(NormaliseSettings(), clouds, key, None)
    for a, b in zip(found, wanted, strict=True):
        assert np.abs(a["xyz"] - b["xyz"]).max(initial=0) <= 2.0**-22
        assert np.array_equal(a["normal"], b["normal"])


def test_normalise_of_points_that_are_all_the_same_or_not_finite() -> None:
    same, odd, none = cloud(5), cloud(6), cloud(4)
    same["xyz"][:] = 0.1
    odd["xyz"][3, 1] = np.nan
    none["xyz"][:] = np.inf
    found, wanted = both(NormaliseSettings(), [same, odd, none], 1, None)
    for a, b in zip(found, wanted, strict=True):
        assert np.allclose(a["xyz"], b["xyz"], atol=2.0**-22, equal_nan=True)


@given(key=keys, n=st.integers(0, 50))
def test_hashes_have_the_same_64_bits(key: int, n: int) -> None:
    assert np.array_equal(hashes(key, n, torch.device("cpu")).numpy().view(np.uint64), draw.hashes(key, n))


@pytest.mark.parametrize("seed", range(4))
def test_farthest_of_lattices_and_copies_breaks_ties_to_the_lowest_row(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lattice = np.stack(np.meshgrid(*[np.arange(5)] * 3), axis=-1).reshape(-1, 3).astype(np.float32)
    clouds = [rng.permutation(lattice), np.zeros((7, 3), np.float32), np.repeat(lattice[:9], 4, axis=0)]
    found = farthest_rows([torch.from_numpy(c) for c in clouds], [90, None, 20])
    for rows, xyz, k in zip(found, clouds, (90, 7, 20), strict=True):
        assert np.array_equal(rows.numpy(), farthest(xyz, k))


def test_farthest_of_float64_is_shifted_before_the_cast() -> None:
    xyz = np.random.default_rng(0).normal(size=(200, 3)) + 5e6
    (rows,) = farthest_rows([torch.from_numpy(xyz)], [50])
    assert np.array_equal(rows.numpy(), farthest(xyz, 50))


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_farthest_refuses_what_it_cannot_measure(value: float) -> None:
    xyz = np.zeros((5, 3), np.float32)
    xyz[2, 1] = value
    with pytest.raises(UsageError, match="not finite, or so far apart"):
        farthest_rows([torch.zeros((3, 3)), torch.from_numpy(xyz)], [2, 2])
