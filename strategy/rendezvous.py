"""How the workers find each other before TensorFlow's servers start.

TensorFlow waits for a missing peer in silence. So the workers meet first, here: the chief listens on its own address,
which TensorFlow's server will take over, and every other worker connects to it and says who it is. What does not fit
together (versions, cluster, two processes with one task) is found at once, and who is missing is told by name. The
connections stay open: the watch uses them.

    chief     {"chief": name} to whoever connects | {"waiting": text} | {"go": replicas by worker}, when all are there
    worker    {"rank": ..., "cluster": ..., "versions": ..., "replicas": ...}, who it is
    both      {"ready": rank}, when its server runs | {"started": true}, when all do | {"abort": text}
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import socket
import threading
import time
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from ..collective import CollectiveOptions
from ..collective.errors import PeerError
from .cluster import Cluster
from .connection import Connection
from .rendezvous_chief import POLL, Chief, Reminder, listen_on

_WHERE = "MultiWorkerMirroredStrategy:"
_CONNECT = 2.0
_GREETING = 5.0


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
            PeerError: One has gone, or nothing is heard for `timeout` seconds.
        """
        try:
            if cluster.rank:
                self.connections[0].send(ready=cluster.rank)
                # The chief has the same limit, and speaks first; this is for a chief that falls silent.
                _expect(self.connections[0], "started", str(cluster.tasks[0]), timeout + 5, str(cluster.task))
                return
            deadline = time.monotonic() + timeout
            for rank, connection in self.connections.items():
                seconds = deadline - time.monotonic()
                _expect(connection, "ready", str(cluster.tasks[rank]), seconds, str(cluster.task))
        except PeerError as error:
            for connection in self.connections.values():
                connection.send(abort=str(error).removeprefix(f"{_WHERE} "))
                connection.flush()
                connection.close()
            raise
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
        OSError: Another process uses this worker's port.
    """
    hello = {"rank": cluster.rank, "cluster": [task.address for task in cluster.tasks], "replicas": num_replicas,
             "versions": versions()}
    if cluster.rank == 0:
        return Meeting(*Chief(cluster, hello, options).meet())
    listen_on(cluster.task).close()  # TensorFlow's server would fail later, and say less.
    return _meet_chief(cluster, hello, options)


def versions() -> dict[str, str]:
    """The versions that must be the same on all workers: of those who decide what a step exchanges."""
    try:
        own = importlib.metadata.version("lockstep-tf")
    except importlib.metadata.PackageNotFoundError:
        own = "that is not installed"
    return {"TensorFlow": tf.__version__, "Keras": keras.__version__, "Lockstep": own}


def _meet_chief(cluster: Cluster, hello: dict[str, Any], options: CollectiveOptions) -> Meeting:
    start = time.monotonic()
    reminder = Reminder()
    chief = cluster.tasks[0]
    pause = threading.Event()
    while True:
        try:
            connection = Connection(socket.create_connection((chief.host, chief.port), timeout=_CONNECT))
            connection.send(**hello)
            if _is_greeted(connection):
                break
            connection.close()
            problem = "something else answers there, perhaps a job that runs already: a worker cannot join it"
        except OSError as error:
            problem = str(error)
        waited = time.monotonic() - start
        if waited > options.timeout_seconds:
            raise PeerError(f"{_WHERE} {chief} did not start within {waited:.0f} s ({problem}). Every worker must be "
                            "started with the same cluster. Start it, or correct its address in TF_CONFIG.")
        if reminder.is_due(waited):
            logging.warning("%s: waiting for %s to start, for %.0f s so far (%s).", cluster.task, chief, waited,
                            problem)
        pause.wait(POLL)
    try:
        replicas = _expect(connection, "go", str(chief), options.timeout_seconds + 5, str(cluster.task))
    except PeerError:
        connection.close()
        raise
    return Meeting({0: connection}, tuple(replicas))


def _is_greeted(connection: Connection) -> bool:
    """Whether it is a chief that answers."""
    try:
        message = connection.receive_one(_GREETING)
    except (EOFError, ValueError):
        return False
    return message is not None and "chief" in message


def _expect(connection: Connection, key: str, peer: str, timeout: float, own: str) -> Any:
    """The value of the next message with `key`; others are told in the log.

    Raises:
        PeerError: The peer gives up, goes, or says nothing for `timeout` seconds.
    """
    try:
        while (message := connection.receive_one(timeout)) is not None:
            if "abort" in message:
                raise PeerError(f"{_WHERE} {message['abort']}")
            if key in message:
                return message[key]
            if "waiting" in message:
                logging.warning("%s: %s.", own, message["waiting"])
    except (EOFError, ValueError) as error:
        raise PeerError(f"{_WHERE} {peer} ended while the workers met. Its own output says why.") from error
    raise PeerError(f"{_WHERE} {peer} has said nothing for too long while the workers met. Look at its output.")
