"""Packing: repeated rows are masked, places without a sample are empty, arrays are the batch's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tamis.loaders.pack import Batch, completed, dense, ragged
from tamis.pipelines.ops import Columns, SerialiseSettings
from tamis.pipelines.records import Field
from tamis.pipelines.run_threads import Threads
from tamis.samplers.curve import serialise

FIELDS = {
    "xyz": Field(np.dtype("float32"), 3, "point"),
    "label": Field(np.dtype("int32"), 1, "class"),
}


def cloud(n: int, seed: int = 0) -> Columns:
    rng = np.random.default_rng(seed)
    xyz = rng.uniform(0, 50, (n, 3)).astype(np.float32)
    return {"xyz": xyz, "label": np.arange(1, n + 1, dtype=np.int32)}


def test_d03_dense_clouds_of_any_size_repeat_rows_with_mask_0() -> None:
    columns, mask = dense([cloud(0), cloud(1), cloud(3), cloud(7)], FIELDS, 5, 7, None, Threads(2))
    assert columns["label"].tolist() == [
        [0] * 7,
        [1] * 7,
        [1, 2, 3, 1, 2, 3, 1],
        [1, 2, 3, 4, 5, 6, 7],
        [0] * 7,
    ]
    assert mask.sum(axis=1).tolist() == [0, 1, 3, 7, 0]
    assert np.array_equal(columns["xyz"][2][:3], cloud(3)["xyz"])
    assert not columns["xyz"][[0, 4]].any()
    assert {name: c.dtype for name, c in columns.items()} == {name: f.dtype for name, f in FIELDS.items()}


def test_clouds_that_lie_in_place_are_completed_as_others_are_packed() -> None:
    clouds = [cloud(n, seed=n) for n in (0, 1, 3, 7, 5)]
    flat = {name: field.empty(6 * 7) for name, field in FIELDS.items()}
    for name, values in flat.items():
        values[...] = 77
        for i, one in enumerate(clouds):
            values[i * 7 : i * 7 + len(one[name])] = one[name]
    columns = {name: values.reshape(6, 7, *values.shape[1:]) for name, values in flat.items()}
    mask = completed(columns, np.array([0, 1, 3, 7, 5, 0]))
    want, wanted = dense(clouds, FIELDS, 6, 7, None, Threads(1))
    assert np.array_equal(mask, wanted)
    assert mask.dtype == wanted.dtype
    for name, values in want.items():
        assert np.array_equal(columns[name], values)
        assert columns[name].shape == values.shape


def test_d03_ragged_clouds_of_any_size() -> None:
    clouds = [cloud(0), cloud(2), cloud(3)]
    columns, offsets = ragged(clouds, FIELDS, 4, Threads(1))
    assert offsets.dtype == np.int64
    assert offsets.tolist() == [0, 0, 2, 5, 5]
    for i, one in enumerate(clouds):
        assert all(np.array_equal(columns[c][offsets[i] : offsets[i + 1]], one[c]) for c in FIELDS)
    columns, offsets = ragged([], FIELDS, 1, Threads(1))
    assert (columns["xyz"].shape, offsets.tolist()) == ((0, 3), [0, 0])


@pytest.mark.parametrize("n", [40, 25, 1, 0])
def test_serialise_sorts_the_k_rows_and_their_mask(n: int) -> None:
    columns, mask = dense([cloud(n)], FIELDS, 2, 40, SerialiseSettings(cell=4.0), Threads(1))
    plain, unsorted = dense([cloud(n)], FIELDS, 2, 40, None, Threads(1))
    order, transposed = serialise(plain["xyz"][0], 4.0)
    for name in FIELDS:
        assert np.array_equal(columns[name][0], plain[name][0][order])
    assert np.array_equal(mask[0], unsorted[0][order])
    assert np.array_equal(columns["transposed"][0], transposed)
    assert columns["transposed"].dtype == np.int64
    assert np.array_equal(columns["transposed"][1], np.arange(40))  # a place without a sample is sorted too
    assert mask.sum() == n


def test_v13_packed_arrays_own_their_memory() -> None:
    source = cloud(4)
    for columns in (
        dense([source], FIELDS, 1, 4, None, Threads(1))[0],
        ragged([source], FIELDS, 1, Threads(1))[0],
    ):
        for name, values in columns.items():
            assert not np.shares_memory(values, source[name])


def test_torch_shares_memory() -> None:
    columns, mask = dense([cloud(4)], FIELDS, 1, 6, None, Threads(1))
    batch = Batch(0, 0, np.ones(1, np.uint64), columns, mask, None, np.ones(1, np.float32), 6)
    tensors = batch.torch()
    assert set(tensors) == {"xyz", "label", "ids", "weight", "mask"}
    assert tensors["mask"].dtype == torch.bool
    assert tensors["ids"].dtype == torch.uint64
    tensors["xyz"][0, 0, 0] = 99.0
    assert columns["xyz"][0, 0, 0] == 99.0
    packed, offsets = ragged([cloud(4)], FIELDS, 1, Threads(1))
    batch = Batch(0, 0, np.ones(1, np.uint64), packed, None, offsets, np.ones(1, np.float32), 0)
    assert batch.torch()["offsets"].tolist() == [0, 4]
