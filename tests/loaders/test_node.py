"""A node's feeder gives what inline gives, bit by bit, to all its readers; who drops a batch frees a slot."""

from __future__ import annotations

import gc
import json
import os
import random
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis.errors import UsageError
from tamis.loaders import attached, link, loader, node, protocol
from tamis.loaders.loader import Batch, Loader
from tamis.loaders.node import Place, place
from tamis.loaders.ring import Ring
from tamis.metrics import STREAM, Meter
from tamis.pipelines.dataset import Dataset
from tamis.samplers.ratio import RatioSchedule

Make = Callable[..., Dataset]
SIZES = [300, 40, 500, 64, 1, 257, 90, 0, 700, 128, 64]
TURNED = ({"kind": "rotate"}, {"kind": "flip"}, {"kind": "serialise", "cell": 2.0})
FEWER = RatioSchedule("linear", start=1.0, end=0.25, steps=6)


def content(batch: Batch) -> tuple[Any, ...]:
    arrays = {**batch.columns, "ids": batch.ids, "weight": batch.weight}
    arrays |= {"mask": batch.mask} if batch.mask is not None else {"offsets": batch.offsets}  # type: ignore[dict-item]
    named = {name: (a.dtype.str, a.shape, a.tobytes()) for name, a in arrays.items()}
    return batch.step, batch.epoch, batch.k, named


def loader_of(data: Dataset, **arguments: Any) -> Loader:
    return Loader(data, **{"global_batch": 4, "k": 64, "epochs": 2, "timeout_s": 60.0, **arguments})


def inline(data: Dataset, **arguments: Any) -> list[tuple[Any, ...]]:
    with loader_of(data, **arguments) as made:
        return [content(batch) for batch in made]


@pytest.fixture
def node_loaders(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Loader]]:
    """``node_loaders(data, *changes, **arguments)``: a rank in this process for each of ``changes``."""

    def made(data: Dataset, *changes: dict[str, Any], **arguments: Any) -> list[Loader]:
        run, loaders = str(time.monotonic_ns()), []
        for rank, change in enumerate(changes):
            monkeypatch.setattr(node, "place", lambda _, rank=rank: Place(rank, len(changes), run))
            loaders.append(loader_of(data, feeder="node", **arguments, **change))
        monkeypatch.undo()
        return loaders

    return made


def read_all(loaders: Sequence[Loader]) -> list[list[tuple[Any, ...]]]:
    """What each of the loaders gives, read at the same time."""
    with ExitStack() as stack, ThreadPoolExecutor(len(loaders)) as threads:
        for one in loaders:
            stack.enter_context(one)
        return list(threads.map(lambda one: [content(batch) for batch in one], loaders))


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"k": None, "form": "ragged"},
        {"ratio": FEWER, "multiple_of": 8, "graph": TURNED, "columns": ["label"]},
        {"form": "ragged", "ratio": FEWER, "graph": TURNED[:2], "replica": 1, "replicas": 3},
        {"global_batch": 5, "threads": 1, "slots": 2, "verify": "always"},
    ],
    ids=str,
)
def test_batches_are_those_of_inline(make: Make, arguments: dict[str, Any]) -> None:
    data, meter = make(SIZES), Meter(STREAM)
    with loader_of(data, feeder="node", meter=meter, **arguments) as made:
        got = [content(batch) for batch in made]
    assert got == inline(data, **arguments)
    assert len(got) == 6
    assert (meter.table[:, 0] > 0).sum() >= 3, "the feeder's stages are counted"


def test_each_reader_of_each_replica_gets_its_columns(
    make: Make, node_loaders: Callable[..., list[Loader]]
) -> None:
    data = make(SIZES)
    changes: list[dict[str, Any]] = [
        {"replica": 0, "columns": ["intensity", "normal"]},
        {"replica": 0, "columns": ["label"]},
        {"replica": 1},
        {"replica": 1, "columns": []},
        {"replica": 1, "columns": ["label", "normal"]},
    ]
    got = read_all(node_loaders(data, *changes, replicas=2, graph=TURNED))
    for batches, change in zip(got, changes, strict=True):
        assert batches == inline(data, replicas=2, graph=TURNED, **change)


