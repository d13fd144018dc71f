from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from tamis.samplers import scratch


@pytest.fixture(autouse=True)
def _own_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_pool", scratch._Pool())


def test_memory_is_used_again_only_when_its_last_view_is_gone() -> None:
    array = scratch.take((1 << 18, 2), np.int32)
    place, view = array.ctypes.data, array[5:, 1].view(np.uint32)
    del array
    other = scratch.take((1 << 18, 2), np.int32)
    assert other.ctypes.data != place
    del view
    gc.collect()
    assert scratch.take((1 << 18, 2), np.int32).ctypes.data == place


def test_arrays_begin_with_a_line_and_have_what_was_asked_for() -> None:
    for n in (1, 1000, 65_536, 100_003, 1 << 21):
        array = scratch.take((n, 3), np.float64)
        assert array.shape == (n, 3)
        assert array.dtype == np.float64
        assert array.nbytes < scratch._SMALL or array.ctypes.data % 64 == 0
        array[:] = 1.0  # all of it is there
    assert scratch.take((0, 5), np.float32).shape == (0, 5)


def test_arrays_carved_from_one_piece_lie_apart() -> None:
    wanted = [((n, 3), np.dtype(dtype)) for n, dtype in ((50_000, "i8"), (0, "f4"), (7001, "f4"), (1, "u1"))]
    arrays = scratch.carve(*wanted)
    for number, ((shape, dtype), array) in enumerate(zip(wanted, arrays, strict=True)):
        assert (array.shape, array.dtype) == (shape, dtype)
        array[:] = number
    assert [set(array.ravel().tolist()) for array in arrays] == [{0}, set(), {2}, {3}]
    assert all(array.ctypes.data % 64 == 0 for array in arrays)
    ends = np.cumsum([[a.ctypes.data - arrays[0].ctypes.data, a.nbytes] for a in arrays], axis=1)
    assert (ends[1:, 0] >= ends[:-1, 1]).all()


def test_beyond_the_limit_the_oldest_go() -> None:
    scratch._pool.most = 3 << 20
    for size in (1 << 20, 2 << 20, (1 << 20) + (1 << 18), 3 << 20):
        del_me = scratch.take(size, np.uint8)
        del del_me
        assert scratch._pool.bytes == sum(block.size for block in scratch._pool.blocks) <= 3 << 20
    assert [block.size for block in scratch._pool.blocks] == [3 << 20]


def test_threads_have_pools_of_their_own() -> None:
    places: list[int] = []

    def work() -> None:
        array = scratch.take(1 << 20, np.uint8)
        places.append(array.ctypes.data)
        kept.append(array)

    kept: list[object] = []
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(places)) == 4
    kept.clear()  # dropped here, so they wait here
    assert len(scratch._pool.blocks) == 4
