from __future__ import annotations

import itertools
import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tamis.errors import UsageError
from tamis.samplers import VoxelAccumulator, voxel
from tamis.samplers.accumulate import _with
from tamis.samplers.group import PICKS, Pick


def fields_of(generator: np.random.Generator, n: int) -> dict[str, NDArray[Any]]:
    return {
        "intensity": generator.integers(0, 65536, n).astype(np.uint16),
        "rgb": generator.integers(0, 256, (n, 3)).astype(np.uint8),
        "label": generator.integers(-1, 4, n).astype(np.int32),
        "normal": generator.normal(size=(n, 3)).astype(np.float32),
        "height": generator.normal(size=n),
        "gps_time": generator.random(n),
        "steps": generator.integers(-9, 9, (n, 2)),
        "instance": generator.integers(0, 3, (n, 2)).astype(">i2"),
    }


REDUCE: dict[str, Any] = {"steps": "mean"}


@settings(deadline=None, max_examples=150)
@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(0, 400), max_size=6),
    st.sampled_from(PICKS),
    st.sampled_from([0.0, (-4.5, 1e6, 0.1)]),
)
def test_chunks_in_any_order_equal_one_shot(seed: int, cuts: list[int], pick: Pick, origin: Any) -> None:
    generator = np.random.default_rng(seed)
    xyz = (generator.integers(-20, 20, (400, 3)) / 7).astype(np.float32)
    xyz[generator.integers(0, 400, 9)] = np.nan
    fields = fields_of(generator, 400)
    options: dict[str, Any] = {"pick": pick, "origin": origin, "seed": seed % 7, "reduce": REDUCE}
    whole = voxel(xyz, 1.3, fields=fields, **options)
    bounds = sorted({0, 400, *cuts})
    pieces = list(itertools.pairwise(bounds))
    grid = VoxelAccumulator(1.3, **options)
    for a, b in [pieces[i] for i in generator.permutation(len(pieces))]:
        grid.add(xyz[a:b], {name: values[a:b] for name, values in fields.items()}, start=a)
        if seed % 2:
            grid.result()  # may be asked for between chunks
    found = grid.result()
    for name in ("xyz", "index", "count", "cell"):
        assert getattr(found, name).tolist() == getattr(whole, name).tolist(), name
    for name, values in whole.fields.items():
        assert found.fields[name].dtype == fields[name].dtype.newbyteorder("=")
        assert found.fields[name].shape == values.shape
        if values.dtype.kind == "f" and name != "gps_time":
            np.testing.assert_allclose(found.fields[name], values, rtol=1e-6, atol=1e-6)
        else:
            assert found.fields[name].tolist() == values.tolist(), name


@pytest.mark.parametrize("pick", ["centroid", "first", "random"])
def test_large_chunks_on_threads_equal_one_shot(pick: Pick) -> None:
    xyz = (np.random.default_rng(1).normal(size=(600_000, 3)) ** 3 * 9).astype(np.float32)
    grid = VoxelAccumulator(0.4, pick=pick, threads=2)
    for start in range(0, 600_000, 250_000):
        grid.add(xyz[start : start + 250_000])  # numbered as they come
    found, whole = grid.result(), voxel(xyz, 0.4, pick=pick)
    assert found.xyz.tobytes() == whole.xyz.tobytes()
    assert found.index.tobytes() == whole.index.tobytes()


def test_results_own_their_memory_and_more_may_be_added() -> None:
    grid = VoxelAccumulator(1.0)
    grid.add(np.zeros((3, 3)))
    first = grid.result()
    kept = first.xyz.copy()
    first.count[:], first.xyz[:] = 99, 99.0
    grid.add(np.full((2, 3), 5.0))
    assert grid.result().count.tolist() == [3, 2]
    assert grid.result().xyz[:1].tolist() == kept.tolist()


def test_nothing_gives_nothing() -> None:
    found = VoxelAccumulator(0.1).result()
    assert (found.xyz.shape, found.cell.shape, found.fields) == ((0, 3), (0, 3), {})
    grid = VoxelAccumulator(0.1)
    assert grid.result().count.tolist() == []
    grid.add(np.ones((2, 3)), {"label": np.ones(2, np.int32)})  # fields are known from the first chunk on
    grid.add(np.empty((0, 3)), {"label": np.ones(0, np.int32)})
    assert grid.result().fields["label"].tolist() == [1]


def test_tensors_give_tensors() -> None:
    grid = VoxelAccumulator(0.5)
    grid.add(torch.rand(50, 3), {"height": torch.rand(50)})
    found = grid.result()
    assert isinstance(found.xyz, torch.Tensor)
    assert isinstance(found.fields["height"], torch.Tensor)


