"""How the launchers of several machines learn each other's addresses, where only the chief's is known beforehand.

The launcher of machine 0 listens on the chief's address, which its first worker takes over afterwards; the others
connect and say which machine they are. When all are there, each gets the list of all machines.
"""

import contextlib
import dataclasses
import json
import socket
import time
from collections.abc import Callable
from typing import Any

FIRST_WORD_SECS = 3.0
REPEATED_EVERY_SECS = 30.0
_POLL_SECS = 0.2
_LONGEST = 1 << 16


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

    def meet(self, say: Callable[[str], None], is_stopped: Callable[[], bool]) -> tuple[str, ...]:
        """Meets the others.

        Args:
          say: Tells who is missing.
          is_stopped: Whether to give up.

        Returns:
          "host:port" of each machine's first worker; empty if stopped.

        Raises:
          OSError: Somebody is missing at the time limit, or was started with something else.
        """
        meet = self._collect if self.node_rank == 0 else self._ask
        return meet(_Wait(self.timeout_secs, say, is_stopped))

    def _hello(self) -> dict[str, Any]:
        return {"rank": self.node_rank, "nodes": self.num_nodes, "workers": self.num_workers, "port": self.port}

    def _collect(self, wait: "_Wait") -> tuple[str, ...]:
        port = self.chief_address.rpartition(":")[2]
        found = {0: self.chief_address}
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(socket.create_server(("", int(port))))
            listener.settimeout(_POLL_SECS)
            others: list[socket.socket] = []
            while len(found) < self.num_nodes:
                missing = [str(rank) for rank in range(self.num_nodes) if rank not in found]
                if wait.is_over(f"node {', '.join(missing)}"):
                    return ()
                try:
                    connection, (address, *_) = listener.accept()
                except TimeoutError:
                    continue
                stack.enter_context(connection)
                try:
                    hello = _receive(connection, 2.0)
                except OSError:
                    hello = None
                if hello is None:
                    continue  # Not one of ours.
                problem = self._problem(hello, found)
                if problem:
                    for other in [*others, connection]:
                        _send(other, {"problem": problem})
                    raise OSError(problem)
                found[hello["rank"]] = f"{address}:{hello['port']}"
                others.append(connection)
            nodes = [found[rank] for rank in range(self.num_nodes)]
            for other in others:
                _send(other, {"nodes": nodes})
        return tuple(nodes)

    def _problem(self, hello: dict[str, Any], found: dict[int, str]) -> str:
        rank = hello.get("rank")
        if rank in found or rank not in range(self.num_nodes):
            return f"two launchers were started with --node-rank={rank}. Give each machine a number of its own"
        for name, option in (("nodes", "nnodes"), ("workers", "workers")):
            if hello.get(name) != self._hello()[name]:
                return (f"--{option} is {self._hello()[name]} on node 0 and {hello.get(name)} on node {rank}. Start "
                        "all launchers with the same")
        return ""

    def _ask(self, wait: "_Wait") -> tuple[str, ...]:
        host, _, port = self.chief_address.rpartition(":")
        while not wait.is_over(f"node 0 ({self.chief_address})"):
            try:
                connection = socket.create_connection((host, int(port)), timeout=2.0)
            except OSError:
                time.sleep(_POLL_SECS)
                continue
            with connection:
                _send(connection, self._hello())
                while not wait.is_over("the other nodes"):
                    answer = _receive(connection, _POLL_SECS)
                    if answer is None:
                        continue
                    if "problem" in answer:
                        raise OSError(answer["problem"])
                    return tuple(answer["nodes"])
        return ()


class _Wait:
    """A wait with a limit, that says what it is for."""

    def __init__(self, timeout_secs: float, say: Callable[[str], None], is_stopped: Callable[[], bool]) -> None:
        self._start = time.monotonic()
        self._timeout_secs, self._say, self._is_stopped = timeout_secs, say, is_stopped
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
        return self._is_stopped()


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps(message).encode() + b"\n")


def _receive(connection: socket.socket, timeout_secs: float) -> dict[str, Any] | None:
    """A message, None if none comes or it is no message.

    Raises:
      OSError: The connection was closed.
    """
    connection.settimeout(timeout_secs)
    try:
        line = connection.makefile("rb").readline(_LONGEST)
    except TimeoutError:
        return None
    if not line:
        raise OSError("the launcher of node 0 has ended")
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None
