"""Machines of one rank each, as network namespaces joined by a bridge, and one of them is lost."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tamis.config import dumps
from tamis.pipelines.dataset import Dataset
from tamis.trainer import loop
from tamis.trainer.log import read_lines
from tamis.trainer.mesh import Mesh
from tamis.trainer.settings import LayoutSettings

Make = Callable[..., Any]
NODES = 5
RENDEZVOUS = "last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=3"


class Nodes:
    """Machines: where they are, and how a command is run and ended on one of them."""

    def __init__(self, kind: str) -> None:
        self.kind, self._name = kind, f"tm{os.getpid() % 10000}"
        self._agents: dict[int, subprocess.Popen[bytes]] = {}

    def set_up(self) -> None:
        if self.kind == "loopback":
            return
        name = self._name
        _ip(f"link add {name} type bridge", f"link set {name} up")
        for i in range(NODES):
            space, end = f"{name}-{i}", f"{name}v{i}"
            _ip(
                f"netns add {space}",
                f"link add {end} type veth peer name eth0 netns {space}",
                f"link set {end} master {name} up",
                f"-n {space} addr add {self.address(i)}/24 dev eth0",
                f"-n {space} link set eth0 up",
                f"-n {space} link set lo up",
            )

    def address(self, node: int) -> str:
        return f"10.77.0.{node + 1}" if self.kind == "namespaces" else "127.0.0.1"

    def start(self, node: int, arguments: list[str]) -> None:
        within = ["ip", "netns", "exec", f"{self._name}-{node}"] if self.kind == "namespaces" else []
        interface = "eth0" if within else "lo"
        environment = os.environ | {"GLOO_SOCKET_IFNAME": interface, "OMP_NUM_THREADS": "1"}
        port = 29400 + os.getpid() % 1000
        conf = f"is_host={int(node == 0)},{RENDEZVOUS}"
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", f"{NODES - 1}:{NODES}"]
        torchrun += [
            "--nproc-per-node",
            "1",
            "--max-restarts",
            "3",
            "--rdzv-backend",
            "c10d",
            "--rdzv-id",
            "x",
        ]
        torchrun += ["--rdzv-id", "x", "--rdzv-endpoint", f"{self.address(0)}:{port}", "--rdzv-conf", conf]
        torchrun += ["--local-addr", self.address(node), "-m", "tamis", *arguments]
        self._agents[node] = subprocess.Popen([*within, *torchrun], env=environment, stderr=subprocess.PIPE)

    def lose(self, node: int) -> None:
        """All of its processes end at once; its rank does with its agent."""
        self._agents[node].kill()
        if self.kind == "namespaces":
            subprocess.run(f"ip netns pids {self._name}-{node} | xargs -r kill -9", shell=True, check=True)

    def running(self) -> bool:
        return all(agent.poll() is None for agent in self._agents.values())

    def end(self, timeout_s: float) -> dict[int, int]:
        return {node: agent.wait(timeout_s) for node, agent in self._agents.items()}

    def take_down(self) -> None:
        for agent in self._agents.values():
            agent.kill()
            agent.communicate()
        if self.kind == "namespaces":
            for i in range(NODES):
                _ip(f"netns del {self._name}-{i}", check=False)
            _ip(f"link del {self._name}", check=False)


def _ip(*commands: str, check: bool = True) -> None:
    for command in commands:
        subprocess.run(["ip", *command.split()], check=check, capture_output=True)


@pytest.fixture
def nodes(request: pytest.FixtureRequest) -> Iterator[Nodes]:
    found = Nodes(request.param)
    try:
        try:
            found.set_up()
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespaces here ({error}): the loopback has the same processes")
        yield found
    finally:
        found.take_down()


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("nodes", ["namespaces", "loopback"], indirect=True)
def test_with_a_machine_less_the_run_goes_on(
    nodes: Nodes, run_settings: Make, dataset: Dataset, tmp_path: Path, run_ranks: Make
) -> None:
    """Five machines, and at some step four: all that are left end well, with the losses of five."""
    base = run_settings(steps=200, checkpoint_steps=20)
    settings = base.model_copy(
        update={
            "data": base.data.model_copy(update={"path": tmp_path}),
            "layout": LayoutSettings(dp=NODES, min_dp=NODES - 1, timeout_s=20),
        }
    )

    def go(mesh: Mesh) -> None:
        loop.run(settings, dataset, tmp_path / "whole", mesh, 0.0)

    (tmp_path / "whole").mkdir()
    run_ranks(settings.layout, go)

    (tmp_path / "small.toml").write_text(dumps(settings))
    out = tmp_path / "out"
    for node in range(NODES):
        nodes.start(node, ["train", str(tmp_path / "small.toml"), "--out", str(out)])
    until = time.monotonic() + 200
    while not (out / "checkpoints" / "step-00000100").exists():
        assert nodes.running()
        assert time.monotonic() < until
        time.sleep(0.02)
    nodes.lose(3)
    codes = nodes.end(300)
    assert codes.pop(3) == -9
    assert codes == dict.fromkeys(codes, 0)
    cut, whole = read_lines(out / "steps.jsonl"), read_lines(tmp_path / "whole" / "steps.jsonl")
    for mine, theirs in zip(cut, whole, strict=True):
        assert [mine[key] for key in ("step", "samples", "crc")] == [
            theirs[key] for key in ("step", "samples", "crc")
        ]
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-5, abs=1e-6)  # it starts near 1
