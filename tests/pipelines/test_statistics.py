from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from tamis.pipelines import statistics
from tamis.pipelines.records import Field
from tamis.pipelines.statistics import Moments


def test_only_the_rows_for_percentiles_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "KEPT", 1000)
    parts, rows, field = 20, 50_000, Field(np.dtype("f4"), 1, "none")
    compiled = Moments(field, 1)
    compiled.add(np.zeros(1, np.float32))
    assert compiled.figures().max == [0.0]
    moments = Moments(field, parts * rows)
    tracemalloc.start()
    for part in range(parts):
        moments.add(np.full(rows, part, np.float32))
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 8 * rows
    assert moments.figures().max == [parts - 1]


@pytest.mark.parametrize(("dtype", "width"), [("u2", 1), ("f8", 1), ("f4", 3), ("i4", 2)])
def test_figures_are_those_of_the_whole(dtype: str, width: int) -> None:
    rng = np.random.default_rng(width)
    shape = (3000,) if width == 1 else (3000, width)
    values = (3e5 + rng.uniform(0, 100, shape)).astype(dtype)
    moments = Moments(Field(np.dtype(dtype), width, "none"), len(values))
    for part in np.split(values, [0, 7, 1000]):
        moments.add(part)
    figures, flat = moments.figures(), values.reshape(3000, width).astype(float)
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
    moments = Moments(Field(np.dtype("f4"), 2, "none"), 4)
    moments.add(np.array([[1, np.nan], [np.inf, np.nan], [3, np.nan]], np.float32))
    figures = moments.figures()
    assert figures.mean == [2, None]
    assert (figures.min, figures.max, figures.p99) == ([1, None], [3, None], [2.98, None])


def test_percentiles_use_every_nth_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "KEPT", 100)
    moments = Moments(Field(np.dtype("f8"), 1, "none"), 1050)
    values = np.random.default_rng(0).permutation(1050).astype(float)
    for part in np.split(values, [13, 14, 500, 777]):
        moments.add(part)
    assert moments.figures().p99 == [np.percentile(values[::11], 99)]


def test_figures_that_float64_cannot_hold_are_null() -> None:
    moments = Moments(Field(np.dtype("f8"), 1, "none"), 3)
    moments.add(np.array([1e308, -1e308, 1.5e308]))
    figures = moments.figures()
    assert (figures.std, figures.min, figures.max) == ([None], [-1e308], [1.5e308])
