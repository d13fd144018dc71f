"""Copies to a device: a slot stays as it is until its copy has happened, and is free after that.

The device here is one that copies late: the bytes are read from the slot when its event happens, by their
address, so that a slot which the feeder wrote again before would show.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tamis.errors import DataError, UsageError
from tamis.loaders.attached import Attached
from tamis.loaders.device import Cuda, DeviceBatch, Mover, device_of, to_device
from tamis.loaders.loader import Batch, Loader
from tamis.pipelines.dataset import Dataset

Make = Callable[..., Dataset]


class LateEvent:
    """Happens when it is told to, or waited for."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work: Callable[[], None] | None = work
        self.waited = False

    def happen(self) -> None:
        if self._work:
            self._work()
        self._work = None

    def query(self) -> bool:
        return self._work is None

    def synchronize(self) -> None:
        self.waited = True
        self.happen()


class LateDevice:
    """Reads what it was told to copy when the copy's event happens. ``most``: spans it registers."""

    def __init__(self, most: int = 10**6) -> None:
        self.spans: dict[int, int] = {}
        self.events: list[LateEvent] = []
        self.outside = Counter[str]()
        self._most = most

    def register(self, address: int, size: int) -> None:
        if len(self.spans) >= self._most:
            raise DataError("loader.feeder", "no more", "stop")
        self.spans[address] = size

    def unregister(self, address: int) -> None:
        del self.spans[address]

    def copy(self, tensors: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], LateEvent]:
        copied = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
        reads = []  # addresses alone: what holds the slot is not the device
        for name, tensor in tensors.items():
            address, size = tensor.data_ptr(), tensor.numel() * tensor.element_size()
            reads.append((copied[name].data_ptr(), address, size))
            if not any(a <= address and address + size <= a + s for a, s in self.spans.items()):
                self.outside[name] += 1

        def work() -> None:
            for target, source, size in reads:
                ctypes.memmove(target, source, size)
            kept.clear()

        kept = [copied]  # the targets live until they are written
        self.events.append(LateEvent(work))
        return copied, self.events[-1]


def node_loader(data: Dataset, slots: int = 3, **changes: Any) -> Loader:
    arguments: dict[str, Any] = {
        "global_batch": 2,
        "k": 64,
        "epochs": 2,
        "feeder": "node",
        "slots": slots,
        "timeout_s": 60.0,
    }
    return Loader(data, **(arguments | changes))


def ring_of(loader: Loader) -> Attached:
    feed: Any = loader._feed
    ring: Attached = feed._link.ring
    return ring


def same(moved: DeviceBatch, expected: Batch) -> bool:
    tensors = expected.torch()
    assert moved.tensors.keys() == tensors.keys()
    heads = [(b.step, b.epoch, b.k) for b in (moved, expected)]
    return heads[0] == heads[1] and all(torch.equal(moved.tensors[n], t) for n, t in tensors.items())


@pytest.mark.parametrize(("slots", "form"), [(2, "ragged"), (3, "dense"), (5, "dense")])
def test_a_full_ring_waits_for_the_oldest_copy(make: Make, slots: int, form: str) -> None:
    data = make([50, 300, 70, 64, 100, 3, 80])
    device, moved = LateDevice(), []
    with node_loader(data, slots, form=form) as loader, Mover(loader, device) as mover:
        for batch in mover:  # no copy is done before it is waited for
            moved.append(batch)
            assert sum(not event.query() for event in device.events) <= slots - 1
            assert [event.waited for event in device.events] == sorted(
                (event.waited for event in device.events), reverse=True
            )
    assert len(moved) == 8
    assert all(event.query() for event in device.events)
    assert not device.spans
    assert not device.outside, "something was copied from memory that is not registered"
    with node_loader(data, form=form, feeder="inline") as loader:
        assert all(same(batch, expected) for batch, expected in zip(moved, loader, strict=True))


