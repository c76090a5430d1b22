"""The watch: a thread of every worker that sees to it that no wait is silent and no failure nameless.

Every worker tells the chief once a second that it is alive, which exchange it waits in, and what else it does; the
chief tells the others the same of itself. So a worker that dies (its connection breaks), falls silent, leaves or raises
is found by the chief, and a chief by the workers; workers that wait in different exchanges, or for one that does not
come, are found by the chief. Whoever finds a failure tells all, and each closes its collectives with the text: what
waits in one raises it.

    state of a worker     {"at": key of the exchange that it waits in, 0 if none; "done": exchanges completed;
                           "text": that exchange in words; "busy": ...; "line": where the main thread is}
    messages              {"state": ...} | {"failed": text} | {"left": true} | {"abort": text}
"""

from __future__ import annotations

import dataclasses
import selectors
import threading
import time
from typing import Any, Callable

from absl import logging

from ..collective import CollectiveOptions, WorkerGroup
from . import activity
from .cluster import Cluster
from .connection import Connection

# Seconds between two looks, and between two signs of life.
TICK = 0.25
BEAT = 1.0

# How long two workers must have waited in different exchanges, or one for a worker that has left, to be sure of it.
SETTLED = 1.5

# How much longer the text on a disagreement waits for those whose exchange is not known yet.
ALL_SETTLED_WITHIN = 3.0


@dataclasses.dataclass
class Peer:
    """What is known of a worker.

    Attributes:
        name: For texts.
        connection: To it, None for this worker itself and where only the chief has one.
        state: The last that it said.
        changed: When `at` or `done` last changed, of `time.monotonic`.
        heard: When it last said anything.
        has_left: Whether it has said that it leaves.
    """

    name: str
    connection: Connection | None
    state: dict[str, Any]
    changed: float
    heard: float
    has_left: bool = False

    def take(self, state: dict[str, Any], now: float) -> None:
        """Takes a new state."""
        if (state["at"], state["done"]) != (self.state["at"], self.state["done"]):
            self.changed = now
        self.state = state


