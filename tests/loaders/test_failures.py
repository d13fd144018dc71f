"""Whoever dies, stops or errs: all others are told who it was, soon, and nothing is left behind.

Readers would wait for 100 s and are told in a second: 10 s are allowed here, for busy machines.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis.errors import DataError, UsageError
from tamis.loaders import link, node, protocol
from tamis.loaders.loader import Loader
from tamis.loaders.node import Place
from tamis.pipelines.dataset import Dataset

Make = Callable[..., Dataset]
SOON_S = 10


def said(rank: Any) -> str:
    """The error that a rank is told."""
    answer = rank.answer(SOON_S)
    assert isinstance(answer, dict), answer
    return str(answer["error"])


def run(ranks: Sequence[Any]) -> None:
    """All take some batches, then go on without an end: some as fast as they can, others slowly."""
    for rank in ranks:
        rank.tell("take", 2)
    assert len({str(rank.answer()) for rank in ranks}) == 1
    for place, rank in enumerate(ranks):
        rank.tell(*(("take", None) if place % 2 else ("stroll",)))


@pytest.mark.parametrize(("how", "text"), [(signal.SIGKILL, "signal 9"), (signal.SIGTERM, "signal 15")])
def test_the_feeder_is_killed(make: Make, ranks: Any, how: signal.Signals, text: str) -> None:
    three = ranks(make([64] * 12), {}, {}, {})
    run(three)
    feeder = next(int(path.name) for path in processes() if parent(path) == three[0].pid)
    os.kill(feeder, how)
    told = [said(rank) for rank in three]
    for one in told:
        assert one.startswith(f"loader.feeder: the feeder (process {feeder}) has ended")
    assert f"(killed by {text})" in told[0]
    for rank in three:
        assert "has ended" in rank.ask("take", 1)["error"], "again, as long as it is asked"
        assert rank.ask("close") is None
        assert rank.end() == ""
    assert not ranks.left()


def processes() -> list[Path]:
    return list(Path("/proc").glob("[0-9]*"))


def parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # it has ended
        return 0


def test_the_feeder_is_stopped(make: Make, ranks: Any, wait_until: Callable[..., None]) -> None:
    two = ranks(make([64] * 12), {}, {})
    run(two)
    feeder = next(int(path.name) for path in processes() if parent(path) == two[0].pid)
    os.kill(feeder, signal.SIGSTOP)
    for rank in two:
        assert f"the feeder (process {feeder}) is stopped (SIGSTOP)" in said(rank)
    for rank in two:
        assert rank.ask("close") is None
        assert rank.end() == ""
    wait_until(lambda: not ranks.left())


@pytest.mark.parametrize(
    ("how", "victim"),
    [
        ("killed", 0),  # it started the feeder
        ("killed", 1),
        ("killed", 2),  # alone in its replica
        ("stopped", 0),
        ("stopped", 1),
        ("vanishes", 0),
        ("fails", 1),
    ],
)
def test_a_rank_ends_or_stops(
    make: Make, ranks: Any, wait_until: Callable[..., None], how: str, victim: int
) -> None:
    port, data = "29500", make([64] * 12)
    three = ranks(data, {}, {}, {"replica": 1}, replicas=2, port=port)
    first = [rank.tell("take", 2) or rank for rank in three]
    assert all(len(rank.answer()) == 2 for rank in first)
    others = [rank for rank in three if rank is not three[victim]]
    for rank in others:
        rank.tell("stroll")
    pid = three[victim].pid
    if how in ("killed", "stopped"):
        os.kill(pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
    else:
        three[victim].tell("vanish" if how == "vanishes" else "fail")
    text = "is stopped (SIGSTOP)" if how == "stopped" else "has ended without closing its loader"
    for rank in others:
        assert said(rank).startswith(f"loader.feeder: rank {victim} (process {pid}) {text}")
    if how == "stopped":
        os.kill(pid, signal.SIGCONT)
        assert f"rank {victim} (process {pid}) {text}" in three[victim].ask("take", 9)["error"]
    for rank in three:
        rank.kill() if rank is three[victim] else rank.end()
    wait_until(lambda: not ranks.left())
    if (how, victim) != ("killed", 0):
        return
    again = ranks(data, {}, {}, {"replica": 1}, replicas=2, port=port)
    for rank in again:
        rank.tell("take", 3)
    assert [len(rank.answer()) for rank in again] == [3, 3, 3]


def test_a_rank_that_closes_or_ends_in_order_disturbs_nobody(make: Make, ranks: Any) -> None:
    data = make([64] * 12)
    four = ranks(data, {}, {}, {"replica": 1}, {"replica": 1}, replicas=2)
    for rank in four:
        rank.tell("take", 2)
    for rank in four:
        assert len(rank.answer()) == 2
    assert four[0].ask("close") is None
    four[1].tell("leave", 3)
    assert four[1].end(3) == ""
    for rank in four[2:]:
        rank.tell("take", 20)
    for rank in four[2:]:
        assert len(rank.answer()) == 20
    feeder = four[2].ask("feeder")
    before = cpu_s(feeder)
    time.sleep(1)
    assert cpu_s(feeder) - before < 0.3, "it makes batches for nobody"


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_rank_that_ended_with_a_batch_in_its_hands_holds_up_nobody(make: Make, ranks: Any) -> None:
    two = ranks(make([64] * 12), {}, {}, slots=2)
    for rank in two:
        rank.tell("take", 1, True)
    for rank in two:
        assert len(rank.answer()) == 1
    assert two[0].ask("drop") is None
    assert len(two[1].ask("take", 1)) == 1
    two[1].tell("take", 5)
    time.sleep(0.3)
    assert two[0].end() == ""
    assert len(two[1].answer(SOON_S)) == 5


def test_the_rank_that_starts_the_feeder_dies_before_others_have_come(make: Make, ranks: Any) -> None:
    three = ranks(make([64] * 12), {}, {}, {})
    for rank in three[1:2]:
        rank.tell("take", 1)
    time.sleep(0.5)
    os.kill(three[0].pid, signal.SIGKILL)
    assert "loader.feeder: the rank that started it has ended" in said(three[1])


@pytest.mark.parametrize("closes", [0, 1])
def test_a_rank_closes_before_others_have_come(make: Make, ranks: Any, closes: int) -> None:
    three = ranks(make([64] * 12), {}, {}, {})
    for rank in three[2 - closes :]:
        rank.tell("take", 1)
    time.sleep(0.5)
    if closes == 1:  # having come; the starter is waited for in any case
        os.kill(three[1].pid, signal.SIGINT)
        assert said(three[1]) == "interrupted"
    three[closes].tell("close")
    text = f"rank {closes} (process {three[closes].pid}) has closed its loader before all ranks of this node"
    assert text in said(three[2])


def test_a_rank_is_missing(make: Make, ranks: Any) -> None:
    alone = ranks(make([64] * 12), {"environ": {"LOCAL_WORLD_SIZE": "3"}}, timeout_s=1.0)
    assert "no sign of rank 1, 2 for 1 s; take batches on every rank" in alone[0].ask("take", 1)["error"]


def test_the_starter_is_missing(make: Make, ranks: Any) -> None:
    place = {"LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1"}
    alone = ranks(make([64] * 12), {"environ": place}, timeout_s=1.0)
    assert (
        "no feeder on this node for 1 s; open the loader on local rank 0 too"
        in alone[0].ask("take", 1)["error"]
    )


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"seed": 5}, "has another seed than the rank that started the feeder: 5, not 0; give all ranks the"),
        ({"graph": [{"kind": "rotate"}]}, "has another graph than the rank"),
    ],
)
def test_ranks_that_differ(make: Make, ranks: Any, other: dict[str, Any], text: str) -> None:
    two = ranks(make([64] * 12), {}, other)
    for rank in two:
        rank.tell("take", 1)
    for rank in two:
        assert text in said(rank)


def test_two_ranks_with_one_number(make: Make, ranks: Any) -> None:
    three = ranks(make([64] * 12), {}, {}, {"environ": {"LOCAL_RANK": "1"}})
    for rank in three:
        rank.tell("take", 1)
    for rank in three:
        assert "has the same number as rank 1" in said(rank)


def test_a_damaged_sample_is_told_to_every_replica(make: Make, ranks: Any) -> None:
    data = make([64] * 12, per_shard=3)
    four = ranks(data, {}, {}, {"replica": 1}, {"replica": 1}, replicas=2, global_batch=2, seed=3)
    shard = data.shard_path(2)
    raw = bytearray(shard.read_bytes())
    raw[int(data.positions["xyz"][data.shard == 2][0])] ^= 1
    shard.write_bytes(raw)
    for place, rank in enumerate(four):
        rank.tell(*(("take", None) if place % 2 else ("stroll",)))
    for rank in four:
        assert str(shard) in said(rank)


def test_user_code_that_raises_is_told_to_every_replica(make: Make, ranks: Any, tmp_path: Path) -> None:
    code = """
