"""What a worker tells the others when its process ends: what it raised, the exit code that it chose, or that it leaves.

Python calls a hook for exceptions, but none for `sys.exit(3)`: so `sys.exit` remembers what it was called with. An exit
that the program has caught, to go on with its exchanges, is forgotten.
"""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from types import TracebackType
from typing import Any, NoReturn

import tensorflow as tf

from ..collective import WorkerGroup
from ..collective.errors import PeerError
from ..collective.user_lines import is_users, user_line
from .watch import Watch

# What TensorFlow raises when a worker that it exchanges with has gone, and how long the watch may take to learn of it.
OF_A_LOST_PEER = (tf.errors.UnavailableError, tf.errors.CancelledError, tf.errors.AbortedError,
                  tf.errors.InternalError, tf.errors.UnknownError, tf.errors.DeadlineExceededError)
NEWS_WITHIN = 5.0

_LONGEST_MESSAGE = 2000


class LastWords:
    """Tells the others how this process ends; once in a process, for as long as it lasts.

    Args:
        watch: Tells them.
        group: Knows how many exchanges there have been.
    """

    def __init__(self, watch: Watch, group: WorkerGroup):
        self._watch, self._group = watch, group
        self._exit = ("", 0)  # What `sys.exit` was called with, and after how many exchanges.
        self._excepthook, self._sys_exit = sys.excepthook, sys.exit
        sys.excepthook = self._on_exception
        sys.exit = self._on_exit
        atexit.register(self._on_end)
        os.register_at_fork(after_in_child=self._on_fork)

    def _on_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
        """One that comes of another worker's failure is told as such."""
        if isinstance(error, OF_A_LOST_PEER) and self._watch.failed.wait(timeout=NEWS_WITHIN):
            self._excepthook(PeerError, PeerError(self._watch.failure), trace)
            return
        if not self._watch.failure:
            self._watch.tell_failed(f"raised {described(kind, error, trace)}")
        self._excepthook(kind, error, trace)

    def _on_exit(self, status: Any = None) -> NoReturn:
        if status not in (None, 0):
            self._exit = f"ended by sys.exit({status!r:.200}) ({_short(user_line())})", self._group.progress()[1]
        self._sys_exit(status)

    def _on_end(self) -> None:
        text, done = self._exit
        if text and done == self._group.progress()[1] and not self._watch.failure:
            self._watch.tell_failed(text)
        self._watch.tell_left()

    def _on_fork(self) -> None:
        """A process that is forked off, by multiprocessing for example, is no worker, and ends without a word."""
        self._watch.forget()
        sys.excepthook, sys.exit = self._excepthook, self._sys_exit
        atexit.unregister(self._on_end)


def described(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> str:
    """An exception in one line, with the line of the program that it comes from."""
    frames = traceback.extract_tb(trace)
    own = [frame for frame in frames if is_users(frame.filename)] or list(frames)
    line = f" ({_short(f'{own[-1].filename}:{own[-1].lineno}')})" if own else ""
    message = str(error)[:_LONGEST_MESSAGE]
    return f"{kind.__name__}{': ' if message else ''}{message}{line}"


def _short(line: str) -> str:
    return os.path.basename(line)
