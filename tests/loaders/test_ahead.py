"""Reading ahead: errors reach the consumer, and the threads end, whatever happens."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tamis.errors import UsageError
from tamis.loaders import ahead
from tamis.loaders.batches import Batches
from tamis.loaders.loader import Batch, Loader
from tamis.metrics import STREAM, Meter, stage_rows
from tamis.pipelines.dataset import Dataset

Make = Callable[..., Dataset]
Wait = Callable[[Callable[[], bool]], None]


def loader_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("tamis-")]


def test_s17_an_exception_in_an_operator_reaches_the_consumer(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, made_batches = make([300] * 6), Batches.make

    def make_or_fail(self: Batches, cursor: Any, *empty: Any) -> Batch:
        if cursor.step == 3:
            raise MemoryError("no room")
        return made_batches(self, cursor, *empty)

    monkeypatch.setattr(Batches, "make", make_or_fail)
    with Loader(data, global_batch=1, k=128) as made:
        assert [next(made).step for _ in range(3)] == [0, 1, 2]
        with pytest.raises(MemoryError, match="no room"):
            next(made)
        monkeypatch.undo()
        assert next(made).step == 3


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_s17_close_ends_the_threads_and_closes_the_files(make: Make, wait_until: Wait, taken: int) -> None:
    data = make([300] * 6, per_shard=1)
    made = Loader(data, global_batch=1, k=128, threads=3)
    for _ in range(taken):
        next(made)
    made.close()
    made.close()
    wait_until(lambda: not loader_threads())
    held = [link.resolve() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert not [path for path in held if path.name.startswith("shard-") and path.is_relative_to(data.path)]
    for call in (lambda: next(made), lambda: made.load_state_dict({})):
        with pytest.raises(UsageError, match="closed"):
            call()


def test_s17_close_comes_back_from_a_worker_that_hangs(
    make: Make, wait_until: Wait, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data, started, released = make([300] * 6), threading.Event(), threading.Event()
    monkeypatch.setattr(ahead, "_CLOSE_S", 0.05)

    def hang(*_: Any) -> None:
        started.set()
        released.wait(60)

    monkeypatch.setattr(Batches, "_made", hang)
    made = Loader(data, global_batch=1, k=128)

    def consume() -> None:
        with pytest.raises(UsageError, match="loader: was closed"):  # it waits for a batch that will not come
            next(made)

    reader = threading.Thread(target=consume)
    reader.start()
    started.wait(10)
    made.close()
    assert "left behind" in caplog.text
    released.set()
    reader.join()


def test_s17_a_dropped_loader_takes_its_threads_along(make: Make, wait_until: Wait) -> None:
    data = make([300] * 6)
    made = Loader(data, global_batch=2, k=128, threads=2)
    next(made)
    gone = weakref.ref(made)
    del made
    gc.collect()
    assert gone() is None
    wait_until(lambda: not loader_threads())


def test_the_meter_counts_every_stage(make: Make, wait_until: Wait) -> None:
    data, meter = make([300] * 4), Meter(STREAM)
    with Loader(data, global_batch=2, k=128, epochs=1, meter=meter) as made:
        next(made)
        wait_until(lambda: not made._feed._run.working)  # type: ignore[attr-defined]
        time.sleep(0.05)
        rest = list(made)
        assert next(made, None) is None
    assert len(rest) == 1
    rows = {row["stage"]: row for row in stage_rows(STREAM, meter.table[None], 1.0)}
    assert [rows[stage]["items"] for stage in STREAM] == [4, 4, 4, 2]
    assert rows["stream.fetch"]["bytes"] == 1200 * sum(f.row_bytes for f in data.schema.values())
    assert (rows["stream.graph"]["points_in"], rows["stream.graph"]["points_out"]) == (1200, 512)
    assert all(rows[stage]["busy_s"] > 0 for stage in STREAM)


def test_a_slow_consumer_blocks_the_stream(make: Make, wait_until: Wait) -> None:
    data, meter = make([300] * 6), Meter(STREAM)
    with Loader(data, global_batch=1, k=128, meter=meter) as made:
        next(made)
        wait_until(lambda: not made._feed._run.working)  # type: ignore[attr-defined]
        time.sleep(0.05)
        next(made)
    rows = {row["stage"]: row for row in stage_rows(STREAM, meter.table[None], 1.0)}
    assert rows["stream.deliver"]["wait_out_s"] >= 0.05
