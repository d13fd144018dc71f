"""Functions of the user's own in a graph: inline and through a feeder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis.errors import DataError, UsageError
from tamis.loaders.loader import Loader
from tamis.pipelines.dataset import Dataset

Make = Callable[..., Dataset]

CODE = """
import time
import numpy as np

def shaken(columns, seed):
    columns["xyz"] += np.random.default_rng(seed).normal(size=columns["xyz"].shape).astype(np.float32)
    return columns

def doubled(columns, seed):
    return {name: np.repeat(values, 2, axis=0) for name, values in columns.items()}

def fails(columns, seed):
    if len(columns["xyz"]) == 77:
        raise ValueError("no normals here")
    return columns

def hangs(columns, seed):
    if len(columns["xyz"]) == 77:
        time.sleep(1000)
    return columns
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "code_of_mine.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)


def graph(name: str) -> list[dict[str, Any]]:
    return [{"kind": "function", "function": f"code_of_mine:{name}"}, {"kind": "rotate"}]


def read(data: Dataset, name: str, **arguments: Any) -> list[Any]:
    given = {"global_batch": 2, "epochs": 2, "k": 64, "graph": graph(name), **arguments}
    with Loader(data, **given) as loader:
        return [(b.ids.tolist(), {c: v.tobytes() for c, v in b.columns.items()}) for b in loader]


def test_every_way_gives_the_same(make: Make) -> None:
    from code_of_mine import shaken  # type: ignore[import-not-found]

    data = make([50, 60, 10, 64, 200])
    whole = read(data, "shaken")
    assert read(data, "shaken", threads=1) == whole
    assert read(data, "shaken", feeder="node") == whole
    assert read(data, "shaken", engine="dali") == whole
    with Loader(data, global_batch=5, epochs=1, form="ragged", columns=[], graph=graph("shaken")[:1]) as one:
        batch = next(one)
    assert batch.offsets is not None
    for i, id in enumerate(batch.ids.tolist()):
        moved = batch.columns["xyz"][batch.offsets[i] : batch.offsets[i + 1]]
        stored = data.sample(int(np.flatnonzero(data.ids == id)[0])).columns["xyz"]
        noise = moved - stored
        assert 0.5 < noise.std() < 1.6
    assert callable(shaken)


@pytest.mark.parametrize("feeder", ["inline", "node"])
def test_code_that_raises_is_named_with_its_sample(make: Make, feeder: str) -> None:
    data = make([50, 77, 10])
    name = str(data.samples.column("name")[1])
    says = (
        rf"code_of_mine:fails: sample '{name}': worker \d+ raised ValueError: no normals here at .*:14; mend"
    )
    with pytest.raises(DataError, match=says):
        read(data, "fails", feeder=feeder, max_damaged=3)


@pytest.mark.parametrize("feeder", ["inline", "node"])
def test_code_that_hangs_is_named_in_its_time(make: Make, feeder: str) -> None:
    data = make([50, 77, 10])
    name = str(data.samples.column("name")[1])
    with pytest.raises(DataError, match=rf"sample '{name}': worker \d+ gave no answer in 3 s"):
        read(data, "hangs", feeder=feeder, timeout_s=3.0)


@pytest.mark.parametrize("feeder", ["inline", "node"])
def test_code_that_is_not_there_is_a_mistake_of_use(make: Make, feeder: str) -> None:
    with pytest.raises(UsageError, match=r"finds no function 'nothing' in .*code_of_mine.py"):
        read(make([50]), "nothing", feeder=feeder)


def test_more_rows_than_k_are_refused(make: Make) -> None:
    data = make([50])
    after = [{"kind": "random"}, *graph("doubled")]
    with pytest.raises(DataError, match=r"has 80 rows after the graph, k is 40; end it with 'random'"):
        read(data, "doubled", graph=after, k=40)
    assert len(read(data, "doubled", k=40)) == 2  # a sampler is added after it


def test_a_batch_larger_than_its_slot_is_refused(make: Make) -> None:
    data = make([5000])
    says = "column .* of a batch has .* bytes, a slot holds .*; an operator made a cloud larger"
    with pytest.raises(DataError, match=says):
        read(data, "doubled", k=None, form="ragged", feeder="node")
