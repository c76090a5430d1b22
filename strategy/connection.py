"""A connection between two workers: lines of JSON over TCP, of which no side ever waits for the other.

    connection.send(state={"at": 0})          # never waits: what the other side does not take yet is kept
    connection.receive(timeout=0.1)           # [{"state": {"at": 0}}], or [] if nothing has come
"""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from typing import Any

# Bytes: of a line that comes in, and of what the other side has not taken yet.
MAX_LINE = 1 << 20
MAX_UNSENT = 1 << 20

# After so many seconds without a sign from the other machine's kernel the connection breaks. A frozen process is not
# meant: its kernel answers.
MACHINE_SILENT_SECONDS = 30


class Connection:
    """Sends and receives messages, dictionaries of what JSON knows.

    One thread receives; any thread may send.

    Args:
        sock: A connected socket, of TCP or of this machine's own, owned from now on.
    """

    def __init__(self, sock: socket.socket):
        self._socket = sock
        self._received = b""
        self._left: list[dict[str, Any]] = []
        self._unsent = bytearray()
        self._sending = threading.Lock()
        sock.setblocking(False)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, MACHINE_SILENT_SECONDS * 1000)

    def fileno(self) -> int:
        """For `selectors`."""
        return self._socket.fileno()

    def send(self, **message: Any) -> bool:
        """Sends a message, as far as the other side takes it at once; the next call goes on.

        Returns:
            False if the connection is gone, or if the other side has not taken so much that the message is dropped.
        """
        with self._sending:
            is_taken = len(self._unsent) <= MAX_UNSENT
            if is_taken:
                self._unsent += json.dumps(message).encode() + b"\n"
            return self._push() and is_taken

    def flush(self, timeout: float = 1.0) -> bool:
        """Waits until the other side has taken everything, for `timeout` seconds at most; returns whether it has."""
        deadline = time.monotonic() + timeout
        with self._sending:
            while self._push() and self._unsent:
                if not self._is_ready(select.POLLOUT, deadline - time.monotonic()):
                    break
            return not self._unsent

    def _push(self) -> bool:
        """Sends what can be sent now; False if the connection is gone."""
        try:
            while self._unsent:
                del self._unsent[:self._socket.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            return False
        return True

    def receive(self, timeout: float) -> list[dict[str, Any]]:
        """The messages that arrive within `timeout` seconds: those of one read, none if nothing comes.

        What `receive_one` has left comes first, and without a read.

        Raises:
            EOFError: The other side has closed the connection, or it has broken; then the cause is the OSError.
            ValueError: What arrives is no message.
        """
        if self._left:
            left, self._left = self._left, []
            return left
        if not self._is_ready(select.POLLIN, timeout):
            return []
        try:
            data = self._socket.recv(1 << 16)
        except BlockingIOError:
            return []
        except OSError as error:
            raise EOFError(str(error)) from error
        if not data:
            raise EOFError("closed")
        *lines, self._received = (self._received + data).split(b"\n")
        if len(self._received) > MAX_LINE:
            raise ValueError("a line is too long")
        if self._received[:1] not in (b"", b"{"):
            raise ValueError("a line is no JSON object")
        return [_message(line) for line in lines]

    def receive_one(self, timeout: float) -> dict[str, Any] | None:
        """The next message, None if none arrives within `timeout` seconds; raises what `receive` raises."""
        deadline = time.monotonic() + timeout
        messages = self.receive(timeout)
        while not messages and time.monotonic() < deadline:
            messages = self.receive(deadline - time.monotonic())
        self._left = messages[1:]
        return messages[0] if messages else None

    def _is_ready(self, event: int, timeout: float) -> bool:
        poll = select.poll()
        try:
            poll.register(self._socket, event)
        except ValueError:
            return True  # Closed: the call that follows says so.
        return bool(poll.poll(max(timeout, 0.0) * 1000))

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()


def listening_socket(host: str, port: int) -> socket.socket:
    """Listens where TensorFlow's server does: on all addresses of this machine, or on the loopback one that is named.

    Raises:
        OSError: The port cannot be used.
    """
    is_loopback = host in ("localhost", "::1") or host.startswith("127.")
    is_dual = not is_loopback and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if is_dual or ":" in host else socket.AF_INET
    return socket.create_server((host if is_loopback else "", port), family=family, dualstack_ipv6=is_dual)


def _message(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except RecursionError:
        message = None
    if not isinstance(message, dict):
        raise ValueError("a line is no JSON object")
    return message
