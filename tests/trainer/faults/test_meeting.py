"""Ranks of one start meet, whatever earlier ones left in the store."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore

from tamis.bench.ranks import on_ranks
from tamis.errors import LostError
from tamis.trainer.faults.meeting import meet, met
from tamis.trainer.faults.supervisor import LISTENER


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


def refusal(work: Callable[[], Any], environment: dict[str, Any]) -> str:
    """What ``work`` is refused with, in a process that ends at once: threads may still wait for a store."""

    def refused() -> str:
        os.environ.pop(LISTENER, None)
        os.environ.update({name: str(value) for name, value in environment.items()})
        with pytest.raises(LostError) as error:
            work()
        return str(error.value)

    return str(on_ranks(1, refused))


def test_who_does_not_come_is_named() -> None:
    def work() -> None:
        store = HashStore()
        # It waits for a rank 0 that comes again.
        threading.Thread(target=meet, args=(store, 1, 3, 0.3), daemon=True).start()
        meet(store, 0, 3, 0.3)

    told = refusal(work, {})
    assert told == (
        "rank 0: rank 2 has not come within 0.3 s; see why it did not start, or raise layout.timeout_s"
    )


def test_a_rank_0_that_was_stopped_as_it_began_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # the command's, which nobody serves
        port = listener.getsockname()[1]
        told = refusal(lambda: met(1, 2, 0.3), {"MASTER_PORT": port, LISTENER: 9})
    assert told.startswith(f"rank 1: rank 0 does not answer at 127.0.0.1:{port} (it said nothing in time); ")
    assert "layout.timeout_s" in told


def test_the_store_of_an_agent_that_is_gone_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    told = refusal(lambda: met(0, 2, 0.3), {"MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": True})
    assert told.startswith(f"rank 0: torchrun's agent does not answer at 127.0.0.1:{port} ")
