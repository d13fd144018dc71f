"""Samples that cannot be read: the run stops at the first, or leaves out as many as it may."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tamis.errors import DataError
from tamis.loaders.loader import Batch, Loader
from tamis.pipelines.dataset import Dataset

Make = Callable[..., Dataset]
WAYS: list[dict[str, Any]] = [
    {"k": 64},
    {"k": 64, "graph": [{"kind": "rotate"}]},
    {"form": "ragged"},
    {"k": 64, "feeder": "node"},
]


def damage(data: Dataset, rows: list[int]) -> set[int]:
    """Flip a bit of the coordinates of each of the samples; their ids."""
    for row in rows:
        with data.shard_path(int(data.shard[row])).open("r+b") as file:
            file.seek(int(data.positions["xyz"][row]) + 5)
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([byte ^ 4]))
    return set(data.ids[rows].tolist())


def epoch(data: Dataset, **arguments: Any) -> tuple[list[Batch], dict[str, Any]]:
    """Copies of the batches of an epoch, and the state after it."""
    with Loader(data, global_batch=4, epochs=1, **arguments) as loader:
        batches = []
        for batch in loader:
            columns = {name: values.copy() for name, values in batch.columns.items()}
            mask = None if batch.mask is None else batch.mask.copy()
            offsets = None if batch.offsets is None else batch.offsets.copy()
            batches.append(
                replace(
                    batch,
                    ids=batch.ids.copy(),
                    columns=columns,
                    mask=mask,
                    offsets=offsets,
                    weight=batch.weight.copy(),
                )
            )
            del batch
        return batches, loader.state_dict()


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_s06_a_damaged_sample_keeps_its_place_with_weight_0(make: Make, way: dict[str, Any]) -> None:
    data = make([100, 90, 80, 70, 60, 50, 300, 30, 20])
    whole, _ = epoch(data, **way)
    bad = damage(data, [2, 6])
    found, state = epoch(data, max_damaged=2, **way)
    assert set(state["skipped"]) == bad
    left_out = set()
    for a, b in zip(whole, found, strict=True):
        assert (a.step, a.ids.tolist()) == (b.step, b.ids.tolist())
        for i, id in enumerate(b.ids.tolist()):
            if id in bad:
                left_out.add(id)
                assert b.weight[i] == 0
                if b.mask is not None:
                    assert not b.mask[i].any()
                    assert (b.columns["label"][i] == -1).all()
                else:
                    assert b.offsets is not None
                    assert b.offsets[i] == b.offsets[i + 1]
                continue
            assert b.weight[i] == a.weight[i]
            for name in a.columns:
                assert np.array_equal(rows(a, name, i), rows(b, name, i))
    assert left_out == bad


def rows(batch: Batch, name: str, i: int) -> Any:
    values = batch.columns[name]
    return values[i] if batch.offsets is None else values[batch.offsets[i] : batch.offsets[i + 1]]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_s06_more_damage_than_is_allowed_stops_the_run(make: Make, way: dict[str, Any]) -> None:
    data = make([100, 90, 80, 70, 60, 50])
    damage(data, [1, 2, 4])
    with pytest.raises(DataError, match=r"is damaged in the block at offset .*sample 00"):
        epoch(data, **way)
    with pytest.raises(DataError, match=r"3 samples are damaged, 2 may be; .*loader\.max_damaged"):
        epoch(data, max_damaged=2, **way)
    assert len(epoch(data, max_damaged=3, **way)[1]["skipped"]) == 3


def test_s06_a_window_of_a_damaged_sample_is_left_out(make: Make) -> None:
    """Wherever the drawn window begins in the damaged block: it is not read again."""
    data = make([100, 90, 80, 70, 60, 50], row_order="random")
    bad = damage(data, [2])
    with Loader(data, global_batch=4, epochs=5, k=16, max_damaged=1) as loader:
        weights = [dict(zip(batch.ids.tolist(), batch.weight.tolist(), strict=True)) for batch in loader]
    assert [len(found) for found in weights] == [4, 2] * 5
    assert sum(found[id] == 0 for found in weights for id in found) == 5
    assert {id for found in weights for id in found if found[id] == 0} == bad


def test_s06_each_sample_left_out_is_told_once(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    data = make([100, 90, 80])
    damage(data, [1])
    caplog.set_level(logging.WARNING)
    with Loader(data, global_batch=3, epochs=4, k=16, max_damaged=1, verify="always") as loader:
        assert [batch.weight.sum() for batch in loader] == [2, 2, 2, 2]
        assert len(loader.state_dict()["skipped"]) == 1
    assert [f"sample {data.ids[1]:016x} is left out" in record.message for record in caplog.records] == [True]


def test_s06_a_missing_shard_costs_its_samples(make: Make) -> None:
    data = make([100, 90, 80, 70], per_shard=2)
    data.shard_path(1).unlink()
    lost = set(data.ids[data.shard == 1].tolist())
    found, state = epoch(data, k=16, max_damaged=2)
    assert set(state["skipped"]) == lost
    assert [id in lost for id in found[0].ids.tolist()] == [w == 0 for w in found[0].weight.tolist()]


def test_a_resumed_run_remembers_what_it_left_out(make: Make) -> None:
    data = make([100, 90, 80, 70])
    bad = damage(data, [0])
    with Loader(data, global_batch=2, k=16, max_damaged=1) as loader:
        next(loader), next(loader)
        state = loader.state_dict()
    assert state["skipped"] == list(bad)
    with Loader(data, global_batch=2, k=16, max_damaged=1) as loader:
        loader.load_state_dict(json.loads(json.dumps(state)))
        assert loader.state_dict() == state
