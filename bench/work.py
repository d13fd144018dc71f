"""One job of the benchmark, in a process of its own: ``python -m tamis.bench.work`` with the job on stdin.

A peer may live in an environment without what tamis needs: this and what it imports needs numpy alone.
"""

from __future__ import annotations

import json
import os
import re
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from . import peers, processes
from .clouds import Clouds
from .measure import measure


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Write a peer's files, measure it with one of its settings, or compare as `sampling` or `loops` do."""
    folder = Path(job["folder"])
    if job["task"] == "loops":
        return dict(getattr(import_module("tamis.bench.loops"), job["name"])(**job["size"]))
    if job["task"] == "sampling":
        compare = getattr(import_module("tamis.bench.sampling"), job["name"])
        return dict(compare(folder, **job["sizes"]))
    peer, clouds = peers.load(job["peer"]), Clouds(Path(job["clouds"]))
    for name in peer.NEEDS:
        import_module(name)
    if job["task"] == "write":
        peer.write(clouds, folder)
        return {}
    found = measure(
        lambda: peer.opened(clouds, folder, job["settings"]),
        clouds,
        os.environ[processes.MARK],
        job["epochs"],
        job["least_s"],
    )
    return {**found, "versions": _versions(peer)}


def _versions(peer: peers.Peer) -> dict[str, str]:
    """Distribution -> version of what the peer requires."""
    names = [re.split(r"[<>=]", requirement)[0] for requirement in peer.REQUIREMENTS]
    return {name: version(name) for name in names}


if __name__ == "__main__":
    job = json.load(sys.stdin)
    Path(job["answer"]).write_text(json.dumps(work(job)))
