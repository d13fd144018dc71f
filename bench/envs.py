"""Which interpreter a peer runs in: this one where it is installed, else an environment made for it."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
from pathlib import Path

from ..errors import DataError
from .peers import Peer

DEFAULT = Path("~/.cache/tamis-bench")

_INSTALL_S = 900


def python_for(peer: Peer, envs: Path) -> str:
    """The interpreter to run ``peer`` in; one that is not here is installed below ``envs``, once.

    Raises DataError where it cannot be.
    """
    if all(importlib.util.find_spec(name.partition(".")[0]) for name in peer.NEEDS):
        return sys.executable
    wanted = "\n".join((sys.version, *peer.REQUIREMENTS))
    digest = hashlib.blake2b(wanted.encode(), digest_size=6).hexdigest()
    folder = envs / digest
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.is_file():
        _uv(peer, "venv", "--clear", "--python", sys.executable, str(folder))
        _uv(peer, "pip", "install", "--python", str(python), *peer.REQUIREMENTS)
        ready.touch()
    return str(python)


def _uv(peer: Peer, *arguments: str) -> None:
    where, fix = f"environment of {peer.NAME}", "see to uv and the network, or install it here"
    try:
        done = subprocess.run(
            ["uv", "--quiet", *arguments], capture_output=True, text=True, check=False, timeout=_INSTALL_S
        )
    except FileNotFoundError:
        raise DataError(where, "there is no uv to make it", fix) from None
    except subprocess.TimeoutExpired:
        raise DataError(where, f"was not made within {_INSTALL_S} s", fix) from None
    if done.returncode:
        raise DataError(where, f"could not be made: {done.stderr[-500:]}", fix)
