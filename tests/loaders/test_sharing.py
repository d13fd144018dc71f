"""Interrupts, threads and processes: every batch is given out once, and the state says which."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from tamis.errors import UsageError
from tamis.loaders import ahead, loader
from tamis.loaders.batches import Batches
from tamis.loaders.loader import Batch, Loader
from tamis.pipelines.dataset import Dataset

Make = Callable[..., Dataset]


def content(batch: Batch) -> tuple[int, bytes, bytes]:
    return batch.step, batch.ids.tobytes(), batch.columns["xyz"].tobytes()


def read(data: Dataset, **changes: Any) -> list[tuple[int, bytes, bytes]]:
    with Loader(data, global_batch=1, k=64, epochs=1, **changes) as made:
        return [content(batch) for batch in made]


def test_an_interrupt_anywhere_costs_no_batch(make: Make, interrupt: Callable[..., Any]) -> None:
    data = make([300] * 4)
    whole, at, hit = read(data), 0, True
    while hit:
        got, hit = [], False
        with Loader(data, global_batch=1, k=64, epochs=1) as made:
            before = sys.gettrace()
            sys.settrace(interrupt(at, ahead, loader))
            try:
                for batch in made:
                    got.append(content(batch))
            except KeyboardInterrupt:
                hit = True
            finally:
                sys.settrace(before)
            assert made.state_dict()["step"] == len(got)
            got += [content(batch) for batch in iter(lambda: next(made, None), None)]
            assert got == whole, at
        at += 1
    assert at > 50


def test_an_interrupt_as_the_thread_starts_leaves_one_reader(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, start = make([300] * 4), threading.Thread.start

    def interrupted(self: threading.Thread) -> None:
        start(self)
        if self.name.startswith("tamis-read"):
            monkeypatch.undo()
            raise KeyboardInterrupt

    whole = read(data)
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        read(data)
    assert read(data) == whole


def test_one_batch_is_made_at_a_time(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made_batch, working, most = Batches._made, [0], [0]

    def slow(self: Batches, part: Any, empty: Any) -> Batch:
        working[0] += 1
        most[0] = max(most[0], working[0])
        time.sleep(0.01)
        batch = made_batch(self, part, empty)
        working[0] -= 1
        return batch

    monkeypatch.setattr(Batches, "_made", slow)
    with Loader(make([300] * 4), global_batch=1, k=64) as made:
        cursor = made._cursor
        calls = [
            threading.Thread(
                target=made._feed._batches.make,  # type: ignore[attr-defined]
                args=(cursor,),
            )
            for _ in range(3)
        ]
        for call in calls:
            call.start()
        for call in calls:
            call.join()
    assert most == [1]


def test_threads_that_share_a_loader_share_its_batches(make: Make) -> None:
    data = make([300] * 30)
    whole, got = read(data), list[tuple[int, bytes, bytes]]()
    with Loader(data, global_batch=1, k=64, epochs=1, threads=2) as made:

        def consume() -> None:
            got.extend(content(batch) for batch in iter(lambda: next(made, None), None))

        consumers = [threading.Thread(target=consume) for _ in range(6)]
        for consumer in consumers:
            consumer.start()
        for consumer in consumers:
            consumer.join()
        assert made.state_dict()["step"] == 30
    assert sorted(got) == whole


@pytest.mark.parametrize("wait_s", [0.0, 0.01, 0.03])
def test_closing_from_another_thread_is_said_to_the_one_that_iterates(make: Make, wait_s: float) -> None:
    made, said = Loader(make([300] * 30), global_batch=4, k=64, threads=2), list[str]()

    def consume() -> None:
        with pytest.raises(UsageError) as caught:
            for _ in made:
                pass
        said.append(str(caught.value))

    consumers = [threading.Thread(target=consume) for _ in range(2)]
    for consumer in consumers:
        consumer.start()
    time.sleep(wait_s)
    made.close()
    for consumer in consumers:
        consumer.join(10)
    assert said == ["loader: was closed; make a new one"] * 2


@pytest.mark.parametrize("taken", [0, 1])
def test_a_forked_process_is_told_to_open_its_own(make: Make, taken: int) -> None:
    with Loader(make([300] * 4), global_batch=1, k=64) as made:
        for _ in range(taken):
            next(made)
        ours, theirs = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads is the point
            child = os.fork()
        if not child:
            try:
                next(made)
            except UsageError as error:
                made.close()
                os.write(theirs, str(error).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert os.read(ours, 1000) == b"loader: was opened in another process; open a Loader in each process"
        assert next(made).step == taken
        os.close(ours)
        os.close(theirs)


def test_a_loader_cannot_be_sent_to_another_process(make: Make) -> None:
    with (
        Loader(make([300]), global_batch=1, k=64) as made,
        pytest.raises(UsageError, match="open a Loader in each process"),
    ):
        pickle.dumps(made)
