"""The engine that makes parts through Ray: on the machines of a cluster, or on this one in a Ray of its own.

Ray places a source at a time on a CPU; there a worker as a local build has them makes the part. What comes
out is the same, and so is what is said of a source that breaks its worker. Every machine must see the raw
files and the output folder under the same paths, and have the same version of this package.
"""

from __future__ import annotations

import logging
import os
import platform
import shutil
import signal
import socket
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from .. import __version__
from ..errors import DataError, UsageError, from_plain
from ..metrics import Meter
from .engine import Made, blamed, heard, planned
from .journal import Journal
from .parts import Work
from .worker import plain
from .worker_process import Lost, WorkerProcess, search_path

_KEY = "data.engine"
_STORE = 100 << 20  # bytes for what tasks are told and say; Ray takes no fewer than 75 MiB
_END_S = 10.0  # that tasks get to end
_ANSWER_S = 10.0  # that a cluster gets to answer
_WORKERS = dict[str, WorkerProcess]()
"""Of a process of Ray: its worker, by the build that it works for. Ray may use its process for the next."""


def made_by_ray(work: Work, sizes: Mapping[str, int], workers: int, meter: Meter) -> Iterator[Made]:
    """Make the parts of the sources as `engine.made` does, in tasks of Ray.

    With RAY_ADDRESS in the environment they run on that cluster, as many at a time as ``data.workers`` says,
    by default one a CPU of it. Without it ``workers`` run here, in a Ray that is started for them and ended
    after them. A Ray that this process has begun already is used as it is.

    A task that is lost with its machine, or killed, is blamed on its source, as none of the source's fault.
    Raises UsageError where Ray is not installed; DataError where it does not start, where a machine lacks a
    folder or has another version of this package, and as `engine.made` does.
    """
    left, running = deque(planned(sizes)), dict[Future[Any], tuple[str, Any]]()
    if not left:
        return
    with _cluster(workers) as (ray, own):
        if not own:
            workers = work.settings.workers or max(int(ray.cluster_resources().get("CPU", 1)), 1)
        # A part that is made twice at a time would be written twice: a lost task is for the caller.
        part = ray.remote(num_cpus=1, max_retries=0)(_part)
        told = ray.put(_told(work, search_path() if own else None))
        try:
            while left or running:
                while left and len(running) < workers:
                    source = left.popleft()
                    task = part.remote(told, source)
                    running[task.future()] = source, task
                # Not by ray.wait, in which what a handler of a signal raises is lost.
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    yield _result(ray, work, running.pop(done)[0], done, meter)
        finally:
            for _, task in running.values():
                ray.cancel(task, force=True)
            wait(running, timeout=_END_S)


def _told(work: Work, path: list[str] | None) -> dict[str, Any]:
    """What tasks have to know. ``path``: the workers' ``sys.path``, by default that of the process of Ray."""
    told = {"work": plain(work), "from": str(Path.cwd()), "path": path, "version": __version__}
    return told | {"build": uuid4().hex}


def _part(told: Mapping[str, Any], source: str) -> dict[str, Any]:
    """In a process of Ray: what its worker says of a source, or how that one was lost."""
    about = told["work"]
    if told["version"] != __version__:
        cause = f"{platform.node()} has version {__version__} of tamis, not {told['version']}"
        return _stops(DataError(_KEY, cause, "install the same version on all machines"))
    for folder in (about["root"], about["folder"]):
        if not Path(told["from"], folder).is_dir():
            cause = f"is not on the machine {platform.node()}"
            fix = f"mount it there under the same path, or set {_KEY} = 'local'"
            return _stops(DataError(folder, cause, fix))
    try:
        worker = _WORKERS.get(told["build"]) or _started(told)
        worker.source = source
        worker.say(source)
        reply, arrays = worker.reply()
    except Lost as lost:
        worker = _WORKERS.pop(told["build"])
        worker.end()
        Journal(Path(told["from"], about["folder"]), about["digest"]).clear(worker.pid)
        return {"lost": (lost.how, lost.outside), "began": worker.source is not None}
    return {"reply": reply, "arrays": arrays}


