"""Absentees: a deadline for replicas of one process that do not come to an exchange.

Queues have no time limit, so one thread per process reads the notes that waiting replicas leave (attendance.py). Notes
that stay as they are while a launch runs, some replicas behind the others, mean that somebody is missing: a log line
says who and where, and at the limit the waiting replicas are given a word in place of what they wait for. Their step
fails with it, TensorFlow cancels what it can of the missing one's, and the next launch is right.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref

from absl import logging

from .attendance import Notes
from .local import Queues

# A lock that nobody holds is had within this time.
_LOCK_SECONDS = 1.0

_process_ends = threading.Event()
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def watch(queues: Queues, warn_seconds: float, timeout_seconds: float) -> None:
    """Starts the thread that looks for absentees of one group, for as long as the group exists.

    Args:
        queues: Where the replicas meet.
        warn_seconds: After which wait a log line tells.
        timeout_seconds: After which wait the step fails.
    """
    absentees = Absentees(warn_seconds, timeout_seconds)
    group = weakref.ref(queues)

    def keep_looking() -> None:
        while not _process_ends.wait(absentees.interval):
            watched = group()
            if watched is None:
                return
            absentees.look(watched, time.monotonic())
            del watched

    thread = threading.Thread(target=keep_looking, name=f"{queues.name}_absentees", daemon=True)
    _threads.add(thread)
    thread.start()


@atexit.register
def _end() -> None:
    """No thread may be in TensorFlow when the interpreter ends."""
    _process_ends.set()
    for thread in list(_threads):
        thread.join(timeout=5.0)


class Absentees:
    """Who is missing in one group, and since when.

    Args:
        warn_seconds: After which wait a log line tells.
        timeout_seconds: After which wait the step fails.
    """

    def __init__(self, warn_seconds: float, timeout_seconds: float):
        self._warn_seconds, self._timeout_seconds = warn_seconds, timeout_seconds
        self._notes = Notes(0, (0,), ("",))
        self._since = 0.0
        self._is_told = self._is_ended = False

    @property
    def interval(self) -> float:
        """Seconds between two looks."""
        return min(self._warn_seconds, self._timeout_seconds, 20.0) / 4.0

    def look(self, queues: Queues, now: float) -> None:
        """Reads the notes; tells of a wait that is long, and ends one that is too long."""
        notes = queues.attendance.read()
        if notes != self._notes:
            self._notes, self._since = notes, now
            self._is_told = self._is_ended = False
        waited = now - self._since
        is_over = waited >= self._timeout_seconds
        is_new = not self._is_ended if is_over else not self._is_told and waited >= self._warn_seconds
        if not notes.absent or not is_new:
            return
        # After a step that failed the notes stay as well, but nobody waits.
        if not queues.are_in_use(_LOCK_SECONDS) or queues.attendance.read() != notes:
            return
        text = f"{_named(notes.absent)} not come to {notes.awaited} for {waited:.0f} s, while others wait there"
        logging.log(logging.ERROR if is_over else logging.WARNING, "strategy.run: %s.", text)
        self._is_told, self._is_ended = True, is_over
        if is_over:
            queues.end_wait_for(notes.absent, text)


def _named(ranks: list[int]) -> str:
    names = ", ".join(map(str, ranks))
    return f"replica {names} has" if len(ranks) == 1 else f"replicas {names} have"