@pytest.mark.parametrize("max_damaged", [3])
def test_damaged_samples_keep_their_places(
    make: Make, node_loaders: Callable[..., list[Loader]], max_damaged: int
) -> None:
    data = make(SIZES, per_shard=2)
    path = data.shard_path(1)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    arguments: dict[str, Any] = {"replicas": 2, "max_damaged": max_damaged}
    changes = [{"replica": 0}, {"replica": 1}]
    states = []
    loaders = node_loaders(data, *changes, **arguments)
    got = read_all(loaders)
    for batches, change, one in zip(got, changes, loaders, strict=True):
        with loader_of(data, **arguments, **change) as plain:
            assert batches == [content(batch) for batch in plain]
            assert one.state_dict() == plain.state_dict()
            states.append(plain.state_dict()["skipped"])
    assert sum(map(len, states)) >= 1


@pytest.mark.slow
def test_it_goes_on_from_every_cut(make: Make) -> None:
    data = make(SIZES)
    whole = inline(data, graph=TURNED)
    with loader_of(data, feeder="node", graph=TURNED) as made:
        states = [made.state_dict()]
        for batch in made:
            states.append(made.state_dict())
            del batch
        order = [*range(len(whole), -1, -1), 3, 0, 5]  # back, on, and from where it has ended
        for cut in order:
            made.load_state_dict(states[cut])
            assert [content(batch) for batch in made] == whole[cut:], cut
        made.load_state_dict(states[1])
        assert content(next(made)) == whole[1]
        made.load_state_dict(states[3])  # the batches read ahead are of another place
        assert content(next(made)) == whole[3]
    for cut in (3, 4):  # the end of an epoch, and after it
        with loader_of(data, feeder="node", graph=TURNED) as made:
            made.load_state_dict(states[cut])
            assert [content(batch) for batch in made] == whole[cut:]


def test_readers_of_a_replica_go_back_together(make: Make, node_loaders: Callable[..., list[Loader]]) -> None:
    data = make(SIZES)
    whole = inline(data)
    one, other = node_loaders(data, {}, {})
    with one, other, ThreadPoolExecutor(2) as threads:

        def some(made: Loader, n: int) -> list[tuple[Any, ...]]:
            return [content(next(made)) for _ in range(n)]

        start = one.state_dict()
        for n in (3, 1, 2):
            first = [threads.submit(some, one, n), threads.submit(some, other, 4)]
            assert [f.result() for f in first] == [whole[:n], whole[:4]]
            one.load_state_dict(start)
            other.load_state_dict(start)


def test_readers_of_a_replica_that_go_apart_are_told(
    make: Make, node_loaders: Callable[..., list[Loader]]
) -> None:
    data = make(SIZES)
    one, other = node_loaders(data, {}, {})
    with loader_of(data) as plain:
        next(plain)
        other.load_state_dict(plain.state_dict())
    with one, other, ThreadPoolExecutor(2) as threads:
        for task in [threads.submit(next, made) for made in (one, other)]:
            with pytest.raises(
                UsageError, match=r"for step .*; load the same state on all ranks of a replica"
            ):
                task.result()