def fails(columns, seed):
    if len(columns["xyz"]) == 33:
        raise ValueError("no")
    return columns
"""
    (tmp_path / "code_that_fails.py").write_text(code)
    data = make([64] * 7 + [33])
    graph = [{"kind": "function", "function": "code_that_fails:fails"}]
    environ = {"environ": {"PYTHONPATH": str(tmp_path)}}
    two = ranks(data, environ, {"replica": 1} | environ, replicas=2, graph=graph)
    for rank in two:
        rank.tell("stroll")
    name = str(data.samples.column("name")[7])
    for rank in two:
        assert f"code_that_fails:fails: sample '{name}': worker" in said(rank)


def test_the_feeder_cannot_start(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    data = make([64] * 4)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with Loader(data, global_batch=2, k=64, feeder="node") as loader:
        for _ in range(2):
            with pytest.raises(
                DataError, match=r"the feeder could not start \(exit code 1\); see its message"
            ):
                next(loader)
    monkeypatch.setattr(sys, "executable", "/no/python")
    with pytest.raises(DataError, match=r"'/no/python' cannot be started \(No such file or directory\)"):
        Loader(data, global_batch=2, k=64, feeder="node")


def test_a_rank_that_waits_is_told_that_the_feeder_cannot_start(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    data, loaders = make([64] * 4), []
    (tmp_path / "python").write_text("#!/bin/sh\nsleep 1\nexit 3\n")
    (tmp_path / "python").chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    for rank in (0, 1):
        monkeypatch.setattr(node, "place", lambda _, rank=rank: Place(rank, 2, str(tmp_path)))
        loaders.append(Loader(data, global_batch=2, k=64, feeder="node"))
    with ThreadPoolExecutor(2) as threads:
        for task in [threads.submit(next, loader) for loader in loaders]:
            with pytest.raises(DataError, match=r"the feeder could not start"):
                task.result(SOON_S)
    for loader in loaders:
        loader.close()


def test_too_little_memory_is_said_when_it_is_opened(make: Make) -> None:
    data = make([64] * 4)
    with pytest.raises(
        UsageError, match=r"slots of .* MB need .* MB are free by .*; set loader.slots to \d+"
    ):
        Loader(data, global_batch=4, k=64, feeder="node", slots=2**40)


@pytest.mark.slow
def test_a_failure_leaves_no_descriptor(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    data = make([64] * 12)
    before = descriptors()
    for signal_ in (signal.SIGKILL, signal.SIGSTOP):
        with Loader(data, global_batch=4, k=64, feeder="node") as loader:
            batch = next(loader)
            os.kill(loader._feed._link._feeder_pid, signal_)  # type: ignore[attr-defined]
            with pytest.raises(DataError):
                for batch in loader:  # noqa: B007
                    pass
            copy = np.array(batch.columns["xyz"])
        assert np.array_equal(batch.columns["xyz"], copy)
        del batch
    monkeypatch.setattr(link, "Attached", lambda *_, **__: 1 / 0)
    with Loader(data, global_batch=4, k=64, feeder="node") as loader, pytest.raises(ZeroDivisionError):
        next(loader)
    assert descriptors() == before


def descriptors() -> list[str]:
    links = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return sorted(str(path.readlink()) for path in links)


def test_s03_two_runs_side_by_side_do_not_meet(make: Make, ranks: Any) -> None:
    data = make([64] * 12)
    runs = [ranks(data, {}, {}, seed=seed) for seed in (1, 2)]
    for one in runs:
        for rank in one:
            rank.tell("take", 3)
    got = [[rank.answer() for rank in one] for one in runs]
    assert got[0][0] == got[0][1] != got[1][0] == got[1][1]
    assert runs[0][0].ask("feeder") != runs[1][0].ask("feeder")


def test_s03_a_second_run_of_the_same_name_is_refused(make: Make, ranks: Any) -> None:
    data = make([64] * 12)
    first = ranks(data, {}, {}, port="29500")
    first[0].tell("take", 1)
    with pytest.raises(AssertionError, match="another feeder serves this run; give each run its own"):
        ranks(data, {}, {}, port="29500")
    first[1].tell("take", 1)
    assert [len(rank.answer()) for rank in first] == [1, 1]


def test_strangers_at_the_door_hold_up_nobody(make: Make, ranks: Any) -> None:
    two = ranks(make([64] * 12), {}, {})
    two[0].tell("take", 2)
    [address] = {address for address in ranks.addresses if address in Path("/proc/net/unix").read_text()}
    silent, hasty = protocol.connect(address), protocol.connect(address)
    assert silent
    assert hasty
    hasty.close()
    with silent:
        if os.getuid() == 0:
            script = f"""