def test_a_slot_is_free_when_its_event_has_happened(make: Make, wait_until: Callable[..., None]) -> None:
    device = LateDevice()
    with node_loader(make([64] * 20), slots=4) as loader, Mover(loader, device) as mover:
        batches = iter(mover)
        first, second = next(batches), next(batches)
        feed: Any = loader._feed
        ring = feed._link.ring
        wait_until(lambda: ring.ring.slot(3) is not None)
        assert ring.ring.free() is None, "the slot of a copy under way may be written again"
        assert ring.holds(0)
        assert ring.holds(1)

        device.events[1].happen()  # not the oldest: copies end in order
        mover.make_room()
        assert ring.holds(1)
        device.events[0].happen()
        assert ring.holds(0), "nobody has looked yet"
        mover.make_room()
        assert not ring.holds(0)
        assert not ring.holds(1)
        wait_until(lambda: ring.ring.slot(5) is not None)
        assert first.step == 0
        assert second.step == 1


def test_the_state_is_that_of_the_batch_given_out_last(make: Make) -> None:
    data = make([64] * 10)
    with node_loader(data) as loader, Mover(loader, LateDevice()) as mover:
        batches = iter(mover)
        steps = [next(batches).step for _ in range(3)]
        state = loader.state_dict()
    with node_loader(data) as loader:
        loader.load_state_dict(state)
        device = LateDevice()
        with Mover(loader, device) as mover:
            steps += [batch.step for batch in mover]
    assert steps == list(range(10))


def test_closing_waits_for_the_copies_under_way(make: Make) -> None:
    device = LateDevice()
    with node_loader(make([64] * 10), slots=4) as loader:
        mover = Mover(loader, device)
        batches = iter(mover)
        moved = [next(batches) for _ in range(3)]
        assert device.spans
        assert not any(event.query() for event in device.events)
        mover.close()
        assert all(event.waited for event in device.events)
        assert not device.spans
        feed: Any = loader._feed
        assert not any(feed._link.ring.holds(seq) for seq in range(3))
        mover.close()
    assert len({batch.step for batch in moved}) == 3


def test_what_was_registered_is_given_back_where_the_rest_is_refused(make: Make) -> None:
    device = LateDevice(most=2)
    with node_loader(make([64] * 4)) as loader, pytest.raises(DataError, match="no more"):
        Mover(loader, device)
    assert not device.spans


def test_inline_batches_are_copied_from_where_they_are(make: Make) -> None:
    data = make([50, 300, 70, 64, 100])
    device = LateDevice()
    with node_loader(data, feeder="inline") as loader, Mover(loader, device) as mover:
        assert not device.spans
        moved = list(mover)
        assert sum(not event.waited for event in device.events) > 0
    with node_loader(data, feeder="inline") as loader:
        assert all(same(batch, expected) for batch, expected in zip(moved, loader, strict=True))


@contextmanager
def two_ranks(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Loader]]:
    """Loaders as two ranks that share a replica would open them."""
    loaders: list[Loader] = []
    for rank in (0, 1):
        for name, value in (("LOCAL_RANK", rank), ("LOCAL_WORLD_SIZE", 2), ("MASTER_PORT", id(loaders))):
            monkeypatch.setenv(name, str(value))
        loaders.append(node_loader(data))
    try:
        yield loaders
    finally:
        for loader in reversed(loaders):
            loader.close()


