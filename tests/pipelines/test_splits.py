from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tamis.config import check
from tamis.errors import DataError, UsageError
from tamis.pipelines.build import DataSettings
from tamis.pipelines.splits import BlocksSplit, FilesSplit, divide


@pytest.mark.parametrize("seed", range(3))
def test_blocks_follow_the_formula(seed: int) -> None:
    rng = np.random.default_rng(seed)
    xyz = rng.uniform(-100, 100, (1000, 3))
    split = BlocksSplit(kind="blocks", size=[10, 7.5], of=3, test=[1], val=[2])
    rows = divide(xyz, split, "a", {})
    number = (np.floor(xyz[:, 0] / 10) + np.floor(xyz[:, 1] / 7.5)).astype(int) % 3
    assert {name: set(number[found]) for name, found in rows.items()} == {
        "train": {0},
        "val": {2},
        "test": {1},
    }
    assert sorted(np.concatenate(list(rows.values()))) == list(range(1000))


def test_an_axis_of_size_zero_is_not_cut() -> None:
    xyz = np.array([[5, 900, 0], [15, -900, 0], [-5, 0, 0]], float)
    rows = divide(xyz, BlocksSplit(kind="blocks", size=[10, 0]), "a", {})
    assert {name: found.tolist() for name, found in rows.items()} == {"train": [0], "test": [1, 2]}


def test_files_and_nothing() -> None:
    xyz = np.zeros((4, 3))
    split = FilesSplit(kind="files", test=["t"])
    assert list(divide(xyz, split, "t", {"t": "test"})) == ["test"]
    assert list(divide(xyz, split, "a", {"t": "test"})) == ["train"]
    assert divide(xyz, None, "a", {})["train"].tolist() == [0, 1, 2, 3]
    assert list(divide(np.empty((0, 3)), BlocksSplit(kind="blocks", size=[1, 1]), "a", {})) == ["train"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": [0, 0]},
        {"test": [2]},
        {"test": [0], "val": [0]},
        {"test": [0], "val": [1]},
        {"size": [1]},
        {"of": 1},
    ],
)
def test_blocks_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        BlocksSplit(**({"kind": "blocks", "size": [10, 10]} | wrong))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"classes": {"a": [1], "b": [2, 1]}}, "code 1 is listed twice, in a and in b"),
        ({"bounds": [0, 0, 0, 5]}, "xmin < xmax"),
        ({"bounds": [0, 0, 5]}, "data.bounds|bounds"),
        ({"tiles": {"size": 10, "stride": 20}}, "leaves ground between"),
        ({"tiles": {"size": -1}}, "tiles.size"),
        ({"row_order": "sorted"}, "row_order"),
        ({"tiles": {"size": math.inf}}, "tiles.size"),
        ({"tiles": {"size": 1.0, "stride": math.nan}}, "tiles.stride"),
        ({"bounds": [0, 0, math.inf, 1]}, "bounds"),
        ({"split": {"kind": "blocks", "size": [math.inf, 1]}}, "split.size"),
        ({"fields": ["ring", "ring"]}, "ring is listed twice"),
        ({"shard_mb": 0}, "shard_mb"),
        ({"split": {"kind": "block", "size": [1, 1]}}, "split"),
        ({"split": {"kind": "blocks", "sise": [1, 1]}}, "split"),
        ({"rows_order": "random"}, "did you mean 'row_order'"),
    ],
)
def test_wrong_settings_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        check(values, DataSettings, where="data")
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", [1e-300, 5e-324, 1e-14])
def test_blocks_too_small_to_number_are_refused(size: float) -> None:
    split = BlocksSplit(kind="blocks", size=[size, 0])
    with pytest.raises(DataError, match=r"a\.npy: reaches 20, .*data\.split\.size"):
        divide(np.full((3, 3), -20.0), split, "a.npy", {})
