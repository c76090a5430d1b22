"""How the workers find each other before TensorFlow's servers start.

TensorFlow waits for a missing peer in silence. So the workers meet first, here: the chief listens on its own address,
which TensorFlow's server will take over, and every other worker connects to it and says who it is. What does not fit
together (versions, cluster, two processes with one task) is found at once, and who is missing is told by name. The
connections stay open: the watch uses them.
"""

from __future__ import annotations

import dataclasses
import platform
import socket
import threading
import time
from typing import Any

import tensorflow as tf
from absl import logging

from ..collective import CollectiveOptions
from ..collective.errors import PeerError
from .cluster import Cluster
from .connection import Connection

# When the log begins to tell who is missing, in seconds, and how often it repeats it.
FIRST_WORD = 3.0
REPEATED_EVERY = 30.0

_POLL = 0.1


@dataclasses.dataclass
class Meeting:
    """The workers, met.

    Attributes:
        connections: By rank: the chief's to every other worker, or the worker's one to the chief.
        num_replicas_by_worker: By rank.
    """

    connections: dict[int, Connection]
    num_replicas_by_worker: tuple[int, ...]

    def all_ready(self, cluster: Cluster, timeout: float) -> None:
        """Waits until every worker has called.

        Raises:
            PeerError: One has gone, or has not called within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        if cluster.rank:
            self.connections[0].send(ready=cluster.rank)
            _expect(self.connections[0], "started", f"{cluster.tasks[0]}", deadline)
            return
        for rank, connection in self.connections.items():
            _expect(connection, "ready", f"{cluster.tasks[rank]}", deadline)
        for connection in self.connections.values():
            connection.send(started=True)


def meet(cluster: Cluster, num_replicas: int, options: CollectiveOptions) -> Meeting:
    """Meets the other workers.

    Synchronisation: every worker calls.

    Args:
        cluster: The workers.
        num_replicas: How many replicas this one has.
        options: The time limit.

    Raises:
        PeerError: A worker is missing at the time limit, or does not fit.
        OSError: The chief cannot listen on its address.
    """
    hello = {"rank": cluster.rank, "cluster": [task.address for task in cluster.tasks], "replicas": num_replicas,
             "versions": {"python": platform.python_version(), "tensorflow": tf.__version__}}
    if cluster.rank == 0:
        return _Chief(cluster, hello, options).meet()
    return _meet_chief(cluster, hello, options)


class _Chief:
    """Collects the other workers."""

    def __init__(self, cluster: Cluster, hello: dict[str, Any], options: CollectiveOptions):
        self._cluster, self._options = cluster, options
        self._hellos = {0: hello}
        self._connections: dict[int, Connection] = {}

    def meet(self) -> Meeting:
        start = time.monotonic()
        reminder = _Reminder()
        with self._listener() as listener:
            while len(self._hellos) < self._cluster.num_workers:
                waited = time.monotonic() - start
                missing = [str(task) for rank, task in enumerate(self._cluster.tasks) if rank not in self._hellos]
                if waited > self._options.timeout_seconds:
                    self._give_up(f"{', '.join(missing)} did not start within {waited:.0f} s. Every worker must be "
                                  "started with the same cluster. Start it, or take it out of TF_CONFIG.")
                if reminder.is_due(waited):
                    text = f"waiting for {', '.join(missing)} to start, for {waited:.0f} s so far"
                    logging.warning("%s: %s.", self._cluster.task, text)
                    for connection in self._connections.values():
                        connection.send(waiting=text)
                self._accept(listener)
        replicas = [self._hellos[rank]["replicas"] for rank in range(self._cluster.num_workers)]
        for connection in self._connections.values():
            connection.send(go=replicas)
        return Meeting(self._connections, tuple(replicas))

    def _listener(self) -> socket.socket:
        host, _, port = self._cluster.task.address.rpartition(":")
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host if _is_loopback(host) else "", int(port)))
        except OSError as error:
            listener.close()
            raise OSError(error.errno, f"{self._cluster.task}: cannot listen on its address: {error.strerror}. Another "
                          "process uses the port, perhaps a worker of an earlier run. End it, or choose another "
                          "port.") from error
        listener.listen()
        listener.settimeout(_POLL)
        return listener

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection = Connection(listener.accept()[0])
        except TimeoutError:
            return
        try:
            message, = connection.receive(timeout=2.0)
            rank = int(message["rank"])
        except (EOFError, ValueError, KeyError, TypeError):
            connection.close()  # Not one of ours.
            return
        problem = self._problem(message)
        if problem:
            connection.send(abort=problem)
            self._give_up(problem)
        self._hellos[rank] = message
        self._connections[rank] = connection

    def _problem(self, hello: dict[str, Any]) -> str:
        own, rank = self._hellos[0], hello["rank"]
        if hello.get("cluster") != own["cluster"]:
            return (f"the workers were given different clusters: {self._cluster.task} has {own['cluster']}, task "
                    f"{rank} has {hello.get('cluster')}. Start all with the same cluster.")
        if rank in self._hellos or not 0 < rank < self._cluster.num_workers:
            return (f"two processes say that they are {self._cluster.tasks[rank]}. Give each process a task of its own "
                    "in TF_CONFIG.")
        if hello["versions"]["tensorflow"] != own["versions"]["tensorflow"]:
            return (f"{self._cluster.tasks[rank]} has TensorFlow {hello['versions']['tensorflow']}, "
                    f"{self._cluster.task} has {own['versions']['tensorflow']}. Install one version everywhere.")
        return ""

    def _give_up(self, text: str) -> None:
        for connection in self._connections.values():
            connection.send(abort=text)
            connection.close()
        raise PeerError(f"MultiWorkerMirroredStrategy: {text}")


def _meet_chief(cluster: Cluster, hello: dict[str, Any], options: CollectiveOptions) -> Meeting:
    start = time.monotonic()
    reminder = _Reminder()
    chief = cluster.tasks[0]
    host, _, port = chief.address.rpartition(":")
    connection = None
    pause = threading.Event()
    while connection is None:
        try:
            connection = Connection(socket.create_connection((host, int(port)), timeout=2.0))
        except OSError as error:
            waited = time.monotonic() - start
            if waited > options.timeout_seconds:
                raise PeerError(f"MultiWorkerMirroredStrategy: {chief} did not start within {waited:.0f} s ({error}). "
                                "Every worker must be started with the same cluster. Start it, or correct its address "
                                "in TF_CONFIG.") from error
            if reminder.is_due(waited):
                logging.warning("%s: waiting for %s to start, for %.0f s so far (%s).", cluster.task, chief, waited,
                                error)
            pause.wait(_POLL)
    connection.send(**hello)
    # The chief has the same limit, and speaks first; this is for a chief that falls silent.
    replicas = _expect(connection, "go", str(chief), start + options.timeout_seconds + 5, str(cluster.task))
    return Meeting({0: connection}, tuple(replicas))


def _expect(connection: Connection, key: str, peer: str, deadline: float, own: str = "") -> Any:
    """The value of the next message with `key`; others are told in the log.

    Raises:
        PeerError: The peer gives up, goes, says something else, or says nothing until the deadline.
    """
    where = "MultiWorkerMirroredStrategy:"
    while time.monotonic() < deadline:
        try:
            for message in connection.receive(timeout=_POLL):
                if "abort" in message:
                    raise PeerError(f"{where} {message['abort']}")
                if key in message:
                    return message[key]
                if "waiting" in message:
                    logging.warning("%s: %s.", own, message["waiting"])
        except EOFError as error:
            raise PeerError(f"{where} {peer} ended while the workers met. Its own output says why.") from error
        except ValueError as error:
            raise PeerError(f"{where} {peer} is running already and does not wait for workers (it answers with "
                            "something else). A worker cannot join a job that has started: restart all.") from error
    raise PeerError(f"{where} {peer} has said nothing for too long while the workers met. Look at its output.")


class _Reminder:
    """When to say again that somebody is missing."""

    def __init__(self) -> None:
        self._next = FIRST_WORD

    def is_due(self, waited: float) -> bool:
        if waited < self._next:
            return False
        self._next = waited + REPEATED_EVERY
        return True


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")
