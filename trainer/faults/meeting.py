"""How the ranks of a run meet: a store that they share, and in it a part that no earlier start has used."""

from __future__ import annotations

import os
import time
import uuid
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore

from ...errors import LostError
from .supervisor import LISTENER

_PATIENCE = timedelta(days=7)  # for rank 0, which may have a dataset to build first
_LOOK_S = 0.05


def store_of(rank: int) -> TCPStore:
    """The store at ``MASTER_ADDR`` and ``MASTER_PORT``: torchrun's agent serves it, or rank 0 does."""
    served = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
    leads = rank == 0 and not served
    return TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=leads,
        timeout=_PATIENCE,
        wait_for_workers=False,
        master_listen_fd=int(os.environ[LISTENER]) if leads and LISTENER in os.environ else None,
    )


def meet(store: Store, rank: int, world: int, timeout_s: float) -> str:
    """A name that these ``world`` processes alone know, to go before all that they keep in the store.

    torchrun's store outlives the ranks, and neither it nor the environment tells one start from another: what
    the dead have left there would be taken for an answer of the living. So rank 0 makes up a name, the others
    sign it, and it counts once rank 0 has listed all signatures. Waits for rank 0 as long as it takes; raises
    LostError where another does not sign within ``timeout_s``.
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
