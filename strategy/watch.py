"""The watch: a thread of every worker that sees to it that no wait is silent and no failure nameless.

Every worker tells the chief once a second that it is alive, which exchange it waits in, and what else it does; the
chief tells the others the same of itself. So a worker that dies (its connection breaks), falls silent, leaves or raises
is found by the chief, and a chief by the workers; workers that wait in different exchanges, or for one that does not
come, are found by the chief (waits.py). Whoever finds a failure tells all, and each closes its collectives with the
text: what waits in one raises it.

    messages    {"state": see waits.Peer} | {"failed": text} | {"left": true} | {"abort": text}
"""

from __future__ import annotations

import errno
import selectors
import threading
import time
from typing import Any, Callable

from absl import logging

from ..collective import CollectiveOptions, WorkerGroup
from . import activity
from .cluster import Cluster
from .connection import Connection
from .waits import Peer, judged

# Seconds between two looks, and between two signs of life.
TICK = 0.25
BEAT = 1.0

# What the kernel says when not a process but a machine or the network has gone.
_UNREACHABLE = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)


class Watch:
    """This worker's watch.

    Args:
        cluster: The workers.
        group: Where they exchange tensors.
        connections: By rank: the chief's to all others, or the worker's to the chief.
        options: The time limits.
        close: Closes this process's collectives with a text.
        clock: The time in seconds.

    Attributes:
        failure: Why the collectives were closed, "" while all is well.
        failed: Set when there is a failure.
    """

    def __init__(self, cluster: Cluster, group: WorkerGroup, connections: dict[int, Connection],
                 options: CollectiveOptions, close: Callable[[str], None], clock: Callable[[], float] = time.monotonic):
        now = clock()
        self._is_chief = cluster.rank == 0
        self._group, self._options, self._close, self._clock = group, options, close, clock
        self._own = Peer(str(cluster.task), None, now, now)
        self._peers = [Peer(str(cluster.tasks[rank]), connection, now, now)
                       for rank, connection in sorted(connections.items())]
        self.failure = ""
        self.failed = threading.Event()
        self._has_warned = False
        self._beaten = now - BEAT
        self._is_over = False
        self._selector = selectors.DefaultSelector()
        for peer in self._peers:
            self._selector.register(peer.connection, selectors.EVENT_READ, peer)  # type: ignore[arg-type]
        self._thread = threading.Thread(target=self._run, name="lockstep_watch", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def _run(self) -> None:
        try:
            for peer in self._peers:
                self._hear(peer)  # What came with the last words of the meeting.
            while not self._is_over and not self.failure:
                self.look(TICK)
        except Exception:
            # Without the watch a wait could be endless and silent.
            logging.exception("Lockstep: the watch over the other workers has failed.")
            self._fail(f"the watch of {self._own.name} has failed; its own output says why.")

    # What the worker itself says.

    def tell_failed(self, text: str) -> None:
        """Tells all others that this worker has failed, and why, and ends the watch: what they say of it is no news."""
        self._end(failed=f"{self._own.name} {text}")

    def tell_left(self) -> None:
        """Tells all others that this worker leaves, and ends the watch."""
        self._end(left=True)

    def forget(self) -> None:
        """Ends the watch of a process that has been forked off: it is no worker, and the connections are not its."""
        self._is_over = True
        for peer in self._peers:
            assert peer.connection is not None
            peer.connection.close()

    def _end(self, **last_words: Any) -> None:
        if not self._is_over:
            self._is_over = True
            if self._thread.is_alive() and threading.current_thread() is not self._thread:
                self._thread.join(timeout=5.0)
            self._send_all(**last_words)
            for peer in self._peers:
                assert peer.connection is not None
                peer.connection.flush()

    def _send_all(self, **message: Any) -> None:
        for peer in self._peers:
            if not peer.has_left:
                assert peer.connection is not None
                peer.connection.send(**message)

    # What the others say, and how they are.

    def look(self, wait: float = 0.0) -> None:
        """Hears what the others say, waiting `wait` seconds for it at most, and looks at how all are."""
        for key, _ in self._selector.select(timeout=wait):
            self._hear(key.data)
        now = self._clock()
        self._own.take(self._state(), now)
        if now - self._beaten >= BEAT:
            self._beaten = now
            self._send_all(state=self._own.state)
        for peer in self._peers:
            if not peer.has_left and now - peer.heard > self._options.timeout_seconds:
                self._fail(f"{peer.name} has been silent for {now - peer.heard:.1f} s: it is frozen, its machine is "
                           "down, or the network is.")
        self._look_at_waits(now)

    def _hear(self, peer: Peer) -> None:
        assert peer.connection is not None
        now = self._clock()
        try:
            messages = peer.connection.receive(timeout=0)
        except (EOFError, ValueError) as error:
            self._selector.unregister(peer.connection)
            if not peer.has_left:
                self._fail(_broken(peer, now, error))
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

    def _state(self) -> dict[str, Any]:
        at, done = self._group.progress()
        return {"at": at, "done": done, "text": self._group.sites.text(at) if at else "", "busy": activity.current(),
                "line": activity.main_thread_is_at()}

    def _look_at_waits(self, now: float) -> None:
        verdict = judged([self._own, *self._peers], self._is_chief, self._options, now)
        if verdict.failure:
            self._fail(verdict.failure)
        elif verdict.warning and not self._has_warned:
            logging.warning("%s", verdict.warning)
        self._has_warned = not verdict.is_quiet and (self._has_warned or bool(verdict.warning))

    def _fail(self, text: str) -> None:
        if self.failure or self._is_over:
            return
        # Before the program can know: what it raises then is the last that it says.
        logging.error("Lockstep: %s", text)
        self.failure = text
        self.failed.set()
        self._send_all(abort=text)
        self._close(text)


def _broken(peer: Peer, now: float, error: Exception) -> str:
    """Why a connection has ended without a word, as far as it can be told."""
    silence = f"{now - peer.heard:.1f} s after its last sign of life"
    if getattr(error.__cause__, "errno", None) in _UNREACHABLE:
        return f"{peer.name} cannot be reached any more, {silence} ({error}): its machine is down, or the network is."
    return (f"{peer.name} died: its connection broke without a word, {silence}. It was killed, or its process crashed; "
            "its own output says more.")