def test_ranks_that_share_a_ring_copy_from_it_itself(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    data = make([64] * 10)
    devices = [LateDevice(), LateDevice()]

    def read(loader: Loader, device: LateDevice) -> list[DeviceBatch]:
        with Mover(loader, device) as mover:
            moved = list(mover)
        assert not device.outside
        return moved

    with two_ranks(data, monkeypatch) as loaders, ThreadPoolExecutor(2) as threads:
        both = list(threads.map(read, loaders, devices))
    with node_loader(data, feeder="inline") as loader:
        for *moved, expected in zip(*both, loader, strict=True):
            assert all(same(batch, expected) for batch in moved)


def test_what_ranks_share_is_read_only_once_a_device_reads_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    with two_ranks(make([64] * 10), monkeypatch) as loaders, ThreadPoolExecutor(2) as threads:
        for memory in threads.map(Loader.host_memory, loaders):
            assert memory.slots == 3
            assert all(size > 0 for _, size in memory.spans)
        for batch in threads.map(next, loaders):
            with pytest.raises(ValueError, match="read-only"):
                batch.columns["xyz"][:] = 0


def test_a_view_of_ones_own_is_not_registered(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with two_ranks(make([64] * 10), monkeypatch) as loaders, ThreadPoolExecutor(2) as threads:
        for batch in threads.map(next, loaders):
            batch.columns["xyz"][:] = 0
        with pytest.raises(UsageError, match="give it to the device before its first batch"):
            loaders[0].host_memory()


def test_on_a_cpu_batches_stay_where_they_are(make: Make) -> None:
    data = make([64] * 6)
    with node_loader(data) as loader, node_loader(data, feeder="inline") as inline:
        for moved, expected in zip(to_device(loader, "cpu"), inline, strict=True):
            assert same(moved, expected)
    with node_loader(data) as loader, Mover(loader, None) as mover:
        batch = next(loader)
        assert mover.move(batch)["xyz"].data_ptr() == batch.columns["xyz"].ctypes.data


def test_a_loader_that_has_ended_says_so(make: Make) -> None:
    with node_loader(make([64] * 2), feeder="inline") as loader:
        assert len(list(to_device(loader, "cpu"))) == 2
        with pytest.raises(UsageError, match="has given all its epochs"):
            next(to_device(loader, "cpu"))


@pytest.mark.parametrize("name", ["gpu", "cuda:99", "meta"])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=rf"to_device.*'{name}'"):
        device_of(name)


def test_cuda_is_asked_in_the_right_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls alone, with a stand-in for torch's: that the bytes arrive needs a GPU, see below."""
    calls: list[str] = []

    class Stream:
        def __init__(self, device: Any, name: str = "side") -> None:
            self.name = name

        def wait_event(self, event: Event) -> None:
            calls.append(f"{self.name} waits")

    class Event:
        def record(self, stream: Stream) -> None:
            calls.append(f"event on {stream.name}")

    class Tensor:
        def to(self, device: Any, *, non_blocking: bool) -> Tensor:
            calls.append("copy, not waiting" if non_blocking else "copy")
            return self

        def record_stream(self, stream: Stream) -> None:
            calls.append(f"memory kept for {stream.name}")

    @contextmanager
    def stream(stream: Stream) -> Iterator[None]:
        calls.append(f"enter {stream.name}")
        yield
        calls.append(f"leave {stream.name}")

    class Runtime:
        cudaError = SimpleNamespace(success=0)
        answer = 0

        def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
            return self.answer

        def cudaHostUnregister(self, address: int) -> None:
            calls.append(f"unregister {address}")

        def cudaGetErrorString(self, code: int) -> str:
            return f"error {code}"

    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(torch.cuda, "current_stream", partial(Stream, name="caller"))
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    device = Cuda(torch.device("cuda", 0))
    tensors: Any = {"xyz": Tensor()}
    device.copy(tensors)
    assert calls == [
        "enter side",
        "copy, not waiting",
        "event on side",
        "leave side",
        "caller waits",
        "memory kept for caller",
    ]
    device.register(4096, 10**6)
    device.unregister(4096)
    assert calls[-1] == "unregister 4096"
    runtime.answer = 712
    with pytest.raises(DataError, match=r"1.0 MB.*cuda:0 \(error 712\)"):
        device.register(4096, 10**6)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("feeder", ["node", "inline"])
def test_a_gpu_gets_the_same_batches(make: Make, feeder: str) -> None:
    data = make([50, 300, 70, 64, 100] * 8)
    with node_loader(data, feeder=feeder) as loader, node_loader(data, feeder="inline") as inline:
        for moved, expected in zip(to_device(loader, "cuda"), inline, strict=True):
            assert moved.tensors["xyz"].is_cuda
            tensors = {name: tensor.cpu() for name, tensor in moved.tensors.items()}
            assert same(DeviceBatch(moved.step, moved.epoch, moved.k, tensors), expected)


def test_arrays_of_a_read_only_batch_are_taken_without_a_warning(make: Make) -> None:
    with node_loader(make([64] * 4), feeder="inline") as loader:
        batch = next(loader)
        batch.columns["xyz"].setflags(write=False)
        device = LateDevice()
        with Mover(loader, device) as mover:
            moved = mover.move(batch)
    assert np.array_equal(moved["xyz"].numpy(), batch.columns["xyz"])
