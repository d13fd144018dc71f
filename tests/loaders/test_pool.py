"""The pool: memory is used again once nobody holds it, and never before."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tamis.loaders.loader import Loader
from tamis.loaders.pool import Pool
from tamis.pipelines.dataset import Dataset

Make = Callable[..., Dataset]

FLOAT = np.dtype(np.float32)
ROWS = 50_000


def taken(pool: Pool, rows: int = ROWS) -> NDArray[np.float32]:
    return pool.empty("xyz", (rows, 3), FLOAT)


def address(values: NDArray[Any]) -> int:
    return int(values.ctypes.data)


def test_memory_is_used_again_when_the_array_is_gone() -> None:
    pool = Pool(keep=3)
    first = taken(pool)
    at = address(first)
    assert (first.shape, first.dtype, first.flags.writeable) == ((ROWS, 3), FLOAT, True)
    second = taken(pool)
    assert address(second) != at  # it is held
    del first
    assert address(taken(pool, ROWS - 100)) == at


@pytest.mark.parametrize(
    "view",
    [
        lambda values: values[7:9, 1],
        lambda values: values.reshape(-1).view(np.uint8)[3:],
        lambda values: values.T.swapaxes(0, 1)[::-2],
        lambda values: np.asarray(values[:1])[...],
        lambda values: memoryview(values[2:]),
        lambda values: torch.from_numpy(values),
        lambda values: torch.from_numpy(values)[5:].T,
        lambda values: torch.from_numpy(values).numpy()[1:],
        lambda values: torch.utils.dlpack.from_dlpack(values),
        lambda values: {"kept": [values[:1]]},
    ],
)
def test_v13_the_last_view_or_tensor_keeps_the_memory(view: Callable[[Any], Any]) -> None:
    pool = Pool(keep=4)
    values = taken(pool)
    at = address(values)
    kept = view(values)
    del values
    gc.collect()
    assert at not in {address(taken(pool)) for _ in range(8)}
    del kept
    gc.collect()
    assert at in {address(one) for one in [taken(pool) for _ in range(4)]}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 5)), max_size=60), st.integers(1, 6))
def test_no_memory_is_given_out_twice(steps: list[tuple[int, int]], keep: int) -> None:
    pool, held = Pool(keep), list[tuple[NDArray[np.float32], int]]()
    for number, (size, drop) in enumerate(steps):
        values = taken(pool, 12_000 * size)
        values[...] = number
        held.append((values[number % 7 :], number))
        del values
        if drop < len(held):
            del held[drop]
        assert all((values == number).all() for values, number in held)
        assert len(pool._given["xyz"]) <= keep


def test_what_waits_is_bounded() -> None:
    pool = Pool(keep=2)
    held = [taken(pool) for _ in range(6)]
    known = {address(one) for one in held[-2:]}
    del held
    assert {address(one) for one in [taken(pool), taken(pool)]} == known


def test_memory_that_fits_badly_is_not_taken() -> None:
    pool = Pool(keep=3)
    at = address(taken(pool, 10 * ROWS))
    small = taken(pool)
    assert address(small) != at
    assert address(taken(pool, 10 * ROWS)) == at


def test_what_is_small_or_empty_is_new() -> None:
    pool = Pool(keep=3)
    assert pool.empty("ids", (32,), np.dtype(np.uint64)).base is None
    assert pool.empty("xyz", (0, 3), FLOAT).shape == (0, 3)


def test_arrays_may_be_dropped_on_any_thread() -> None:
    pool, queue, seen = Pool(keep=4), list[NDArray[np.float32]](), list[bool]()
    stop = threading.Event()

    def drop() -> None:
        while not stop.is_set() or queue:
            if queue:
                values = queue.pop()
                seen.append(bool((values == values[0, 0]).all()))
                del values

    threads = [threading.Thread(target=drop) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(300):
        values = taken(pool)
        values[...] = number
        queue.append(values)
        del values
        while len(queue) > 8:
            pass
    stop.set()
    for thread in threads:
        thread.join()
    assert seen == [True] * 300


def test_arrays_outlive_the_pool() -> None:
    pool = Pool(keep=2)
    values = taken(pool)
    values[...] = 3
    del pool
    gc.collect()
    assert (values == 3).all()


def test_a_forked_process_has_memory_of_its_own() -> None:
    pool = Pool(keep=2)
    held = taken(pool)
    held[...] = 1
    at = address(held)
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        try:
            del held
            again = taken(pool)
            again[...] = 2
            os.write(theirs, b"yes" if address(again) == at else b"no")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(ours, 10) == b"yes"
    assert (held == 1).all()
    assert address(taken(pool)) != at
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize("form", ["dense", "ragged"])
@pytest.mark.parametrize("graph", [(), ({"kind": "rotate"},)], ids=["read", "graph"])
def test_v13_a_batch_that_is_kept_stays_as_it_is(make: Make, form: str, graph: tuple[Any, ...]) -> None:
    data = make([14_000, 15_000, 16_000])
    arguments: dict[str, Any] = {"global_batch": 1, "k": 13_000, "form": form, "graph": graph, "epochs": 8}
    with Loader(data, **arguments) as made:
        copies = [{n: t.clone() for n, t in batch.torch().items()} for batch in made]
    with Loader(data, **arguments) as made:
        kept: list[dict[str, torch.Tensor]] = []
        for batch in made:
            tensors = batch.torch()
            kept.append(tensors if len(kept) % 3 else {})  # some are dropped at once
            del batch, tensors
    assert len(kept) == len(copies) == 24
    for tensors, copy in zip(kept, copies, strict=True):
        assert all(torch.equal(tensors[name], copy[name]) for name in tensors)


def test_batches_that_are_dropped_use_the_same_memory(make: Make) -> None:
    data = make([14_000, 15_000, 16_000])
    with Loader(data, global_batch=1, form="ragged", epochs=10) as made:
        places = {address(batch.columns["xyz"]) for batch in made}
    assert len(places) <= 8