import os, socket
os.setuid(65534)
client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
client.connect("\\0{address}")
assert client.recv(1) == b""
"""
            subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
        assert len(two[1].ask("take", 2)) == len(two[0].answer()) == 2
        assert protocol.receive(silent) == (None, [])


@pytest.mark.parametrize("taking", [True, False])
def test_control_c_interrupts_the_readers_and_not_the_feeder(
    make: Make, ranks: Any, wait_until: Callable[..., None], taking: bool
) -> None:
    [rank] = ranks(make([64] * 12), {})
    if taking:
        assert len(rank.ask("take", 3)) == 3
    rank.tell("stroll")
    time.sleep(0.2)  # else the feeder does not listen yet
    os.killpg(rank.pid, signal.SIGINT)
    assert said(rank) == "interrupted"
    steps = [step for step, *_ in rank.ask("take", 5)]
    assert steps == list(range(steps[0], steps[0] + 5))
    assert steps[0] == rank.ask("state")["step"] - 5
    assert rank.end() == ""
    wait_until(lambda: not ranks.left())


def test_control_c_ends_ranks_that_catch_nothing(
    make: Make, ranks: Any, wait_until: Callable[..., None]
) -> None:
    two = ranks(make([64] * 12), {}, {})
    for rank in two:
        rank.tell("take", 3)
    assert all(len(rank.answer()) == 3 for rank in two)
    time.sleep(0.2)  # they wait for a command
    os.killpg(two[0].pid, signal.SIGINT)
    for rank in two:
        noise = rank.end(-signal.SIGINT)
        assert noise.rstrip().endswith("KeyboardInterrupt")
        assert noise.count("Traceback") == 1
    wait_until(lambda: not ranks.left())
