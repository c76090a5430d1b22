"""A connection between two workers' watches: lines of JSON over TCP."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

MAX_LINE = 1 << 20


class Connection:
    """Sends and receives messages, dictionaries of what JSON knows.

    Args:
        sock: A connected socket, owned from now on.
    """

    def __init__(self, sock: socket.socket):
        self._socket = sock
        self._received = b""
        self._sending = threading.Lock()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        """For `selectors`."""
        return self._socket.fileno()

    def send(self, **message: Any) -> bool:
        """Sends a message; False if the connection is gone or takes nothing any more."""
        try:
            with self._sending:
                self._socket.settimeout(1.0)
                self._socket.sendall(json.dumps(message).encode() + b"\n")
            return True
        except OSError:
            return False

    def receive(self, timeout: float) -> list[dict[str, Any]]:
        """The messages that arrive within `timeout` seconds: those of one read, none if nothing comes.

        Raises:
            EOFError: The other side has closed the connection, or it has broken.
            ValueError: What arrives is no message.
        """
        self._socket.settimeout(max(timeout, 0.001))
        try:
            data = self._socket.recv(1 << 16)
        except TimeoutError:
            return []
        except OSError as error:
            raise EOFError(str(error)) from error
        if not data:
            raise EOFError("closed")
        *lines, self._received = (self._received + data).split(b"\n")
        if len(self._received) > MAX_LINE:
            raise ValueError("a line is too long")
        messages = [json.loads(line) for line in lines]
        if not all(isinstance(message, dict) for message in messages):
            raise ValueError("a line is no JSON object")
        return messages

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()
