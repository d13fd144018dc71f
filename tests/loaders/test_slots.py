"""The memory of a ring: what lies where, how many slots there is room for, and what is refused."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.errors import DataError, UsageError
from tamis.loaders.limits import Limit
from tamis.loaders.slots import (
    TEXT_BYTES,
    Control,
    Head,
    Layout,
    Part,
    Slots,
    layout,
    parts_of,
    reserve,
    rings_of,
)
from tamis.pipelines.records import Field

FIELDS = {
    "xyz": Field(np.dtype(np.float32), 3, "point"),
    "label": Field(np.dtype(np.int32), 1, "class"),
    "intensity": Field(np.dtype(np.uint16), 1, "none"),
}
LARGEST = Head(0, 0, 64, 4, 100, dense=1)


@pytest.fixture
def files() -> Iterator[dict[str, int]]:
    """Descriptors to be closed."""
    made: dict[str, int] = {}
    yield made
    for fd in made.values():
        os.close(fd)


def shapes(parts: Mapping[str, Part], head: Head) -> dict[str, tuple[int, ...]]:
    return {name: part.shape(head) for name, part in parts.items()}


def test_the_arrays_of_a_dense_batch() -> None:
    parts = parts_of(FIELDS, dense=True, serialised=True)
    assert shapes(parts, Head(3, 0, 64, 4, 0, dense=1)) == {
        "ids": (4,),
        "weight": (4,),
        "mask": (4, 64),
        "xyz": (4, 64, 3),
        "label": (4, 64),
        "intensity": (4, 64),
        "transposed": (4, 64),
    }
    assert parts["xyz"].dtype == np.float32


def test_the_arrays_of_a_ragged_batch() -> None:
    parts = parts_of(FIELDS, dense=False, serialised=False)
    assert shapes(parts, Head(3, 0, 0, 4, 77, dense=0)) == {
        "ids": (4,),
        "weight": (4,),
        "offsets": (5,),
        "xyz": (77, 3),
        "label": (77,),
        "intensity": (77,),
    }


@given(
    slots=st.integers(2, 5),
    readers=st.integers(1, 4),
    places=st.integers(1, 9),
    rows=st.integers(0, 3000),
    dense=st.booleans(),
)
def test_no_array_reaches_into_another(slots: int, readers: int, places: int, rows: int, dense: bool) -> None:
    largest = Head(0, 0, rows if dense else 0, places, rows, dense)
    parts = parts_of(FIELDS, dense=dense, serialised=dense)
    ring = layout(parts, largest, slots, readers)
    made = {name: reserve(name, slots * room) for name, room in ring.room.items()}
    memory = Slots(made, ring)
    arrays = [
        memory.array(slot, name, part.shape(largest), part.dtype)
        for slot in range(slots)
        for name, part in parts.items()
    ]
    for value, array in enumerate(arrays):
        array.view(np.uint8).fill(value + 1)
    for value, array in enumerate(arrays):
        assert (array.view(np.uint8) == value + 1).all()
        assert array.ctypes.data % mmap.PAGESIZE == 0
    for fd in made.values():
        os.close(fd)


def test_a_batch_larger_than_a_slot_is_refused(files: dict[str, int]) -> None:
    files["xyz"] = reserve("xyz", 2 * mmap.PAGESIZE)
    memory = Slots(files, Layout(2, 1, {"xyz": mmap.PAGESIZE}))
    with pytest.raises(DataError, match="column xyz of a batch has 4104 bytes, a slot holds 4096"):
        memory.array(0, "xyz", (342, 3), np.dtype(np.float32))


def test_control_tells_each_reader_what_a_slot_holds(files: dict[str, int]) -> None:
    ring = Layout(3, 2, {})
    files["control"] = reserve("control", ring.control_bytes)
    feeder, reader = Control(files["control"], ring), Control(files["control"], ring)
    longest = b"x" * TEXT_BYTES
    for seq in range(7):
        text = (b"", b"what", longest)[seq % 3]
        head = Head(seq, seq // 4, 64, 4, 100 + seq, dense=1, text=len(text))
        feeder.write(seq % 3, head, text)
        feeder.ring.publish(seq % 3, seq)
        assert reader.ring.slot(seq) == seq % 3
        assert reader.read(seq % 3) == (head, text)
    assert reader.read(2) == (Head(5, 1, 64, 4, 105, 1, TEXT_BYTES), longest)
    feeder.table[:] = 7
    assert reader.read(0)[0].step == 6
    assert (reader.table == 7).all()


def test_what_a_reader_writes_stays_its_own_until_it_forgets(files: dict[str, int]) -> None:
    files["xyz"] = reserve("xyz", 2 * mmap.PAGESIZE)
    ring = Layout(2, 2, {"xyz": mmap.PAGESIZE})
    feeder, one, other = Slots(files, ring), *(Slots(files, ring, private=True) for _ in range(2))

    def view(slots: Slots, slot: int) -> Any:
        return slots.array(slot, "xyz", (1024,), np.dtype(np.int32))

    view(feeder, 0)[:] = 1
    view(feeder, 1)[:] = 2
    view(one, 0)[:] = -1
    view(one, 1)[:] = -2
    assert (view(one, 0) == -1).all()
    assert (view(other, 0) == 1).all()
    assert (view(feeder, 0) == 1).all()
    one.forget(0)
    view(feeder, 0)[:] = 3
    assert (view(one, 0) == 3).all()
    assert (view(other, 0) == 3).all()
    assert (view(one, 1) == -2).all()


def rings(
    slots: int | None, free: int, parts: Mapping[str, Part] | None = None, readers: int = 1
) -> dict[int, Layout]:
    dense = parts_of(FIELDS, dense=True, serialised=False)
    given = {0: parts or dense, 1: dense}
    return rings_of(given, {0: readers, 1: 1}, LARGEST, slots, Limit(free, Path("memory.max")))


def need(slots: int) -> int:
    """Bytes that two rings take."""
    return sum(ring.bytes for ring in rings(slots, 2**60).values())


@pytest.mark.parametrize("slots", [4, 3, 2])
def test_as_many_slots_as_there_is_memory_for(slots: int) -> None:
    just = -(-need(slots) * 10 // 9)
    assert {ring.slots for ring in rings(None, just).values()} == {slots}
    if slots > 2:
        assert {ring.slots for ring in rings(None, just - 20).values()} == {slots - 1}


def test_memory_that_is_short_is_refused_with_the_number_to_change() -> None:
    just = -(-need(5) * 10 // 9)
    with pytest.raises(UsageError) as caught:
        rings(9, just)
    text = str(caught.value)
    assert f"9 slots of {need(9) / 9e6:.1f} MB need {need(9) / 1e6:.1f} MB of memory" in text
    assert f"{just / 1e6:.1f} MB are free by memory.max; set loader.slots to 5" in text
    assert {ring.slots for ring in rings(5, just).values()} == {5}
    with pytest.raises(UsageError):
        rings(6, just)


@pytest.mark.parametrize("slots", [None, 2, 7, 2**31])
def test_memory_for_less_than_two_slots_is_refused(slots: int | None) -> None:
    with pytest.raises(UsageError, match=r"are free by memory\.max; lower loader\.batch or the points"):
        rings(slots, need(2))


def test_a_ring_for_more_readers_is_no_larger_but_for_their_words() -> None:
    few, many = rings(4, 2**60)[0], rings(4, 2**60, readers=8)[0]
    assert 0 <= many.bytes - few.bytes <= mmap.PAGESIZE
    assert few.room == many.room


def test_memory_that_cannot_be_reserved_is_an_error_and_leaves_no_descriptor() -> None:
    script = """
import os, resource
from tamis.errors import UsageError
from tamis.loaders.slots import reserve
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
before = os.listdir("/proc/self/fd")
try:
    reserve("a long name of a column " * 20, 1 << 21)
except UsageError as error:
    print(error)
assert os.listdir("/proc/self/fd") == before
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    said = "loader.feeder: 2.1 MB of shared memory cannot be reserved (File too large); lower loader.slots or"
    assert result.stdout.startswith(said)
