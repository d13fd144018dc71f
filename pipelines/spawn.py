"""Worker processes of this package: how one is started, and how one has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

_START = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from tamis.pipelines.{module} import main; main(int(sys.argv[1]))"
)


def spawned(module: str, path: Sequence[str], folder: str | None = None) -> subprocess.Popen[bytes]:
    """A process that runs ``main`` of a module of this folder for this one, with ``path`` as ``sys.path``.

    ``folder``: its current folder, by default this process's. It has pipes for stdin and stdout, and a
    session of its own: what it starts can be ended with it, and Ctrl-C is for this process alone.
    """
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _START.format(module=module), str(os.getpid()), *path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )


def ending(code: int | None) -> str:
    """What an exit code, as in `subprocess`, says of a process, as a predicate."""
    if code is not None and code < 0:
        names = {one.value: one.name for one in signal.Signals}
        return f"was killed by {names.get(-code, f'signal {-code}')}"
    return f"ended with exit code {code}"