@pytest.mark.parametrize(
    "fields", [{}, {"height": np.zeros(4, np.float64)}, {"height": np.zeros((4, 2), np.float32)}]
)
def test_chunks_of_other_fields_are_refused(fields: dict[str, Any]) -> None:
    grid = VoxelAccumulator(1.0)
    grid.add(np.zeros((4, 3)), {"height": np.zeros(4, np.float32)})
    with pytest.raises(UsageError, match="chunk 1"):
        grid.add(np.zeros((4, 3)), fields)
    assert grid.result().count.tolist() == [4]


def test_what_voxel_refuses_is_refused() -> None:
    for bad in ({"size": 0.0}, {"size": 1.0, "pick": "mean"}, {"size": 1.0, "origin": (1, 2)}):
        with pytest.raises(UsageError):
            VoxelAccumulator(**bad)
    grid = VoxelAccumulator(1.0)
    with pytest.raises(UsageError, match="start"):
        grid.add(np.zeros((1, 3)), start=-1)
    with pytest.raises(UsageError, match="xyz"):
        grid.add(np.zeros((1, 2)))
    for _ in range(2):
        grid.add(np.zeros((1, 3)), {"intensity": np.array([2**60])})
        assert grid.result().fields["intensity"].tolist() == [2**60]
    grid.add(np.zeros((1, 3)), {"intensity": np.array([2**60])})
    with pytest.raises(UsageError, match="too large to average"):
        grid.result()


V14 = """
import json, sys
import numpy as np
from tamis.processes import peak_bytes
from tamis.samplers import VoxelAccumulator

def chunk(i):
    generator = np.random.default_rng(i)
    xyz = generator.random((200_000, 3), np.float32) * np.array([46, 46, 46], np.float32)
    return xyz, {"label": generator.integers(0, 9, 200_000).astype(np.int32), "height": xyz[:, 2]}

grid = VoxelAccumulator(1.0)
for i in json.loads(sys.argv[1]):
    grid.add(*chunk(i), start=200_000 * i)
found = grid.result()
peak = peak_bytes() >> 20
import hashlib
digest = hashlib.sha256(found.xyz.tobytes() + found.count.tobytes() + found.fields["label"].tobytes())
print(json.dumps([peak, len(found.xyz), int(found.count.sum()), digest.hexdigest()]))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_v14_twenty_million_rows_in_a_hundred_chunks_stay_under_a_gigabyte() -> None:
    order = np.random.default_rng(0).permutation(100).tolist()
    answers = [
        json.loads(subprocess.check_output([sys.executable, "-c", V14, json.dumps(chunks)], text=True))
        for chunks in (list(range(100)), order)
    ]
    assert answers[0][1:] == answers[1][1:], "the order of chunks changes nothing"
    peak_mb, cells, rows, _ = answers[0]
    assert rows == 20_000_000
    assert 95_000 < cells < 110_000
    assert peak_mb < 1000


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), max_size=12))
def test_no_row_is_added_twice(chunks: list[tuple[int, int]]) -> None:
    edges: list[int] = []
    there: set[int] = set()
    for start, n in chunks:
        rows = set(range(start, start + n))
        if rows & there:
            with pytest.raises(UsageError, match="overlap with rows that were added before"):
                _with(edges, start, start + n)
        else:
            edges, there = _with(edges, start, start + n), there | rows
        assert edges == [i for i in range(38) if (i in there) != (i - 1 in there)]


def test_a_chunk_over_another_is_refused_and_changes_nothing() -> None:
    grid = VoxelAccumulator(0.5)
    grid.add(np.zeros((100, 3)), start=0)
    for start in (50, 2**63, -1):
        with pytest.raises(UsageError, match="start: "):
            grid.add(np.ones((100, 3)), start=start)
    grid.add(np.ones((100, 3)))
    assert grid.result().count.tolist() == [100, 100]


@pytest.mark.parametrize("how", ["mean", "rounded", "unit", "majority", "first"])
def test_chunks_without_a_finite_row_give_nothing(how: Any) -> None:
    nowhere = np.full((4, 3), np.nan, np.float32)
    one_shot = voxel(nowhere, 1.0, fields={"rgb": np.ones((4, 3), np.float32)}, reduce={"rgb": how})
    grid = VoxelAccumulator(1.0, reduce={"rgb": how})
    for n in (0, 4):
        grid.add(nowhere[:n], {"rgb": np.ones((n, 3), np.float32)})
        assert grid.result().fields["rgb"].shape == one_shot.fields["rgb"].shape == (0, 3)
