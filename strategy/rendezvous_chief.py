"""The chief's part in the workers' meeting: it listens on its own address, and collects all others, see rendezvous.py.

A worker that goes away before all are there is missing again: its place is free for the process that is started in its
place. Who connects and says nothing that a worker would say is sent away.
"""

from __future__ import annotations

import selectors
import socket
import time
from typing import Any

from absl import logging

from ..collective import CollectiveOptions
from ..collective.errors import PeerError
from ..collective.options import is_integer
from .cluster import Cluster, Task
from .connection import Connection, listening_socket

# When the log begins to tell who is missing, in seconds, and how often it repeats it.
FIRST_WORD = 3.0
REPEATED_EVERY = 30.0

POLL = 0.1

# How long somebody who has connected may take to say who it is.
_INTRODUCTION = 10.0


class Chief:
    """Collects the other workers.

    Args:
        cluster: The workers.
        hello: What the chief would say of itself.
        options: The time limit.
    """

    def __init__(self, cluster: Cluster, hello: dict[str, Any], options: CollectiveOptions):
        self._cluster, self._options = cluster, options
        self._hellos = {0: hello}
        self._members: dict[int, Connection] = {}
        self._strangers: dict[Connection, float] = {}
        self._selector = selectors.DefaultSelector()

    def meet(self) -> tuple[dict[int, Connection], tuple[int, ...]]:
        """Waits for all; returns the connections and the numbers of replicas, by rank.

        Raises:
            PeerError: A worker is missing at the time limit, or does not fit; all that are there are told.
            OSError: The chief cannot listen on its address.
        """
        with listen_on(self._cluster.task) as listener, self._selector:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)
            try:
                self._collect(listener)
            finally:
                for stranger in list(self._strangers):
                    self._lose(stranger)
        replicas = tuple(self._hellos[rank]["replicas"] for rank in range(self._cluster.num_workers))
        for connection in self._members.values():
            connection.send(go=replicas)
        return self._members, replicas

    def _collect(self, listener: socket.socket) -> None:
        start = time.monotonic()
        reminder = Reminder()
        while len(self._hellos) < self._cluster.num_workers:
            waited = time.monotonic() - start
            if waited > self._options.timeout_seconds:
                self._give_up(f"{self._missing()} did not start within {waited:.0f} s. Every worker must be started "
                              "with the same cluster. Start it, or take it out of TF_CONFIG.")
            if reminder.is_due(waited):
                self._say(f"waiting for {self._missing()} to start, for {waited:.0f} s so far")
            for key, _ in self._selector.select(POLL):
                if isinstance(key.fileobj, Connection):
                    self._hear(key.fileobj)
                else:
                    self._accept(listener)
            for stranger in [one for one, until in self._strangers.items() if until < time.monotonic()]:
                self._lose(stranger)

    def _missing(self) -> str:
        return ", ".join(str(task) for rank, task in enumerate(self._cluster.tasks) if rank not in self._hellos)

    def _say(self, text: str) -> None:
        logging.warning("%s: %s.", self._cluster.task, text)
        for connection in self._members.values():
            connection.send(waiting=text)

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection = Connection(listener.accept()[0])
        except OSError:
            return  # It has gone already.
        connection.send(chief=str(self._cluster.task))
        self._strangers[connection] = time.monotonic() + _INTRODUCTION
        self._selector.register(connection, selectors.EVENT_READ)

    def _hear(self, connection: Connection) -> None:
        try:
            messages = connection.receive(timeout=0)
        except (EOFError, ValueError):
            self._lose(connection)
            return
        for message in messages:
            if connection in self._strangers:
                self._welcome(connection, message)

    def _lose(self, connection: Connection) -> None:
        if connection.fileno() < 0:
            return  # It is lost already.
        self._selector.unregister(connection)
        connection.close()
        self._strangers.pop(connection, None)
        for rank in [rank for rank, member in self._members.items() if member is connection]:
            del self._members[rank], self._hellos[rank]
            logging.warning("%s: %s went away while the workers met, and is missing again.", self._cluster.task,
                            self._cluster.tasks[rank])

    def _welcome(self, connection: Connection, hello: dict[str, Any]) -> None:
        if not _is_hello(hello):
            self._lose(connection)
            return
        rank = hello["rank"]
        if rank in self._members:
            self._hear(self._members[rank])  # It may have gone, and this be the one in its place.
        problem = self._problem(hello)
        if problem:
            connection.send(abort=problem)
            connection.flush()
            self._give_up(problem)
        del self._strangers[connection]
        self._hellos[rank], self._members[rank] = hello, connection

    def _problem(self, hello: dict[str, Any]) -> str:
        own, rank, chief = self._hellos[0], hello["rank"], self._cluster.task
        if hello["cluster"] != own["cluster"]:
            return (f"the workers were given different clusters: {chief} has {own['cluster']}, task {rank} has "
                    f"{hello['cluster']}. Start all with the same cluster.")
        if rank in self._hellos or not 0 <= rank < self._cluster.num_workers:
            return (f"two processes say that they are {self._cluster.tasks[rank]}. Give each process a task of its own "
                    "in TF_CONFIG.")
        for name, version in own["versions"].items():
            if hello["versions"].get(name) != version:
                return (f"{self._cluster.tasks[rank]} has {name} {hello['versions'].get(name)}, {chief} has {version}. "
                        "Install one version everywhere.")
        return ""

    def _give_up(self, text: str) -> None:
        for connection in self._members.values():
            connection.send(abort=text)
            connection.flush()
            connection.close()
        raise PeerError(f"MultiWorkerMirroredStrategy: {text}")


class Reminder:
    """When to say again that somebody is missing."""

    def __init__(self) -> None:
        self._next = FIRST_WORD

    def is_due(self, waited: float) -> bool:
        """Whether it is time to say so, after `waited` seconds."""
        if waited < self._next:
            return False
        self._next = waited + REPEATED_EVERY
        return True


def listen_on(task: Task) -> socket.socket:
    """A socket that listens on a task's port.

    Raises:
        OSError: The port cannot be used.
    """
    try:
        return listening_socket(task.host, task.port)
    except OSError as error:
        raise OSError(error.errno, f"{task}: cannot listen on its address: {error.strerror}. If another process uses "
                      "the port, perhaps a worker of an earlier run, end it, or choose another port.") from error


def _is_hello(message: dict[str, Any]) -> bool:
    """Whether a message is what a worker says of itself."""
    return is_integer(message.get("rank")) and isinstance(message.get("cluster"), list) \
        and isinstance(message.get("versions"), dict) and is_integer(message.get("replicas"))
