"""What a feeder and its readers say to each other: whole, to the right process, and bounded."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing

import pytest

from tamis.errors import UsageError
from tamis.loaders import protocol
from tamis.loaders.protocol import address, connect, listen, peer, receive, send

NOBODY = 65534


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The two ends of a connection."""
    name = address(uuid.uuid4().hex)
    with listen(name) as server:
        client = connect(name)
        assert client
        with client, server.accept()[0] as served:
            yield client, served


def test_an_address_is_that_of_a_user_and_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert address("run", 0) == address("run", 0)
    assert len({address("run", 0), address("run", 1), address("other", 0), address("run/0")}) == 4
    mine = address("run", 0)
    monkeypatch.setattr(os, "getuid", lambda: NOBODY)
    assert address("run", 0) != mine


def test_messages_and_files_arrive_in_order(pair: tuple[socket.socket, socket.socket]) -> None:
    client, served = pair
    events = [os.eventfd(value) for value in (3, 4)]
    send(client, {"first": [1, 2.5, None, "\udcff"]})
    send(client, {"second": "é" * 10_000}, events)
    assert receive(served) == ({"first": [1, 2.5, None, "\udcff"]}, [])
    message, files = receive(served)
    assert message == {"second": "é" * 10_000}
    assert [os.eventfd_read(fd) for fd in files] == [3, 4]
    assert not any(os.get_inheritable(fd) for fd in files)
    for fd in (*events, *files):
        os.close(fd)


def test_the_end_is_told_after_what_was_said(pair: tuple[socket.socket, socket.socket]) -> None:
    client, served = pair
    send(client, {"unread": 1})
    send(served, {"error": "why"})
    served.close()  # with something unread, which the kernel tells the other end before what it was sent
    assert receive(client)[0] == {"error": "why"}
    assert receive(client) == (None, [])
    send(client, {"nobody": "listens"})


def test_what_is_too_large_is_refused_and_not_cut(pair: tuple[socket.socket, socket.socket]) -> None:
    client, _ = pair
    with pytest.raises(UsageError, match="use fewer operators or columns"):
        send(client, {"text": "x" * 70_000})
    with pytest.raises(UsageError, match="251 arrays a batch, at most 250 can be shared"):
        send(client, {}, [0] * 251)


def test_a_limit_of_open_files_is_named(pair: tuple[socket.socket, socket.socket]) -> None:
    client, served = pair
    event = os.eventfd(0)
    send(client, {}, [event] * 20)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (event + 5, hard))  # the lowest number that was free
    try:
        with pytest.raises(UsageError, match="raise the limit of open files"):
            receive(served)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    os.close(event)


def test_nobody_listens_yet() -> None:
    assert connect(address(uuid.uuid4().hex)) is None


def test_one_run_has_one_feeder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "_ENDING_S", 0.1)
    name = address(uuid.uuid4().hex)
    with listen(name):
        for _ in range(3):
            with pytest.raises(UsageError, match="another feeder serves this run"):
                listen(name)
    listen(name).close()


def test_a_feeder_that_is_about_to_end_is_waited_for() -> None:
    name = address(uuid.uuid4().hex)
    server = listen(name)
    end = threading.Timer(0.3, server.close)
    end.start()
    listen(name).close()
    end.join()


def test_a_full_queue_does_not_hang() -> None:
    name, clients = address(uuid.uuid4().hex), []
    start = time.monotonic()
    with listen(name) as server:
        while client := connect(name):
            clients.append(client)
        server.accept()[0].close()
        again = connect(name)
        assert again
        clients.append(again)
    assert 64 <= len(clients) < 100
    assert time.monotonic() - start < 20
    for client in clients:
        client.close()


def test_the_other_end_is_this_user(pair: tuple[socket.socket, socket.socket]) -> None:
    client, served = pair
    assert peer(client) == peer(served) == os.getpid()


@pytest.mark.parametrize(
    ("pid", "uid", "text"),
    [
        (7, os.getuid() + 1, f"user {os.getuid() + 1} is at the other end"),
        (0, os.getuid(), "in one container"),
    ],
)
def test_another_user_or_container_is_refused(pid: int, uid: int, text: str) -> None:
    class Connection:
        def getsockopt(self, *_: int) -> bytes:
            return b"".join(value.to_bytes(4, "little") for value in (pid, uid, 0))

    with pytest.raises(UsageError, match=text):
        peer(Connection())  # type: ignore[arg-type]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_real_other_user_is_refused() -> None:
    name = address(uuid.uuid4().hex)
    script = f"""
import os, socket
os.setgid({NOBODY})
os.setuid({NOBODY})
client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
client.connect("\\0{name}")
client.recv(1)
"""
    with listen(name) as server, subprocess.Popen([sys.executable, "-c", script]) as process:
        with (
            closing(server.accept()[0]) as served,
            pytest.raises(UsageError, match=f"user {NOBODY} is at the"),
        ):
            peer(served)
        assert process.wait() == 0
