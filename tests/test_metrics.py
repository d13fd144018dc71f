"""The stage table: figures add up over workers, percentiles are right, the limiting stage is named."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tamis.metrics import FIGURES, STREAM, TRAIN, Meter, limiting_stage, render, stage_rows


def rows_of(**figures: dict[str, float]) -> list[dict[str, Any]]:
    """Rows of one worker over ten seconds; keyword names use two underscores for the dot."""
    meter = Meter([*STREAM, *TRAIN])
    for stage, values in figures.items():
        meter.add(stage.replace("__", "."), **values)
    return stage_rows(meter.stages, meter.table[None], 10.0)


def test_figures_add_up_and_shares_are_means_over_workers() -> None:
    meters = [Meter(STREAM), Meter(STREAM)]
    for busy, meter in zip((2.0, 4.0), meters, strict=True):
        meter.busy("stream.fetch", busy, items=5)
        meter.add("stream.fetch", bytes=100, points_in=7, wait_out_s=1.0)
    (row,) = stage_rows(STREAM, np.stack([m.table for m in meters]), 10.0)
    assert (row["stage"], row["workers"], row["items"], row["bytes"], row["points_in"]) == (
        "stream.fetch",
        2,
        10,
        200,
        14,
    )
    assert row["busy"] == pytest.approx(0.3)
    assert row["blocked"] == pytest.approx(0.1)
    assert row["items_per_s"] == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(3))
def test_percentiles_are_right_to_a_tenth(seed: int) -> None:
    durations = np.random.default_rng(seed).lognormal(-5, 1, 2000)
    meter = Meter(("a",))
    for seconds in durations:
        meter.busy("a", seconds)
    (row,) = stage_rows(("a",), meter.table[None], 1.0)
    assert row["p50_s"] == pytest.approx(np.quantile(durations, 0.50), rel=0.1)
    assert row["p99_s"] == pytest.approx(np.quantile(durations, 0.99), rel=0.1)


def test_blocks_are_timed_and_a_raising_block_is_no_item() -> None:
    meter = Meter(("a",))
    with meter.time("a", items=3), meter.wait("a"):
        time.sleep(0.02)
    with pytest.raises(ZeroDivisionError), meter.time("a"):
        raise ZeroDivisionError
    figures = dict(zip(FIGURES, meter.table[0], strict=False))
    assert figures["items"] == 3
    assert 0.02 <= figures["wait_in_s"] <= figures["busy_s"] < 0.5


def test_limiting_stage_is_the_stream_where_training_waits() -> None:
    starved = rows_of(
        stream__fetch={"busy_s": 1},
        stream__graph={"busy_s": 6},
        train__wait={"wait_in_s": 4},
        train__backward={"busy_s": 3},
    )
    assert limiting_stage(starved) == "stream.graph"


def test_limiting_stage_is_the_busiest_of_training_where_data_is_there() -> None:
    fed = rows_of(
        stream__graph={"busy_s": 6},
        train__wait={"wait_in_s": 0.2},
        train__forward={"busy_s": 3},
        train__backward={"busy_s": 5},
    )
    assert limiting_stage(fed) == "train.backward"
    assert limiting_stage(rows_of(stream__pack={"busy_s": 2}, stream__fetch={"busy_s": 1})) == "stream.pack"
    assert limiting_stage([]) is None


def test_the_table_names_its_columns_and_the_limit() -> None:
    text = render(
        rows_of(stream__fetch={"busy_s": 5, "items": 20, "bytes": 3e6}), "stream.fetch"
    ).splitlines()
    assert text[0].split()[:3] == ["stage", "items", "items/s"]
    assert "50.0%" in text[1]
    assert "3.0" in text[1]
    assert text[-1] == "limiting stage: stream.fetch"


def test_a_profiler_may_name_the_blocks() -> None:
    named: list[str] = []

    @contextmanager
    def annotate(stage: str) -> Iterator[None]:
        named.append(f"{stage} begins")
        yield
        named.append(f"{stage} ends")

    meter = Meter(("a", "b"))
    meter.annotate = annotate
    with meter.time("a"), meter.wait("b"):
        named.append("work")
    assert named == ["a begins", "b begins", "work", "b ends", "a ends"]
    meter.annotate = None
    with meter.time("a"):
        named.append("unnamed")
    assert named[-1] == "unnamed"
    assert meter.table[0, FIGURES.index("items")] == 2
