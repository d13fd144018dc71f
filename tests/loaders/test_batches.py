"""What is in a batch: dense or ragged, a shorter read where the stored order allows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tamis.errors import UsageError
from tamis.loaders.batches import Batches
from tamis.loaders.loader import Batch, Loader
from tamis.metrics import STREAM, Meter, stage_rows
from tamis.pipelines.dataset import Dataset
from tamis.pipelines.ops import (
    RandomSettings,
    VoxelSettings,
)
from tamis.samplers.farthest import farthest
from tamis.samplers.ratio import RatioSchedule

Make = Callable[..., Dataset]


def test_ragged_batches_are_whole_samples(make: Make) -> None:
    data = make([300, 40, 500, 64, 1, 257, 90, 0, 700])
    with Loader(data, global_batch=5, epochs=1, form="ragged") as made:
        for batch in made:
            assert (batch.mask, batch.k) == (None, 0)
            for i, id in enumerate(batch.ids):
                sample = data.sample(int(np.flatnonzero(data.ids == id)[0]))
                for name, values in sample.columns.items():
                    got = batch.columns[name][batch.offsets[i] : batch.offsets[i + 1]]  # type: ignore[index]
                    assert np.array_equal(got, values)
                    assert got.dtype == values.dtype


def test_d03_dense_batches_mask_repeated_rows(make: Make) -> None:
    data = make([0, 1, 1000, 4096])
    with Loader(data, global_batch=4, k=1024) as made:
        batch = next(made)
    sizes = dict(zip(data.ids.tolist(), data.rows.tolist(), strict=True))
    assert batch.mask is not None
    assert batch.mask.sum(axis=1).tolist() == [min(sizes[int(i)], 1024) for i in batch.ids]
    assert {c.shape[:2] for c in batch.columns.values()} == {(4, 1024)}
    with Loader(data, global_batch=4, form="ragged", epochs=1) as made:
        batch = next(made)
    assert batch.offsets is not None
    assert np.diff(batch.offsets).tolist() == [sizes[int(i)] for i in batch.ids]


@pytest.mark.parametrize("row_order", ["farthest", "random", "source"])
@pytest.mark.parametrize("verify", ["first", "always", "never"])
@pytest.mark.parametrize(
    "changes", [{"k": 256}, {"k": 100}, {"k": 256, "form": "ragged"}, {"form": "ragged"}], ids=str
)
def test_a_batch_that_is_read_in_place_is_the_one_that_is_packed(
    make: Make, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], row_order: str, verify: str
) -> None:
    data = make([300, 40, 600, 0, 1, 257, 513], row_order, per_shard=2)

    def read() -> list[Batch]:
        parts = []
        for replica in range(2):
            arguments = {**changes, "replica": replica, "replicas": 2, "verify": verify}
            with Loader(data, global_batch=3, epochs=2, **arguments) as made:
                parts += list(made)
        return parts

    found = read()
    monkeypatch.setattr(Batches, "_read_packed", packed)
    for a, b in zip(found, read(), strict=True):
        assert (a.step, a.epoch, a.k, a.ids.tolist()) == (b.step, b.epoch, b.k, b.ids.tolist())
        arrays, wanted = a.torch(), b.torch()
        assert list(arrays) == list(wanted)
        for name, values in wanted.items():
            assert arrays[name].dtype == values.dtype
            assert torch.equal(arrays[name], values)


def packed(self: Batches, part: Any, empty: Any) -> Any:
    """The way of a batch that operators touch, with none."""
    return self._packed(self._fetcher.fetch(part.rows, part.first, part.stop), part, empty)


def test_a_stored_farthest_order_gives_farthest_points_by_a_prefix(make: Make) -> None:
    data = make([900, 700], row_order="farthest")
    meter = Meter(STREAM)
    with Loader(data, global_batch=2, k=256, epochs=1, meter=meter) as made:
        batch = next(made)
    for i, id in enumerate(batch.ids):
        xyz = data.sample(int(np.flatnonzero(data.ids == id)[0])).columns["xyz"]
        assert np.array_equal(batch.columns["xyz"][i], xyz[:256])
        assert np.array_equal(np.sort(farthest(xyz, 256)), np.arange(256))
    row_bytes = sum(field.row_bytes for field in data.schema.values())
    fetch = stage_rows(STREAM, meter.table[None], 1.0)[0]
    assert (fetch["stage"], fetch["bytes"], fetch["points_in"]) == ("stream.fetch", 512 * row_bytes, 512)


def test_a_stored_random_order_gives_a_window_that_moves_with_the_epoch(make: Make) -> None:
    data = make([900, 300], row_order="random")
    starts = []
    for graph in ((), (RandomSettings(),)):
        with Loader(data, global_batch=2, k=200, epochs=40, graph=graph, columns=["row"]) as made:
            for batch in made:
                for i, id in enumerate(batch.ids):
                    stored = data.sample(int(np.flatnonzero(data.ids == id)[0])).columns["row"]
                    start = int(np.flatnonzero(stored == batch.columns["row"][i, 0])[0])
                    assert np.array_equal(batch.columns["row"][i], stored[start : start + 200])
                    starts.append((len(stored), start))
    wide = [start for n, start in starts if n == 900]
    assert len(set(wide)) > 20
    assert 0 <= min(wide) < 150
    assert 550 < max(wide) <= 700


def test_a_stored_source_order_is_sampled_for_real(make: Make) -> None:
    data = make([900])
    with Loader(data, global_batch=1, k=100, epochs=2, columns=["row"]) as made:
        first, second = ({int(r) for r in batch.columns["row"][0]} for batch in made)
    assert len(first) == len(second) == 100
    assert first != second


def test_the_ratio_shrinks_a_batch_by_its_own_step(make: Make) -> None:
    data = make([600] * 4, row_order="farthest")
    ratio = RatioSchedule("linear", start=1.0, end=0.25, steps=6, levels=16)
    with Loader(data, global_batch=2, ratio=ratio, k=512, multiple_of=32) as made:
        ks = [(batch.k, batch.columns["xyz"].shape[1]) for batch, _ in zip(made, range(8), strict=False)]
    assert ks == [(ratio.count(step, 512, multiple_of=32),) * 2 for step in range(8)]
    assert ks[0][0] == 512
    assert ks[-1][0] == 128


def test_a_voxel_graph_samples_what_is_left(make: Make) -> None:
    data = make([3000])
    with Loader(data, global_batch=1, k=100, graph=[VoxelSettings(size=4.0)]) as made:
        batch = next(made)
    assert batch.mask is not None
    assert batch.mask.all()
    cells = np.floor(batch.columns["xyz"][0].astype(np.float64) / 4.0)
    assert len(np.unique(cells, axis=0)) > 95


def test_columns_limit_what_is_read(make: Make) -> None:
    data = make([50])
    with Loader(data, global_batch=1, k=10, columns=["label"]) as made:
        assert set(next(made).columns) == {"xyz", "label"}
    with pytest.raises(UsageError, match=r"no column 'lable' .* it has xyz"):
        Loader(data, global_batch=1, k=10, columns=["lable"])