def _started(told: Mapping[str, Any]) -> WorkerProcess:
    """A worker that knows what there is to do, kept for the sources to come. Raises Lost."""
    while _WORKERS:
        _WORKERS.popitem()[1].end()
    start = told["from"] if Path(told["from"]).is_dir() else None
    worker = _WORKERS[told["build"]] = WorkerProcess(told["path"], start)
    worker.reply()
    worker.say(told["work"])
    return worker


def _stops(error: DataError) -> dict[str, Any]:
    return {"stops": error.plain()}


def _result(ray: Any, work: Work, source: str, done: Future[Any], meter: Meter) -> Made:
    """What a task that is done has to say of a source."""
    lost = (
        ray.exceptions.WorkerCrashedError,
        ray.exceptions.LocalRayletDiedError,
        ray.exceptions.NodeDiedError,
        ray.exceptions.OutOfMemoryError,
    )
    try:
        reply = done.result()
    except lost as error:
        memory = isinstance(error, ray.exceptions.OutOfMemoryError)
        how = "was ended by Ray, as its machine had no memory left" if memory else "was lost by Ray"
        return blamed(work, source, Lost(how, outside=True))
    except ray.exceptions.RayError as error:
        raise DataError(_KEY, f"a task of Ray failed ({_last(error)})", "see that tamis runs there") from None
    if "stops" in reply:
        raise from_plain(reply["stops"])
    if "lost" in reply:
        return blamed(work, source if reply["began"] else None, Lost(*reply["lost"]))
    return heard(reply["reply"], reply["arrays"], meter)


@contextmanager
def _cluster(workers: int) -> Iterator[tuple[Any, bool]]:
    """Ray, connected; and whether it is one of this process's own, with ``workers`` CPUs."""
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        # Under `uv run` Ray would pack the current folder and make an environment from it for its workers,
        # which takes minutes; they run here, where this one is.
        os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    try:
        import ray
    except ImportError as error:
        cause = f"'ray' needs the package ray ({error})"
        raise UsageError(_KEY, cause, "pip install 'tamis[ray]', or set it to 'local'") from None
    if ray.is_initialized():
        yield ray, False
        return
    with ExitStack() as stack:
        stack.enter_context(_only_errors(logging.getLogger("ray")))
        quiet = {"log_to_driver": False, "configure_logging": False}
        of_its_own: dict[str, Any] = {}
        if not address:
            # Below it lie sockets, whose paths may have no more than 107 bytes: $TMPDIR may be too long.
            folder = tempfile.mkdtemp(prefix=f"tamis-ray-{os.getpid()}-", dir="/tmp")
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            of_its_own = {"num_cpus": workers, "include_dashboard": False, "object_store_memory": _STORE}
            of_its_own["_temp_dir"] = folder
        stack.callback(ray.shutdown)
        end = signal.getsignal(signal.SIGTERM)
        try:
            if address:
                _answers(address)
            ray.init(address="auto" if address else "local", **quiet, **of_its_own)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            where = f"RAY_ADDRESS ({address})" if address else _KEY
            raise DataError(
                where, f"Ray does not start ({_last(error)})", "see whether it runs, and what it printed"
            ) from None
        if end is not None and signal.getsignal(signal.SIGTERM) is not end:
            signal.signal(signal.SIGTERM, end)  # Ray has put its own in its place
        yield ray, not address


def _answers(address: str) -> None:
    """Raise OSError where nothing listens at an address with a port: Ray would try for many minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=_ANSWER_S).close()


@contextmanager
def _only_errors(logger: logging.Logger) -> Iterator[None]:
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _last(error: BaseException) -> str:
    """The last line of what an exception says: the first ones of Ray's are colours and places."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