@pytest.mark.slow
def test_an_interrupt_anywhere_costs_no_batch(make: Make, interrupt: Callable[..., Any]) -> None:
    data = make([64] * 4)
    arguments: dict[str, Any] = {"global_batch": 1, "columns": [], "epochs": 1}
    whole, at, hit = inline(data, **arguments), 0, True
    modules = (attached, link, loader, node, protocol)
    ends = ("_end", "_release", "leave")  # run as an array is dropped, where Python loses interrupts
    with loader_of(data, feeder="node", **arguments) as made:
        start = made.state_dict()  # a feeder for each interrupt would take minutes
        while hit:
            made.load_state_dict(start)
            got, hit = list[Any](), False
            sys.settrace(interrupt(at, *modules, but=ends))
            try:
                got.extend(content(batch) for batch in made)
            except KeyboardInterrupt:
                hit = True
            finally:
                sys.settrace(None)
            assert made.state_dict()["step"] == len(got)
            got += [content(batch) for batch in iter(lambda: next(made, None), None)]
            assert got == whole, at
            at += 1
    assert at > 200


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a socket that is found late
def test_an_interrupt_as_it_attaches_costs_nothing(make: Make, interrupt: Callable[..., Any]) -> None:
    data = make([64] * 4)
    arguments: dict[str, Any] = {"global_batch": 1, "columns": [], "epochs": 1}
    whole = inline(data, **arguments)
    for at in range(random.randrange(25), 150, 25):
        with loader_of(data, feeder="node", **arguments) as made:
            got = []
            sys.settrace(interrupt(at, attached, link, loader, node, protocol))
            try:
                got.append(content(next(made)))
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(None)
            got += [content(batch) for batch in iter(lambda: next(made, None), None)]
            assert got == whole, at


@pytest.mark.parametrize(("where", "name"), [(Ring, "release"), (os, "eventfd_write")])
def test_an_interrupt_as_a_batch_is_dropped_loses_no_slot(
    make: Make, monkeypatch: pytest.MonkeyPatch, where: Any, name: str
) -> None:
    data = make([64] * 8)
    lost, usual = list[Any](), getattr(where, name)
    monkeypatch.setattr(sys, "unraisablehook", lambda why: lost.append(why.exc_type))

    def interrupted(*_: Any) -> None:
        monkeypatch.setattr(where, name, usual)
        raise KeyboardInterrupt

    with loader_of(data, global_batch=1, epochs=1, feeder="node", slots=3) as made:
        kept = [next(made), next(made)]
        monkeypatch.setattr(where, name, interrupted)
        kept.pop()
        assert lost == [KeyboardInterrupt]
        assert [content(batch) for batch in made] == inline(data, global_batch=1, epochs=1)[2:]


def test_a_slot_is_free_when_the_last_view_is_dropped(make: Make, wait_until: Callable[..., None]) -> None:
    data = make([64] * 40)
    with loader_of(data, global_batch=1, feeder="node", slots=2) as made:
        ring = made._feed._link.ring  # type: ignore[attr-defined]
        assert ring is None
        batch: Batch | None = next(made)
        ring = made._feed._link.ring  # type: ignore[attr-defined]
        assert batch
        wait_until(lambda: ring.ring.slot(1) is not None)
        tensors: Any = batch.torch()
        views: list[Any] = [batch.columns["xyz"][0, 3:5, ::2].T, batch.ids.data, tensors["label"][0]]
        lease = weakref.ref(batch.columns["xyz"].base.lease)  # type: ignore[union-attr]
        copy = np.array(views[0])
        del batch, tensors
        while views:
            assert lease()
            assert ring.ring.free() is None
            assert len(views) < 3 or np.array_equal(views[0], copy)
            views.pop()
        assert not lease()
        wait_until(lambda: ring.ring.slot(2) is not None)


