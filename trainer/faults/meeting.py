"""How the ranks of a run meet: a store that they share, and in it a part that no earlier start has used."""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore

from ...aside import Result, aside
from ...errors import LostError
from .supervisor import LISTENER

log = logging.getLogger(__name__)

_PATIENCE_S = 7 * 86400.0  # for a rank 0 that has a dataset to build first
_LOOK_S, _NEWS_S = 0.05, 60.0


def met(rank: int, world: int, timeout_s: float) -> tuple[Store, str]:
    """The store of these ``world`` processes, and a name that they alone know, see `meet`.

    Raises LostError where another does not come within ``timeout_s``. Only a rank 0 that the command did not
    start may take longer, as it builds the dataset first.
    """
    started = LISTENER in os.environ
    served = not started and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
    patience_s = timeout_s if started else _PATIENCE_S
    waits = threading.Timer(_NEWS_S, _tell_waiting, (rank,))
    waits.daemon = True
    if rank > 0:
        waits.start()
    try:
        # An agent served the store before it started this process, and is gone if it does not answer.
        connect_s = timeout_s if started or served else _PATIENCE_S
        store = _within(connect_s, lambda: _store(rank == 0 and not served, connect_s))
        # Rank 0 has its own patience with the others, and names whom it waited for.
        name = _within(patience_s + timeout_s, lambda: meet(store, rank, world, timeout_s))
    except (dist.DistError, TimeoutError) as error:
        why = str(error).splitlines()[0][:200] if str(error) else "it said nothing in time"
        other = "torchrun's agent" if served else "rank 0"
        cause = f"{other} does not answer at {_address()} ({why})"
        raise LostError(f"rank {rank}", cause, "see why, or raise layout.timeout_s") from None
    finally:
        waits.cancel()
    store.set_timeout(timedelta(seconds=timeout_s))
    return store, name


def _within(seconds: float, work: Callable[[], Result]) -> Result:
    """What ``work`` gives, or TimeoutError: a call to a store that a stopped process holds never returns."""
    return aside(work, "meeting").result(min(seconds, threading.TIMEOUT_MAX))


def _tell_waiting(rank: int) -> None:
    log.warning("rank %d waits for rank 0 at %s, which may be building the dataset", rank, _address())


def _address() -> str:
    return "{MASTER_ADDR}:{MASTER_PORT}".format_map(os.environ)


def _store(leads: bool, patience_s: float) -> TCPStore:
    """The store at ``MASTER_ADDR`` and ``MASTER_PORT``: torchrun's agent serves it, or rank 0 does."""
    return TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=leads,
        timeout=timedelta(seconds=patience_s),
        wait_for_workers=False,
        master_listen_fd=int(os.environ[LISTENER]) if leads and LISTENER in os.environ else None,
    )


def meet(store: Store, rank: int, world: int, timeout_s: float) -> str:
    """A name that these ``world`` processes alone know, to go before all that they keep in the store.

    torchrun's store outlives the ranks, and neither it nor the environment tells one start from another: what
    the dead have left there would be taken for an answer of the living. So rank 0 makes up a name, the others
    sign it, and it counts once rank 0 has listed all signatures. Waits for rank 0 as long as ``store`` does;
    raises LostError where another does not sign within ``timeout_s``.
    """
    own = uuid.uuid4().hex
    if rank == 0:
        store.set("meeting", own)
        signatures = [_signature(store, own, other, timeout_s) for other in range(1, world)]
        store.set(f"{own}/all", "".join(signatures))
        return own
    while True:
        name = store.get("meeting").decode()
        store.set(f"{name}/{rank}", own)
        while store.get("meeting").decode() == name:
            if store.check([f"{name}/all"]):
                if own in store.get(f"{name}/all").decode():
                    return name
                break  # of a start before this one; its rank 0 lives no more
            time.sleep(_LOOK_S)
        time.sleep(_LOOK_S)


def _signature(store: Store, name: str, rank: int, timeout_s: float) -> str:
    try:
        store.wait([f"{name}/{rank}"], timedelta(seconds=timeout_s))
    except dist.DistStoreError:
        cause = f"rank {rank} has not come within {timeout_s:g} s"
        raise LostError("rank 0", cause, "see why it did not start, or raise layout.timeout_s") from None
    return store.get(f"{name}/{rank}").decode()
