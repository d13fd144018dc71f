"""What a feeder and its readers say to each other, over an abstract Unix socket.

Such a socket has no file, so that nothing can be left behind, and no rights, so that each side asks the
kernel who the other is. A message is one JSON object in one packet.
"""

from __future__ import annotations

import array
import errno
import hashlib
import json
import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ..config import Model
from ..errors import UsageError

_PACKET = 1 << 16
_FILES = 250  # the kernel passes at most 253 at once
_ENDING_S = 3.0  # a feeder whose readers were killed ends in much less


class Request(Model):
    """What a feeder is told when it starts.

    ``listener``: descriptor of a listening socket. ``starter``: the process that made it. ``readers``: how
    many will attach. ``loader``: a `Spec`.
    """

    listener: int
    starter: int
    readers: int
    timeout_s: float
    slots: int | None
    loader: dict[str, Any]


class Hello(Model):
    """A reader's first message. ``loader``: its `Spec`, so that ranks whose arguments differ are refused."""

    rank: int
    replica: int
    columns: list[str]
    loader: dict[str, Any]


def address(*parts: str | int) -> str:
    """The name of a socket for what ``parts`` identify."""
    text = json.dumps([os.getuid(), *parts])
    return "tamis-" + hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def listen(name: str) -> socket.socket:
    """A listening socket. Raises UsageError where another feeder has the name, and does not end soon."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    until_s = time.monotonic() + _ENDING_S
    try:
        while not _bound(server, name):
            if time.monotonic() > until_s:
                fix = "give each run its own MASTER_PORT or run id, or end the other"
                raise UsageError("loader.feeder", "another feeder serves this run", fix)
            time.sleep(0.01)
        server.listen(64)
    except BaseException:
        server.close()
        raise
    return server


def _bound(server: socket.socket, name: str) -> bool:
    try:
        server.bind("\0" + name)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True


def connect(name: str) -> socket.socket | None:
    """A socket to the feeder of that name, or None where there is none yet."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        client.setblocking(False)  # where many connect at once, a full queue is no reason to hang
        client.connect("\0" + name)
        client.setblocking(True)
    except (ConnectionRefusedError, BlockingIOError):
        client.close()
        return None
    except BaseException:
        client.close()
        raise
    return client


def peer(connection: socket.socket) -> int:
    """The process at the other end. Raises UsageError where it is of another user, or not to be seen."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", raw)
    if uid != os.getuid():
        raise UsageError("loader.feeder", f"user {uid} is at the other end", "see who else runs here")
    if pid == 0:
        cause = "the other end is in another process namespace"
        raise UsageError("loader.feeder", cause, "run all ranks of a node in one container")
    return int(pid)


def send(connection: socket.socket, message: Mapping[str, Any], files: Sequence[int] = ()) -> None:
    """Send a message, and descriptors with it. A peer that has gone is not an error: its death is noticed.

    Raises UsageError where it is too large.
    """
    data = json.dumps(message).encode()
    if len(data) > _PACKET:
        cause = f"{len(data)} bytes are to be said at once, {_PACKET} can be"
        raise UsageError("loader.feeder", cause, "use fewer operators or columns, or feeder 'inline'")
    if len(files) > _FILES:
        cause = f"{len(files)} arrays a batch, at most {_FILES} can be shared"
        raise UsageError("loader.columns", cause, "name the columns you need")
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
    try:
        connection.sendmsg([data], rights, socket.MSG_NOSIGNAL)
    except (BrokenPipeError, ConnectionResetError):
        return


def receive(connection: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """The next message and the descriptors with it; None where the other end has closed.

    Raises UsageError where this process may not have so many files open.
    """
    try:
        data, files, flags = _packet(connection)
    except ConnectionResetError:  # it left something unread; what it said before may still be read
        try:
            data, files, flags = _packet(connection)
        except ConnectionResetError:
            return None, []
    if flags & socket.MSG_CTRUNC:
        for fd in files:
            os.close(fd)
        cause = f"only {len(files)} of a batch's arrays can be opened"
        raise UsageError("loader.feeder", cause, "raise the limit of open files (ulimit -n)")
    return (json.loads(data) if data else None), files


def _packet(connection: socket.socket) -> tuple[bytes, list[int], int]:
    rights = array.array("i")
    room = socket.CMSG_SPACE(_FILES * rights.itemsize)
    # `socket.recv_fds` ignores its flags: programs that this process starts would inherit the files.
    data, ancillary, flags, _ = connection.recvmsg(_PACKET, room, socket.MSG_CMSG_CLOEXEC)
    for _, kind, content in ancillary:
        if kind == socket.SCM_RIGHTS:
            rights.frombytes(content[: len(content) - len(content) % rights.itemsize])
    return data, rights.tolist(), flags