@pytest.mark.parametrize("slots", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_reader_that_keeps_every_batch_is_told(make: Make, slots: int) -> None:
    data = make([64] * 12)
    whole = inline(data, global_batch=1, epochs=1)
    with loader_of(data, global_batch=1, epochs=1, feeder="node", slots=slots) as made:
        kept = [next(made) for _ in range(slots)]
        for _ in range(2):
            with pytest.raises(UsageError, match=rf"all {slots} slots hold batches that rank 0 keeps"):
                next(made)
        assert [content(batch) for batch in kept] == whole[:slots]
        del kept[0]
        assert content(next(made)) == whole[slots]
        kept.clear()
        assert [content(batch) for batch in made] == whole[slots + 1 :]


def test_a_batch_that_is_kept_takes_one_slot_and_no_more(make: Make) -> None:
    data = make([64] * 12)
    whole = inline(data, global_batch=1)
    with loader_of(data, global_batch=1, feeder="node", slots=4) as made:
        first = next(made)
        assert [content(next(made)) for _ in range(10)] == whole[1:11]
        state = made.state_dict()
        last = next(made)
        made.load_state_dict(state)  # what was read ahead is dropped, the two that are kept stay
        assert [content(batch) for batch in made] == whole[11:]
        assert [content(first), content(last)] == [whole[0], whole[11]]


def test_batches_that_only_a_cycle_holds_are_not_kept(make: Make) -> None:
    data = make([64] * 7)
    gc.disable()
    try:
        with loader_of(data, global_batch=1, epochs=1, feeder="node", slots=2) as made:
            for batch in made:
                cycle: list[Any] = [batch]
                cycle.append(cycle)
                del batch
            assert made.state_dict()["step"] == 7
    finally:
        gc.enable()


@pytest.mark.slow
def test_threads_that_hold_more_than_the_slots_wait_for_each_other(make: Make) -> None:
    data = make([64] * 20)
    got = list[tuple[Any, ...]]()
    with loader_of(data, global_batch=1, epochs=1, feeder="node", slots=2) as made:

        def consume() -> None:
            for batch in made:
                time.sleep(0.02)
                got.append(content(batch))
                del batch

        threads = [threading.Thread(target=consume) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(got, key=lambda one: one[0]) == inline(data, global_batch=1, epochs=1)


def test_v13_what_a_reader_writes_or_keeps_disturbs_nobody(
    make: Make, node_loaders: Callable[..., list[Loader]]
) -> None:
    data = make(SIZES)
    whole = inline(data)
    one, other = node_loaders(data, {}, {}, slots=3)
    kept = []

    def scribble() -> None:
        for at, batch in enumerate(one):
            assert content(batch) == whole[at]
            for values in (*batch.columns.values(), batch.ids, batch.weight):
                values[:] = 7

    def keep() -> None:
        for at, batch in enumerate(other):
            assert content(batch) == whole[at]
            if at == 3:
                kept.append(batch)
            if len(kept) and at == 5:
                return

    with one, other, ThreadPoolExecutor(2) as threads:
        tasks = [threads.submit(scribble), threads.submit(keep)]
        for task in tasks:
            task.result()
        assert content(kept[0]) == whole[3]
    assert content(kept[0]) == whole[3], "after its loader was closed"
    kept[0].columns["xyz"][:] = 1
    gc.collect()


def test_a_batch_kept_stays_what_it_was_while_others_go_on(
    make: Make, node_loaders: Callable[..., list[Loader]]
) -> None:
    data = make([64] * 9)
    whole = inline(data, global_batch=1, epochs=1)
    one, other = node_loaders(data, {}, {}, global_batch=1, epochs=1, slots=3)
    with other:
        with ThreadPoolExecutor(1) as threads:
            first = threads.submit(next, other)
            kept = next(one)
            assert content(first.result()) == content(kept) == whole[0]
        del first
        one.close()
        one.close()
        assert [content(next(other)) for _ in (1, 2)] == whole[1:3]
        gone = kept.columns["xyz"]
        assert content(kept) == whole[0]
        del kept, gone  # now its slot is free
        assert [content(batch) for batch in other] == whole[3:]


def test_a_fork_s_copy_of_a_batch_does_not_free_the_slot(make: Make, wait_until: Callable[..., None]) -> None:
    data = make([64] * 8)
    with loader_of(data, global_batch=1, feeder="node", slots=2) as made:
        batch: Batch | None = next(made)
        before = content(batch)  # type: ignore[arg-type]
        ring = made._feed._link.ring  # type: ignore[attr-defined]
        child = os.fork() if sys.version_info < (3, 12) else _fork()
        if not child:
            try:
                del batch
                made.close()
                del made
                gc.collect()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        time.sleep(0.2)
        assert ring.ring.free() is None
        assert content(batch) == before  # type: ignore[arg-type]
        assert next(made).step == 1
        del batch
        wait_until(lambda: ring.ring.slot(2) is not None)
        assert next(made).step == 2


def _fork() -> int:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads is the point
        return os.fork()


@pytest.mark.parametrize("when", ["before the first", "between", "while it waits"])
def test_closing_from_another_thread_is_said_to_the_one_that_waits(
    make: Make, node_loaders: Callable[..., list[Loader]], when: str
) -> None:
    data = make([64] * 12)
    one, other = node_loaders(data, {}, {}, global_batch=1, slots=2)
    if when != "before the first":
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(lambda made: next(made).step, (one, other)))
    kept = next(other) if when == "while it waits" else None  # so that `one` comes to stand still
    said = list[str]()

    def consume() -> None:
        with pytest.raises(UsageError) as caught:
            for _ in one:
                time.sleep(0.01)
        said.append(str(caught.value))

    thread = threading.Thread(target=consume)
    thread.start()
    time.sleep(0.3)
    start = time.monotonic()
    one.close()
    thread.join(10)
    assert said == ["loader: was closed; make a new one"]
    assert time.monotonic() - start < 8
    del kept
    other.close()


def test_a_loader_that_is_dropped_leaves_nothing(make: Make, wait_until: Callable[..., None]) -> None:
    data = make([64] * 12)
    before = descriptors()
    for taken in (0, 1, 2):
        made: Any = loader_of(data, feeder="node")
        kept = [next(made) for _ in range(taken)]
        pid = made._feed._link._feeder_pid
        del made
        wait_until(lambda pid=pid: not Path(f"/proc/{pid}").exists())
        assert len(kept) == taken
        kept.clear()
    assert descriptors() == before


def descriptors() -> list[str]:
    gc.collect()
    links = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return sorted(str(path.readlink()) for path in links)


@pytest.mark.parametrize("how", ["leave", "drop", "close", "fail", "vanish"])
def test_a_program_that_does_not_close_makes_no_noise(
    make: Make, wait_until: Callable[..., None], how: str
) -> None:
    data, rank = make([64] * 12), Path(__file__).with_name("rank.py")
    arguments = {"global_batch": 4, "k": 64, "feeder": "node", "columns": []}
    commands = [["take", 2], ["feeder"], [how, *([3] if how == "leave" else [])]]
    result = subprocess.run(
        [sys.executable, "-X", "dev", rank, data.path, json.dumps(arguments)],
        input="\n".join(map(json.dumps, commands)),
        capture_output=True,
        text=True,
    )  # comes back when the feeder, too, has ended, for it writes to the same stderr
    assert result.returncode == {"fail": 1, "leave": 3}.get(how, 0)
    assert len(result.stdout.splitlines()) == (4 if how in ("drop", "close") else 3)
    feeder = int(result.stdout.splitlines()[2])
    wait_until(lambda: not Path(f"/proc/{feeder}").exists())
    if how == "fail":
        assert result.stderr.rstrip().endswith("SystemError: this rank fails")
        assert result.stderr.count("Traceback") == 1
    else:
        assert result.stderr == ""


def test_four_ranks_read_each_sample_once_and_map_what_they_need(make: Make, ranks: Any) -> None:
    data = make([20_000, 30_000, 10_000, 25_000, 15_000, 1, 40_000])
    arguments: dict[str, Any] = {"k": None, "form": "ragged", "verify": "never", "epochs": 1, "replicas": 2}
    columns = [["normal", "intensity"], ["label"], None, ["label"]]
    changes: list[dict[str, Any]] = [{"replica": rank // 2, "columns": columns[rank]} for rank in range(4)]
    four = ranks(data, *[dict(change) for change in changes], **arguments)
    expected = []
    for change in changes:
        with Loader(data, global_batch=4, **arguments, **change) as plain:
            expected.append([crc(batch) for batch in plain])

    def epoch() -> None:
        for rank in four:
            rank.tell("take")
        for rank, batches in zip(four, expected, strict=True):
            got = rank.answer()
            assert "error" not in got, got
            assert got == batches

    epoch()
    all_have = {"control", "ids", "weight", "offsets", "xyz"}
    for rank, names in zip(four, columns, strict=True):
        assert mapped(rank.pid) == all_have | set(data.schema if names is None else names)
    feeder = four[0].ask("feeder")
    assert {rank.ask("feeder") for rank in four} == {feeder}
    before = moved(feeder)
    for rank in four:
        rank.ask("load", None)
    epoch()
    stored = 0
    for replica, names in enumerate((["normal", "intensity", "label"], None)):
        with Loader(data, global_batch=4, **arguments, replica=replica, columns=names) as plain:
            stored += sum(values.nbytes for batch in plain for values in batch.columns.values())
    assert stored > 4_000_000
    assert stored <= moved(feeder) - before < 1.01 * stored + 10_000
    for rank in four:
        assert rank.ask("close") is None


def crc(batch: Batch) -> list[Any]:
    from crc32c import crc32c

    named = {name: crc32c(raw) for name, (_, _, raw) in content(batch)[3].items()}
    return [batch.step, batch.epoch, batch.k, named]


def mapped(pid: int) -> set[str]:
    """The arrays of a ring that a process maps."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {line.split("/memfd:tamis-")[1].split()[0] for line in lines if "/memfd:tamis-" in line}


def moved(pid: int) -> int:
    """Bytes that a process has read."""
    return int(Path(f"/proc/{pid}/io").read_text().splitlines()[0].split()[1])


def test_64_mb_of_dev_shm_are_enough(make: Make) -> None:
    data = make([300_000] * 4)
    script = """
import os, sys
from tamis.loaders.loader import Loader
size = os.statvfs("/dev/shm")
assert size.f_blocks * size.f_frsize == 64 << 20
with Loader(sys.argv[1], k=300_000, global_batch=4, epochs=2, feeder="node") as loader:
    print(sum(sum(v.nbytes for v in batch.columns.values()) for batch in loader))
    print(4 * sum(loader._feed._link.ring.slots._layout.room.values()) >> 20)
    print(os.listdir("/dev/shm"))
"""
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", "/dev/shm"]
    unshare = ["unshare", "-m", "--propagation", "private"]
    if subprocess.run([*unshare, *mount], capture_output=True).returncode:
        pytest.skip("no private mount of /dev/shm can be made here")
    inner = f'{" ".join(mount)} && exec "$@"'
    command = [*unshare, "sh", "-c", inner, "sh", sys.executable, "-c", script, str(data.path)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    moved_bytes, ring_mb, left = result.stdout.split("\n")[:3]
    assert int(moved_bytes) == 2 * 4 * 300_000 * sum(f.row_bytes for f in data.schema.values())
    assert int(ring_mb) > 64
    assert left == "[]"


def test_the_place_is_what_torchrun_says() -> None:
    torchrun = {
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "4",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
    }
    here = place(torchrun)
    assert here[:2] == (1, 4)
    assert place(torchrun | {"LOCAL_RANK": "3"}).run == here.run
    for name, value in (("TORCHELASTIC_RESTART_COUNT", "1"), ("MASTER_PORT", "29501")):
        assert place(torchrun | {name: value}).run != here.run
    alone = [place({}), place({}), place({"LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"})]
    assert {one[:2] for one in alone} == {(0, 1)}
    assert len({one.run for one in alone}) == 3


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"LOCAL_WORLD_SIZE": "2"}, "LOCAL_RANK or MASTER_PORT is not set"),
        ({"LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "0"}, "start the ranks with torchrun"),
        ({"LOCAL_WORLD_SIZE": "two"}, "LOCAL_WORLD_SIZE is 'two'"),
        ({"LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "2", "MASTER_PORT": "1"}, "LOCAL_RANK is 2 of 2"),
    ],
)
def test_a_place_that_cannot_be_is_refused(environ: dict[str, str], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        place(environ)
