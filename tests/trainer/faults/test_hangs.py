"""A collective that fails names the call, and the rank that did not take part."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tamis.bench.ranks import on_ranks
from tamis.errors import LostError
from tamis.trainer.faults.hangs import _blamed, _called, _place, _short, broken
from tamis.trainer.mesh import Mesh, joined
from tamis.trainer.settings import LayoutSettings

PATIENCE_S = 3.0


def doing(work: str, folder: Path) -> None:
    """On one of two ranks: rank 0 does something else; the first that is let down leaves what it is told.

    The first, as a rank that was told may end before others ask: so the command does, too.
    """
    told = folder / "told"

    def until_told() -> None:
        while not told.exists():
            time.sleep(0.05)

    def does_not_join(*_: object, **__: object) -> None:
        until_told()
        raise dist.DistError("too late")

    if work == "begins" and os.environ["RANK"] == "0":
        dist.init_process_group = does_not_join
    (folder / f"pid-{os.environ['RANK']}").write_text(str(os.getpid()))
    try:
        with joined(LayoutSettings(dp=2, timeout_s=PATIENCE_S)) as mesh:
            if work == "sleeps":
                mesh.first(until_told)
            elif work == "stops" and mesh.rank == 0:
                os.kill(os.getpid(), signal.SIGSTOP)
            elif work == "stops":
                while ") T " not in Path(f"/proc/{(folder / 'pid-0').read_text()}/stat").read_text():
                    time.sleep(0.05)
            elif work == "waits too" and mesh.rank == 0:
                dist.recv(torch.zeros(3), src=1)
            elif work == "fails":
                raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
            mesh.sum(torch.ones(3))
    except LostError as error:
        if not told.exists():
            told.write_text(str(error))
        os.kill(int((folder / "pid-0").read_text()), signal.SIGCONT)


@pytest.mark.parametrize(
    ("work", "wanted"),
    [
        (
            "sleeps",
            r"rank 1: all_gather_object in Mesh\.gather, trainer/mesh\.py:\d+ failed "
            r"\(Timed out waiting 3000ms for \w+ operation to complete\): rank 0 is at "
            r"doing\.<locals>\.until_told, .*test_hangs\.py:\d+; the same command goes on",
        ),
        # It holds the store, too, in which the question would be.
        pytest.param(
            "stops",
            r"rank 1: all_reduce in Mesh\.sum, .*: rank 0 said nothing when asked: ended, stopped, or .*",
            marks=pytest.mark.slow,
        ),
        ("begins", r"rank 1: init_process_group in joined, .*: rank 0 is at doing\.<locals>\.until_told, .*"),
        ("waits too", r"rank [01]: (recv|all_reduce) in .*: all ranks wait: rank [01] in .*; the same .*"),
    ],
)
def test_who_hangs_is_named_within_the_time(work: str, wanted: str, tmp_path: Path) -> None:
    on_ranks(2, doing, work, tmp_path)
    told = (tmp_path / "told").read_text()
    assert re.fullmatch(wanted, told), told


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"RuntimeError: mat1 and mat2"):
        on_ranks(2, doing, "fails", tmp_path)
    assert not broken(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert broken(dist.DistStoreError("wait timeout after 300000ms"))


def test_the_silent_are_blamed_before_the_busy_and_those_before_the_waiting() -> None:
    busy, waiting = {"waits": False, "place": "f, a.py:1"}, {"waits": True, "place": "g, b.py:2"}
    assert _blamed({0: waiting, 1: busy, 2: None}).startswith("rank 2 said nothing when asked")
    assert _blamed({0: waiting, 1: busy}) == "rank 1 is at f, a.py:1"
    assert _blamed({0: waiting, 1: waiting}) == "all ranks wait: rank 0 in g, b.py:2, rank 1 in g, b.py:2"
    many = dict.fromkeys(range(9))
    assert _blamed(many).startswith("rank 0, rank 1, rank 2, rank 3 and 5 more said nothing")


def test_a_place_is_the_innermost_in_tamis() -> None:
    frame = sys._getframe()
    assert _place(frame)["place"].startswith("test_a_place_is_the_innermost_in_tamis")
    assert _place(frame)["waits"] is False
    assert _called([]) == "nothing"
    assert Mesh.__module__.endswith("trainer.mesh")


def test_a_message_is_short() -> None:
    error = RuntimeError("[/__w/gloo/pair.cc:545] Read error [10.0.0.3]:99: reset. This is ...")
    assert _short(error) == "Read error [10.0.0.3]:99: reset"
    assert _short(RuntimeError("a\nb")) == "a"
    assert len(_short(RuntimeError("x" * 1000))) == 200
