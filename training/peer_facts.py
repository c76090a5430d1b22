"""What the tasks of a cluster tell each other about themselves, for the doctor.

Every task listens on its own address, connects to every other one, sends a line of JSON about itself, and reads the
other's. So it learns whom it reaches, who reaches it, and what they run. Nothing here needs TensorFlow's servers.

    with FactServer(cluster, facts) as server:
        answers = ask_peers(cluster, facts, deadline)
        server.wait_until_asked_by({1, 2}, deadline)
"""

from __future__ import annotations

import dataclasses
import json
import socket
import socketserver
import threading
import time
from typing import Any

from ..strategy.cluster import Cluster, Task
from ..strategy.connection import listening_socket

MAX_BYTES = 64 << 10
RETRY_SECS = 0.1
MAX_TEXT = 200


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a task says about itself.

    Attributes:
        rank: Its position in the cluster.
        addresses: The addresses of the cluster as it sees it.
        versions: Versions by name.
        devices: Number of devices by kind.
    """

    rank: int
    addresses: tuple[str, ...]
    versions: dict[str, str]
    devices: dict[str, int]

    def to_line(self) -> bytes:
        """A line of JSON."""
        return json.dumps({"lockstep doctor": dataclasses.asdict(self)}).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Facts | None:
        """Reads what somebody sent, whoever it was; None where it is not what `to_line` makes."""
        try:
            fields = json.loads(line)["lockstep doctor"]
            facts = cls(int(fields["rank"]), tuple(map(_text, fields["addresses"])),
                        {_text(name): _text(version) for name, version in fields["versions"].items()},
                        {_text(kind): int(count) for kind, count in fields["devices"].items()})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
        return facts


@dataclasses.dataclass(frozen=True)
class Answer:
    """What came of asking a peer.

    Attributes:
        facts: What it said about itself, None where it is no doctor.
        reached: Whether something listens there.
        problem: What went wrong, "" where nothing did.
    """

    facts: Facts | None
    reached: bool
    problem: str


class FactServer:
    """Tells whoever asks what this task is, on the task's own port."""

    def __init__(self, cluster: Cluster, facts: Facts) -> None:
        """Starts to listen.

        Raises:
          OSError: The port cannot be used.
        """
        self._asked = threading.Condition()
        self._asked_by: set[int] = set()
        self._server = _Server(listening_socket(cluster.task.host, cluster.task.port), self._handler(facts))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def __enter__(self) -> FactServer:
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def wait_until_asked_by(self, ranks: set[int], deadline: float) -> set[int]:
        """Waits for tasks to ask; returns those that have not by the deadline."""
        with self._asked:
            self._asked.wait_for(lambda: ranks <= self._asked_by, max(0.0, deadline - time.monotonic()))
            return ranks - self._asked_by

    def _handler(self, facts: Facts) -> type[socketserver.StreamRequestHandler]:
        server = self

        class Handler(socketserver.StreamRequestHandler):
            """One question."""

            timeout = 2.0

            def handle(self) -> None:
                asker = Facts.from_line(self.rfile.readline(MAX_BYTES))
                if asker is not None:
                    self.wfile.write(facts.to_line())
                    with server._asked:
                        server._asked_by.add(asker.rank)
                        server._asked.notify_all()

        return Handler


class _Server(socketserver.ThreadingTCPServer):
    """Serves on a socket that listens already."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, handler: type[socketserver.StreamRequestHandler]) -> None:
        super().__init__(listener.getsockname(), handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Somebody who hangs up or says nothing is not worth a traceback."""


def ask_peers(cluster: Cluster, facts: Facts, deadline: float) -> dict[int, Answer]:
    """Asks every other task at once; returns by rank what came of it, by the deadline at the latest."""
    answers: dict[int, Answer] = {}

    def ask(rank: int) -> None:
        answers[rank] = _ask(cluster.tasks[rank], facts, deadline)

    peers = [rank for rank in range(cluster.num_workers) if rank != cluster.rank]
    # Daemons: a name server that does not answer holds its thread for longer than anybody wants to wait.
    threads = [threading.Thread(target=ask, args=(rank,), daemon=True) for rank in peers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline + RETRY_SECS - time.monotonic()))
    late = Answer(None, False, "its name was not resolved in time")
    return {rank: answers.get(rank, late) for rank in peers}


def _ask(task: Task, facts: Facts, deadline: float) -> Answer:
    """Asks one task, again while nobody listens there."""
    try:
        socket.getaddrinfo(task.host, task.port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        return Answer(None, False, f"there is no host {task.host!r}: {getattr(error, 'strerror', error)}")
    while True:
        try:
            return _ask_once(task, facts, deadline)
        except ConnectionRefusedError:
            answer = Answer(None, False, "not listening (nothing started there yet)")
        except TimeoutError:
            answer = Answer(None, False, "no answer (a firewall, or the machine is down)")
        except OSError as error:
            answer = Answer(None, False, f"cannot be reached: {error.strerror}")
        if time.monotonic() + RETRY_SECS > deadline:
            return answer
        time.sleep(RETRY_SECS)  # Nothing tells when somebody begins to listen.


def _ask_once(task: Task, facts: Facts, deadline: float) -> Answer:
    def remaining() -> float:
        return max(0.05, deadline - time.monotonic())

    with socket.create_connection((task.host, task.port), timeout=remaining()) as connection:
        try:
            connection.settimeout(remaining())
            connection.sendall(facts.to_line())
            with connection.makefile("rb") as stream:
                answer = Facts.from_line(stream.readline(MAX_BYTES))
        except OSError:
            answer = None
    return Answer(answer, True, "")


def _text(value: Any) -> str:
    """A string of another process, fit to be shown."""
    if not isinstance(value, str) or not value.isprintable() or len(value) > MAX_TEXT:
        raise ValueError("not a text")
    return value
