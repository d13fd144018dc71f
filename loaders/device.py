"""Copies batches to a device while it computes, straight from the memory that they lie in.

The ring of a node's feeder is registered with CUDA once, so that the device itself reads a slot, on a stream
of its own, while the host goes on. A slot goes back to the feeder when the event behind its copies has
happened. Batches that are made inline lie in memory that comes and goes: registering that would cost more
than it saves, so those are copied as they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, UsageError
from .pack import Batch, Ragged

if TYPE_CHECKING:
    import torch

    from .loader import Loader

    Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class DeviceBatch:
    """A batch on a device: ``tensors`` has what `Batch.torch` gives; ``step``, ``epoch``, ``k`` as there."""

    step: int
    epoch: int
    k: int
    tensors: Tensors


def to_device(loader: Loader, device: str | torch.device) -> Iterator[DeviceBatch]:
    """The batches of ``loader`` as tensors on ``device``; on a CPU they share the batch's memory.

    Work that the caller puts on its current stream waits for the copies, the host does not. Taken one at a
    time, so that `Loader.state_dict` describes the batch that was given out last. Give it a loader of a
    node's feeder before the first batch is taken, and end it (or drop it) before the loader is closed.

    Raises what the loader raises, UsageError where there is no such device, and DataError where CUDA refuses
    the memory.
    """
    with Mover(loader, device_of(device)) as mover:
        yield from mover


class Event(Protocol):
    """Something that happens on a device."""

    def query(self) -> bool:
        """Whether it has happened."""

    def synchronize(self) -> None:
        """Wait until it has."""


class Device(Protocol):
    """What copying needs of a device."""

    def register(self, address: int, size: int) -> None:
        """Let the device read ``size`` bytes at ``address``."""

    def unregister(self, address: int) -> None:
        """Take that back."""

    def copy(self, tensors: Tensors) -> tuple[Tensors, Event]:
        """Begin to copy; what was copied, for the caller's stream, and the event at its end."""


class Mover:
    """Copies a loader's batches to ``device`` (None: they stay here), and holds each until that is done.

    At most as many copies are under way as leave a slot for the batch that is taken next.
    """

    def __init__(self, loader: Loader, device: Device | None) -> None:
        self._loader, self._device = loader, device
        self._going: deque[tuple[Event, Batch]] = deque()
        self._registered: list[int] = []
        self._most = 0
        if device is not None:
            memory = loader.host_memory()
            self._most = memory.slots - 1
            try:
                for address, size in memory.spans:
                    device.register(address, size)
                    self._registered.append(address)
            except BaseException:
                self.close()
                raise

    def make_room(self) -> None:
        """Let go of the batches whose copy is done; to be called before a batch is taken.

        Waits for the oldest where those under way leave no slot.
        """
        while self._going and (len(self._going) >= self._most or self._going[0][0].query()):
            self._drop_oldest()

    def move(self, batch: Batch) -> Tensors:
        """The tensors of `Batch.torch` on the device."""
        if self._device is None:
            return batch.torch()
        tensors, event = self._device.copy(_writable(batch).torch())
        self._going.append((event, batch))
        return tensors

    def close(self) -> None:
        """Wait for the copies under way, let go of their batches, and unregister."""
        while self._going:
            self._drop_oldest()
        while self._device is not None and self._registered:
            self._device.unregister(self._registered.pop())

    def _drop_oldest(self) -> None:
        self._going[0][0].synchronize()
        self._going.popleft()

    def __iter__(self) -> Iterator[DeviceBatch]:
        batches = iter(self._loader)
        while True:
            self.make_room()
            batch = next(batches, None)
            if batch is None:
                return
            moved = DeviceBatch(batch.step, batch.epoch, batch.k, self.move(batch))
            del batch  # only the copy under way holds its slot
            yield moved
            del moved

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Cuda:
    """A GPU, and the stream that copies go over."""

    def __init__(self, device: torch.device) -> None:
        import torch

        self._torch, self._device = torch, device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def register(self, address: int, size: int) -> None:
        """See `Device`. Raises DataError with CUDA's reason."""
        runtime = self._torch.cuda.cudart()  # type: ignore[no-untyped-call]
        with self._torch.cuda.device(self._device):
            code = runtime.cudaHostRegister(address, size, 0)
        if code != runtime.cudaError.success:
            why = runtime.cudaGetErrorString(code)
            cause = f"{size / 1e6:.1f} MB of a ring cannot be registered with {self._device} ({why})"
            fix = "copy a loader to one device at a time, or use loader.feeder 'inline'"
            raise DataError("loader.feeder", cause, fix)

    def unregister(self, address: int) -> None:
        """See `Device`."""
        self._torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]

    def copy(self, tensors: Tensors) -> tuple[Tensors, Event]:
        """See `Device`. The memory is the copying stream's, and not used anew before the caller is done."""
        cuda = self._torch.cuda
        caller = cuda.current_stream(self._device)
        with cuda.stream(self._stream):
            copied = {name: t.to(self._device, non_blocking=True) for name, t in tensors.items()}
            event = cuda.Event()
            event.record(self._stream)
        caller.wait_event(event)
        for tensor in copied.values():
            tensor.record_stream(caller)
        return copied, event


def device_of(device: str | torch.device) -> Device | None:
    """The device of that name, None for the CPU. Raises UsageError where this machine has none such."""
    import torch

    try:
        found = torch.device(device)
    except RuntimeError:
        raise UsageError("to_device", f"'{device}' names no device", "give 'cpu' or 'cuda:0'") from None
    if found.type == "cpu":
        return None
    gpus = torch.cuda.device_count()
    if found.type != "cuda" or (found.index or 0) >= gpus:
        cause = f"there is no device '{device}': torch sees {gpus} CUDA devices"
        raise UsageError("to_device", cause, "give 'cpu' or one of them")
    return Cuda(torch.device("cuda", torch.cuda.current_device() if found.index is None else found.index))


class _Writable:
    """An array that torch takes without a word, although others read it too: nobody is given the tensor."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array
        self.__array_interface__ = array.__array_interface__ | {"data": (array.ctypes.data, False)}


def _writable(batch: Batch) -> Batch:
    def same(array: NDArray[Any] | None) -> Any:
        return None if array is None else np.asarray(_Writable(array))

    return Batch(
        batch.step,
        batch.epoch,
        same(batch.ids),
        {name: same(values) for name, values in batch.columns.items()},
        same(batch.mask),
        same(batch.offsets),
        same(batch.weight),
        batch.k,
        {name: Ragged(same(values), same(offsets)) for name, (values, offsets) in batch.annotations.items()},
    )
