"""Ranks of one start meet, whatever earlier ones left in the store."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore

from tamis.errors import LostError
from tamis.trainer.faults.meeting import meet


def together(world: int, work: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(world) as threads:
        return list(threads.map(work, range(world)))


def _met(store: HashStore, world: int, rank: int) -> str:
    return meet(store, rank, world, 20.0)


@settings(max_examples=8, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=3), st.booleans())
def test_each_start_has_a_name_of_its_own(worlds: list[int], listed: bool) -> None:
    """With more or fewer ranks than before, and after a start whose rank 0 died in the middle of it."""
    store, seen = HashStore(), set()
    for world in worlds:
        if not listed:
            store.set("meeting", "of the dead")
            store.set("of the dead/1", "a signature")
        found = together(world, partial(_met, store, world))
        assert len(set(found)) == 1
        assert found[0] not in seen
        seen.add(found[0])


def test_who_does_not_come_is_named() -> None:
    store = HashStore()
    # It waits for a rank 0 that comes again.
    threading.Thread(target=meet, args=(store, 1, 3, 0.3), daemon=True).start()
    with pytest.raises(LostError, match=r"rank 0: rank 2 has not come within 0.3 s; .*layout.timeout_s"):
        meet(store, 0, 3, 0.3)
