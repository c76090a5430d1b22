"""How the launchers of several machines learn each other's addresses, where only the chief's is known beforehand.

The launcher of machine 0 listens on the chief's address, which its first worker takes over afterwards; the others
connect and say which machine they are. When all are there, each gets the list of all machines.
"""

import contextlib
import dataclasses
import socket
import time
from collections.abc import Callable
from typing import Any

from ..strategy.connection import Connection
from .stop_signals import StopSignals

FIRST_WORD_SECS = 3.0
REPEATED_EVERY_SECS = 30.0
_POLL_SECS = 0.2
_HELLO_SECS = 2.0
_CONNECT_SECS = 2.0


@dataclasses.dataclass(frozen=True)
class NodeMeeting:
    """What a launcher knows before it has met the others.

    Attributes:
      chief_address: "host:port" of the job's first worker.
      num_nodes: How many machines there are.
      node_rank: Which of them this is.
      num_workers: How many workers each runs.
      port: The port of this machine's first worker.
      timeout_secs: How long to wait for the others.
    """

    chief_address: str
    num_nodes: int
    node_rank: int
    num_workers: int
    port: int
    timeout_secs: float

    def meet(self, say: Callable[[str], None], signals: StopSignals) -> tuple[str, ...]:
        """Meets the others.

        Args:
          say: Tells who is missing.
          signals: One of them ends the wait.

        Returns:
          "host:port" of each machine's first worker; empty if stopped.

        Raises:
          OSError: Somebody is missing at the time limit, or was started with something else.
        """
        meet = self._collect if self.node_rank == 0 else self._ask
        return meet(_Wait(self.timeout_secs, say, signals))

    def _hello(self) -> dict[str, Any]:
        return {"rank": self.node_rank, "nodes": self.num_nodes, "workers": self.num_workers, "port": self.port}

    def _collect(self, wait: "_Wait") -> tuple[str, ...]:
        port = self.chief_address.rpartition(":")[2]
        found = {0: self.chief_address}
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(socket.create_server(("", int(port))))
            listener.settimeout(_POLL_SECS)
            others: list[Connection] = []
            while len(found) < self.num_nodes:
                missing = [str(rank) for rank in range(self.num_nodes) if rank not in found]
                if wait.is_over(f"node {', '.join(missing)}"):
                    return ()
                try:
                    accepted, (address, *_) = listener.accept()
                except TimeoutError:
                    continue
                connection = Connection(accepted)
                hello = self._heard(connection)
                if hello is None:
                    connection.close()
                    continue
                stack.enter_context(contextlib.closing(connection))
                problem = self._problem(hello, found)
                if problem:
                    for other in [*others, connection]:
                        other.send(problem=problem)
                        other.flush()
                    raise OSError(problem)
                found[hello["rank"]] = f"{address}:{hello['port']}"
                others.append(connection)
            nodes = [found[rank] for rank in range(self.num_nodes)]
            for other in others:
                other.send(nodes=nodes)
                other.flush()
        return tuple(nodes)

    def _heard(self, connection: Connection) -> dict[str, Any] | None:
        """What a launcher says of itself, None where it is somebody else who has connected."""
        try:
            hello = connection.receive_one(_HELLO_SECS)
        except (EOFError, ValueError):
            return None
        return hello if hello and all(isinstance(hello.get(name), int) for name in self._hello()) else None

    def _problem(self, hello: dict[str, Any], found: dict[int, str]) -> str:
        rank = hello["rank"]
        if rank in found or rank not in range(self.num_nodes):
            return f"two launchers were started with --node-rank={rank}. Give each machine a number of its own"
        for name, option in (("nodes", "nnodes"), ("workers", "workers")):
            if hello[name] != self._hello()[name]:
                return (f"--{option} is {self._hello()[name]} on node 0 and {hello[name]} on node {rank}. Start all "
                        "launchers with the same")
        return ""

    def _ask(self, wait: "_Wait") -> tuple[str, ...]:
        host, _, port = self.chief_address.rpartition(":")
        while not wait.is_over(f"node 0 ({self.chief_address})"):
            try:
                connected = socket.create_connection((host, int(port)), timeout=_CONNECT_SECS)
            except OSError:
                wait.signals.wait(_POLL_SECS)
                continue
            with contextlib.closing(Connection(connected)) as connection:
                connection.send(**self._hello())
                while not wait.is_over("the other nodes"):
                    answer = _receive(connection)
                    if "problem" in answer:
                        raise OSError(answer["problem"])
                    if "nodes" in answer:
                        return tuple(answer["nodes"])
        return ()


class _Wait:
    """A wait with a limit, that says what it is for."""

    def __init__(self, timeout_secs: float, say: Callable[[str], None], signals: StopSignals) -> None:
        self._start = time.monotonic()
        self._timeout_secs, self._say, self.signals = timeout_secs, say, signals
        self._next_word = FIRST_WORD_SECS

    def is_over(self, missing: str) -> bool:
        """Whether it was stopped.

        Raises:
          OSError: The time limit is reached.
        """
        waited = time.monotonic() - self._start
        if waited > self._timeout_secs:
            raise OSError(f"{missing} did not start within {waited:.0f} s")
        if waited >= self._next_word:
            self._next_word = waited + REPEATED_EVERY_SECS
            self._say(f"waiting for {missing}, for {waited:.0f} s so far.")
        return bool(self.signals.received)


def _receive(connection: Connection) -> dict[str, Any]:
    """A message of node 0, empty if none has come yet.

    Raises:
      OSError: The connection was closed, or it is something else that answers.
    """
    try:
        return connection.receive_one(_POLL_SECS) or {}
    except EOFError as error:
        raise OSError("the launcher of node 0 has ended") from error
    except ValueError as error:
        raise OSError("no launcher answers on the address of node 0") from error
