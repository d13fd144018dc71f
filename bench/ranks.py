"""Runs a function on forked ranks: what the process has imported and made, they need not make again."""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback
import warnings
from collections.abc import Callable
from queue import Empty
from typing import Any

import torch

_TIMEOUT_S = 300.0


def on_ranks(world: int, work: Callable[..., Any], *args: Any) -> Any:
    """What ``work(*args)`` gives on rank 0 of ``world`` processes, one thread each.

    torchrun's environment variables say who is who. Raises RuntimeError with the trace of a rank that fails.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return forked(world, _rank, (world, port, work, args), _TIMEOUT_S)[0]


def forked(world: int, child: Callable[..., None], args: tuple[Any, ...], timeout_s: float) -> list[Any]:
    """The answers of ``world`` forked processes, by rank.

    Each calls ``child(rank, *args, answers)``, which puts (rank, answer, error or None) there and ends.
    Raises RuntimeError with the error of a rank, and where ``timeout_s`` pass without an answer.
    """
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    children = [context.Process(target=child, args=(rank, *args, answers)) for rank in range(world)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads: a child sets one thread
        for one in children:
            one.start()
    try:
        found = {}
        for _ in children:
            rank, answer, error = answers.get(timeout=timeout_s)
            if error:
                raise RuntimeError(f"rank {rank} of {world}: {error}")
            found[rank] = answer
        return [found[rank] for rank in range(world)]
    except Empty:
        raise RuntimeError(f"{world} ranks did not end within {timeout_s:.0f} s") from None
    finally:
        for one in children:
            one.kill()
            one.join()


def _rank(
    rank: int, world: int, port: int, work: Callable[..., Any], args: tuple[Any, ...], answers: Any
) -> None:
    try:
        torch.set_num_threads(1)  # first of all: the parent's OpenMP threads did not come along
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(world),
            LOCAL_WORLD_SIZE=str(world),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            GLOO_SOCKET_IFNAME="lo",
        )
        answers.put((rank, work(*args), None))
    except BaseException as error:  # noqa: BLE001 - whatever it was, the parent must hear of it
        answers.put((rank, None, "".join(traceback.format_exception(error)).strip()))
    answers.close()
    answers.join_thread()
    os._exit(0)
