from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from tamis.pipelines import statistics
from tamis.pipelines.build import DataSettings, build
from tamis.pipelines.splits import FilesSplit
from tamis.pipelines.statistics import Moments, Spread


@pytest.mark.parametrize(
    ("dtype", "width"), [("u2", 1), ("f8", 1), ("f4", 3), ("i4", 2), ("u1", 1), ("i8", 1)]
)
@pytest.mark.parametrize("rows", [3000, 40_003])
def test_figures_are_those_of_the_whole(dtype: str, width: int, rows: int) -> None:
    rng = np.random.default_rng(width + rows)
    shape = (rows,) if width == 1 else (rows, width)
    low = 0 if dtype == "u1" else 3e5 if dtype != "u2" else 6e4
    values = (low + rng.uniform(0, 100, shape)).astype(dtype)
    whole, merged = Moments(width), Moments(width)
    for part in np.split(values, [0, 7, 1000]):
        whole.add(part)
        own = Moments(width)
        own.add(part)
        merged.merge(Moments.of(Spread.model_validate_json(own.recorded().model_dump_json())))
    flat = values.reshape(rows, width).astype(float)
    for moments in (whole, merged):
        figures = moments.figures(values)
        for name, right in {
            "mean": flat.mean(0),
            "std": flat.std(0),
            "min": flat.min(0),
            "max": flat.max(0),
            "p01": np.percentile(flat, 1, axis=0),
            "p99": np.percentile(flat, 99, axis=0),
        }.items():
            assert getattr(figures, name) == pytest.approx(right.tolist(), rel=1e-12)


def test_values_that_are_not_finite_are_left_out() -> None:
    moments = Moments(2)
    rows = np.array([[1, np.nan], [np.inf, np.nan], [3, np.nan]], np.float32)
    moments.add(rows)
    figures = moments.figures(rows)
    assert figures.mean == [2, None]
    assert (figures.min, figures.max, figures.p99) == ([1, None], [3, None], [2.98, None])
    assert (
        Moments.of(Spread.model_validate_json(moments.recorded().model_dump_json())).figures(rows) == figures
    )


def test_figures_that_float64_cannot_hold_are_null() -> None:
    moments = Moments(1)
    moments.add(np.array([1e308, -1e308, 1.5e308]))
    figures = moments.figures(np.array([1e308, -1e308, 1.5e308]))
    assert (figures.std, figures.min, figures.max) == ([None], [-1e308], [1.5e308])


def test_a_far_value_does_not_drown_the_others() -> None:
    values = np.concatenate([[1e9], np.random.default_rng(0).uniform(0, 1, 100_000)])
    moments = Moments(1)
    moments.add(values)
    assert moments.figures(values).std == pytest.approx([values.std()], rel=1e-9)


@pytest.mark.parametrize("val", [["[0234].npy"], []], ids=["nothing to learn from", "train"])
def test_percentiles_use_every_nth_row_of_what_is_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, val: list[str]
) -> None:
    monkeypatch.setattr(statistics, "KEPT", 100)
    for number, part in enumerate(np.split(np.random.default_rng(0).random((1050, 3)), [13, 14, 500, 777])):
        np.save(tmp_path / f"{number}.npy", part)
    split = FilesSplit(kind="files", val=val, test=["1.npy"])
    dataset = build(DataSettings(root=tmp_path, row_order="source", split=split), tmp_path / "run")
    splits = ("val", "test") if val else ("train",)
    described = [row for name in splits for part in dataset.splits[name] for row in range(*part.rows)]
    rows = np.concatenate([dataset.sample(row).columns["row"] for row in described])
    assert len(rows) == (1050 if val else 1049)
    assert dataset.statistics["row"].p99 == [np.percentile(rows[::11], 99)]


@pytest.mark.parametrize("seed", range(5))
def test_samples_give_the_same_bits_one_by_one_and_at_once(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(statistics, "_BLOCK", 50)
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 120, 30)
    values = rng.normal(1e5, 3, (sizes.sum(), 3))
    starts = np.cumsum([0, *sizes]).tolist()
    at_once, one_by_one = Moments(3), Moments(3)
    at_once.add(values, starts[:-1])
    for first, stop in itertools.pairwise(starts):
        one_by_one.add(values[first:stop])
    assert at_once.recorded() == one_by_one.recorded()
    assert at_once.figures(values).std == pytest.approx(values.std(axis=0).tolist(), rel=1e-9)
