"""Operators that move a cloud: what moves, how, and what does not."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tamis.pipelines.ops import (
    TABLE,
    Call,
    Columns,
    FlipSettings,
    JitterSettings,
    NormaliseSettings,
    OperatorSettings,
    RotateSettings,
    ScaleSettings,
    SerialiseSettings,
    VoxelSettings,
)
from tamis.pipelines.ops.geometry import FACTORS
from tamis.pipelines.ops.normal import from_tail, normal
from tamis.samplers.fields import Kind

KINDS: dict[str, Kind] = {"xyz": "point", "normal": "vector", "label": "class", "rgb": "colour"}
HEX = ["-0x1.257126f098770p-1", "-0x1.4bfd164288a60p-2", "0x1.29c54e9e18300p-5"]
keys = st.integers(0, 2**64 - 1)


def cloud(n: int = 50, seed: int = 0) -> Columns:
    rng = np.random.default_rng(seed)
    normal = rng.normal(size=(n, 3))
    return {
        "xyz": rng.normal(scale=10, size=(n, 3)).astype(np.float32),
        "normal": (normal / np.linalg.norm(normal, axis=1, keepdims=True)).astype(np.float32),
        "label": rng.integers(-1, 5, n).astype(np.int32),
        "rgb": rng.integers(0, 256, (n, 3)).astype(np.uint8),
    }


def applied(operator: OperatorSettings, columns: Columns, key: int) -> Columns:
    before = {name: values.copy() for name, values in columns.items()}
    after: Columns = TABLE[operator.kind, "threads"](columns, Call(operator, KINDS, key, None))
    for name in columns:
        assert np.array_equal(columns[name], before[name]), "an operator changed its input"
        assert (after[name].dtype, after[name].shape) == (before[name].dtype, before[name].shape)
    assert np.array_equal(after["label"], before["label"])
    assert np.array_equal(after["rgb"], before["rgb"])
    return after


@settings(deadline=None)
@given(axis=st.sampled_from(["x", "y", "z"]), key=keys)
def test_rotate_keeps_lengths_and_normals_follow(axis: Any, key: int) -> None:
    before = cloud()
    after = applied(RotateSettings(axis=axis), before, key)
    for name in ("xyz", "normal"):
        a, b = (np.linalg.norm(c[name], axis=1) for c in (before, after))
        assert np.allclose(a, b, rtol=1e-5)
    still = "xyz".index(axis)
    assert np.array_equal(after["xyz"][:, still], before["xyz"][:, still])
    a, b = (np.einsum("ij,ij->i", c["xyz"].astype(float), c["normal"]) for c in (before, after))
    assert np.allclose(a, b, atol=1e-4)
    a, b = (np.linalg.det(c["xyz"][:3].astype(float)) for c in (before, after))
    assert np.allclose(a, b, rtol=1e-3, atol=1e-2)  # a turn, not a mirroring


def test_rotate_turns_by_at_most_half_of_degrees_either_way() -> None:
    x: Columns = {
        "xyz": np.array([[1, 0, 0]], np.float32),
        "label": np.zeros(1, np.int32),
        "rgb": np.zeros((1, 3), np.uint8),
    }
    turned = [applied(RotateSettings(degrees=20.0), x, key)["xyz"][0] for key in range(200)]
    angles = np.degrees([np.arctan2(p[1], p[0]) for p in turned])
    assert -10.001 <= angles.min() < -8
    assert 8 < angles.max() <= 10.001
    assert np.array_equal(applied(RotateSettings(degrees=0.0), x, 5)["xyz"], x["xyz"])


@given(key=keys, axes=st.lists(st.sampled_from("xyz"), unique=True))
def test_flip_mirrors_points_and_normals_in_named_axes_only(key: int, axes: list[Any]) -> None:
    before = cloud()
    after = applied(FlipSettings(axes=tuple(axes)), before, key)
    signs = np.sign(after["xyz"][0] / before["xyz"][0])
    assert np.array_equal(np.abs(signs), [1, 1, 1])
    assert all(signs[i] == 1 for i, axis in enumerate("xyz") if axis not in axes)
    assert np.array_equal(after["xyz"], before["xyz"] * signs.astype(np.float32))
    assert np.array_equal(after["normal"], before["normal"] * signs.astype(np.float32))


def test_flip_mirrors_each_axis_about_half_of_the_time() -> None:
    before = cloud(1)
    after = [applied(FlipSettings(), before, key)["xyz"][0] != before["xyz"][0] for key in range(400)]
    share = np.mean(after, axis=0)
    assert np.all(np.abs(share[:2] - 0.5) < 0.1)
    assert share[2] == 0
    assert {tuple(map(bool, a[:2])) for a in after} == {(i, j) for i in (False, True) for j in (False, True)}


@given(key=keys, low=st.floats(0.1, 1), high=st.floats(1, 3))
def test_scale_multiplies_points_only(key: int, low: float, high: float) -> None:
    before = cloud()
    after = applied(ScaleSettings(low=low, high=high), before, key)
    factors = after["xyz"].astype(float) / before["xyz"]
    assert low * (1 - 1e-5) <= factors.min()
    assert factors.max() <= high * (1 + 1e-5)
    assert np.ptp(factors) < 1e-5
    assert np.array_equal(after["normal"], before["normal"])


@pytest.mark.parametrize(
    ("operator", "moving"),
    [(FlipSettings(axes=("x", "y", "z")), ["xyz", "normal"]), (ScaleSettings(low=0.5, high=2.0), ["xyz"])],
)
@given(key=keys)
@settings(deadline=None)
def test_factors_say_what_flip_and_scale_do(operator: Any, moving: list[str], key: int) -> None:
    before = cloud()
    after = applied(operator, before, key)
    factors = FACTORS[operator.kind].of(Call(operator, KINDS, key, None))
    assert factors.dtype == np.float32
    for name in moving:
        assert (after[name].view(np.uint32) == (before[name] * factors).view(np.uint32)).all()


@settings(deadline=None)
@given(key=keys, n=st.integers(0, 60), sigma=st.floats(1e-3, 10), clip=st.none() | st.floats(1e-3, 10))
def test_jitter_adds_noise_of_the_key_and_the_row_to_points_only(
    key: int, n: int, sigma: float, clip: float | None
) -> None:
    before, operator = cloud(n), JitterSettings(sigma=sigma, clip=clip)
    after = applied(operator, before, key)
    noise = sigma * normal(key, 3 * n).reshape(n, 3)
    limit = np.inf if clip is None else clip
    assert np.array_equal(after["xyz"], before["xyz"] + np.clip(noise, -limit, limit).astype(np.float32))
    assert np.array_equal(after["normal"], before["normal"])
    few = applied(operator, {name: values[: n // 2] for name, values in before.items()}, key)
    assert np.array_equal(few["xyz"], after["xyz"][: n // 2])


@pytest.mark.parametrize("seed", range(3))
def test_normal_draws_are_spread_as_they_should_be(seed: int) -> None:
    drawn = np.sort(normal(seed, 200_000))
    share = np.arange(1, len(drawn) + 1) / len(drawn)
    expected = np.array([NormalDist().cdf(z) for z in drawn[::100]])
    assert np.abs(share[::100] - expected).max() < 4e-3  # Kolmogorov and Smirnov: 1 in a million
    assert abs(np.corrcoef(drawn, normal(seed + 100, len(drawn)))[0, 1]) < 0.02


def test_normal_draws_are_quantiles_of_their_hashes() -> None:
    tail = np.concatenate([2.0 ** np.arange(53), np.random.default_rng(0).integers(1, 2**52, 500)])
    found = from_tail(tail, tail % 2 == 1, np)
    wanted = [-NormalDist().inv_cdf(p * 2.0**-53) * (-1 if p % 2 == 1 else 1) for p in tail]
    assert np.abs(found - wanted).max() < 8e-6
    # The bits, so that another machine or device is known to draw the same.
    assert [z.hex() for z in normal(1, 3)] == HEX


@given(n=st.integers(1, 60), seed=st.integers(0, 99), offset=st.floats(-1e4, 1e4))
def test_normalise_brings_the_mean_to_zero_and_the_farthest_to_one(n: int, seed: int, offset: float) -> None:
    before = cloud(n, seed)
    before["xyz"] += np.float32(offset)
    after = applied(NormaliseSettings(), before, seed)
    assert np.array_equal(after["normal"], before["normal"])
    wide = before["xyz"].astype(np.float64) - before["xyz"].mean(axis=0, dtype=np.float64)
    reach = np.linalg.norm(wide, axis=1).max()
    assert np.allclose(after["xyz"], wide / reach if reach else 0, atol=1e-6)
    assert np.abs(after["xyz"].mean(axis=0, dtype=np.float64)).max() < 1e-6
    assert np.linalg.norm(after["xyz"], axis=1).max() == pytest.approx(1 if reach else 0, abs=1e-6)


def test_normalise_of_an_empty_cloud_one_place_and_a_missing_echo() -> None:
    assert applied(NormaliseSettings(), cloud(0), 0)["xyz"].shape == (0, 3)
    same = {**cloud(4), "xyz": np.full((4, 3), 7, np.float32)}
    assert not applied(NormaliseSettings(), same, 0)["xyz"].any()
    odd = cloud(5)
    odd["xyz"][2, 1] = np.nan
    found = TABLE["normalise", "threads"](odd, Call(NormaliseSettings(), KINDS, 0, None))["xyz"]
    kept = np.delete(found, 2, axis=0)
    assert np.abs(kept.mean(axis=0)).max() < 1e-6
    assert np.isnan(found[2]).any()
    odd["xyz"][:] = np.inf
    assert np.isinf(
        TABLE["normalise", "threads"](odd, Call(NormaliseSettings(), KINDS, 0, None))["xyz"]
    ).all()


@pytest.mark.parametrize(
    ("model", "values", "says"),
    [
        (ScaleSettings, {"low": 2.0, "high": 1.0}, "low 2.0 is above high 1.0"),
        (ScaleSettings, {"low": 0.0, "high": 1.0}, "greater than or equal to 0.000001"),
        (RotateSettings, {"axis": "w"}, "'x', 'y' or 'z'"),
        (RotateSettings, {"degrees": 400.0}, "less than or equal to 360"),
        (JitterSettings, {"sigma": 0.0}, "greater than 0"),
        (JitterSettings, {"sigma": 1.0, "clip": 0.0}, "greater than 0"),
        (JitterSettings, {}, "Field required"),
        (SerialiseSettings, {"cell": -1.0}, "greater than 0"),
        (SerialiseSettings, {"cell": np.inf}, "finite"),
        (VoxelSettings, {"size": np.inf}, "finite"),
        (ScaleSettings, {"low": 1.0, "high": np.inf}, "finite"),
        (ScaleSettings, {"low": 1.0, "high": 1e39}, "less than or equal to 1000000"),
        (ScaleSettings, {"low": 1e-300, "high": 1.0}, "greater than or equal to 0.000001"),
    ],
)
def test_settings_that_make_no_sense_are_refused(model: Any, values: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        model(**values)


def test_the_table_has_every_operator_but_the_closing_sort() -> None:
    kinds = {model.model_fields["kind"].default for model in get_args(get_args(OperatorSettings)[0])}
    assert {name for name, engine in TABLE if engine == "threads"} == kinds - {"serialise"}
    assert {name for name, engine in TABLE if engine == "device"} == kinds - {
        "serialise",
        "voxel",
        "function",
    }
    assert {engine for name, engine in TABLE} == {"threads", "device"}