class Watch:
    """This worker's watch.

    Args:
        cluster: The workers.
        group: Where they exchange tensors.
        connections: By rank: the chief's to all others, or the worker's to the chief.
        options: The time limits.
        close: Closes this process's collectives with a text.

    Attributes:
        failure: Why the collectives were closed, "" while all is well.
        failed: Set when there is a failure.
    """

    def __init__(self, cluster: Cluster, group: WorkerGroup, connections: dict[int, Connection],
                 options: CollectiveOptions, close: Callable[[str], None]):
        now = time.monotonic()
        self._cluster, self._group, self._options, self._close = cluster, group, options, close
        nothing = {"at": 0, "done": 0, "text": "", "busy": "", "line": ""}
        self._own = Peer(str(cluster.task), None, dict(nothing), now, now)
        self._peers = {rank: Peer(str(cluster.tasks[rank]), connection, dict(nothing), now, now)
                       for rank, connection in connections.items()}
        self.failure = ""
        self.failed = threading.Event()
        self._warned = False
        self._beaten = 0.0
        self._ending = threading.Event()
        self._selector = selectors.DefaultSelector()
        for peer in self._peers.values():
            self._selector.register(peer.connection, selectors.EVENT_READ, peer)  # type: ignore[arg-type]
        self._thread = threading.Thread(target=self._run, name="lockstep_watch", daemon=True)
        self._thread.start()

    # What the worker itself says.

    def tell_failed(self, text: str) -> None:
        """Tells all others that this worker has failed, and why, and ends the watch: what they say of it is no news."""
        self._ending.set()
        self._send_all(failed=f"{self._own.name} raised {text}")

    def tell_left(self) -> None:
        """Tells all others that this worker leaves, and ends the watch."""
        self._ending.set()
        self._thread.join(timeout=5.0)
        self._send_all(left=True)

    def _send_all(self, **message: Any) -> None:
        for peer in self._peers.values():
            if peer.connection is not None and not peer.has_left:
                peer.connection.send(**message)

    # The thread.

    def _run(self) -> None:
        while not self._ending.is_set() and not self.failure:
            for key, _ in self._selector.select(timeout=TICK):
                self._hear(key.data)
            self._look(time.monotonic())

    def _hear(self, peer: Peer) -> None:
        assert peer.connection is not None
        now = time.monotonic()
        try:
            messages = peer.connection.receive(timeout=0)
        except (EOFError, ValueError):
            self._selector.unregister(peer.connection)
            if not peer.has_left and not self._ending.is_set():
                self._fail(f"{peer.name} died: its connection broke without a word, {now - peer.heard:.1f} s after its "
                           "last sign of life. It was killed, or its process crashed; its own output says more.")
            return
        for message in messages:
            peer.heard = now
            if "state" in message:
                peer.take(message["state"], now)
            elif "left" in message:
                peer.has_left = True
            elif "failed" in message:
                self._fail(message["failed"])
            elif "abort" in message:
                self._fail(message["abort"])

    def _look(self, now: float) -> None:
        self._own.take(self._state(now), now)
        if now - self._beaten >= BEAT:
            self._beaten = now
            self._send_all(state=self._own.state)
        for peer in self._peers.values():
            if not peer.has_left and now - peer.heard > self._options.timeout_seconds:
                self._fail(f"{peer.name} has been silent for {now - peer.heard:.1f} s: it is frozen, its machine is "
                           "down, or the network is.")
        self._look_at_waits(now)

    def _state(self, now: float) -> dict[str, Any]:
        at, done = self._group.progress()
        return {"at": at, "done": done, "text": self._group.sites.text(at) if at else "", "busy": activity.current(),
                "line": activity.main_thread_is_at()}

    def _look_at_waits(self, now: float) -> None:
        everybody = [self._own, *self._peers.values()]
        waiting = [peer for peer in everybody if peer.state["at"] and now - peer.changed >= SETTLED]
        if not waiting:
            self._warned = False
            return
        where = waiting[0].state["text"]
        for peer in everybody:
            if peer.has_left:
                self._fail(f"{peer.name} has left (its program has ended) while {waiting[0].name} still needs it, in "
                           f"{where}. Every worker must run the same number of steps: decide together when to stop, "
                           "for example by reducing the decision first.")
                return
        if self._cluster.rank == 0:  # The chief alone hears of everybody.
            self._compare_waits(everybody, waiting, now)

    def _compare_waits(self, everybody: list[Peer], waiting: list[Peer], now: float) -> None:
        waited = max(now - peer.changed for peer in waiting)
        where = waiting[0].state["text"]
        is_settled = len(waiting) == len(everybody) or waited >= SETTLED + ALL_SETTLED_WITHIN
        if len({peer.state["at"] for peer in waiting}) > 1 and is_settled:
            listed = "; ".join(f"{peer.name}: {peer.state['text']}" for peer in sorted(waiting, key=lambda p: p.name))
            self._fail(f"the workers disagree on what to exchange. {listed}. All workers must call the same "
                       "collectives in the same order, with the same ops, dtypes and shapes: take the call out of "
                       "the branch that depends on the worker, or reduce the decision first.")
            return
        absent = [peer for peer in everybody if not peer.state["at"]]
        seen = ", ".join(f"{peer.name} ({_seen(peer.state)})" for peer in absent)
        if waited >= self._options.warn_seconds and absent and not self._warned:
            self._warned = True
            logging.warning("%s has waited for %.0f s for %s. It waits in %s.", waiting[0].name, waited, seen, where)
        if waited >= self._options.timeout_seconds and absent and not any(peer.state["busy"] for peer in absent):
            names = ", ".join(peer.name for peer in absent)
            self._fail(f"{names} did not come within {waited:.0f} s (timeout_seconds) to where"
                       f" {waiting[0].name} waits, {where}. Seen last: {seen}.")

    def _fail(self, text: str) -> None:
        if self.failure or self._ending.is_set():
            return
        self.failure = text
        self.failed.set()
        logging.error("Lockstep: %s", text)
        self._send_all(abort=text)
        self._close(text)


def _seen(state: dict[str, Any]) -> str:
    if state["busy"]:
        return f"busy: {state['busy']}"
    return f"at {state['line']}" if state["line"] else "not heard of since the start"
