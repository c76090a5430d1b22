"""What this process is busy with outside of its steps: the watch tells the other workers, for whom it is not late
then."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import Any, Iterator

from ..collective.user_lines import users_frame

_labels: list[str] = []


@contextlib.contextmanager
def busy(label: str) -> Iterator[None]:
    """Says that this process does something that may take long, and that the other workers may wait for it.

    Tracing and saving checkpoints say so themselves. For what only one worker does, such as the chief's evaluation of a
    model of its own:

    >>> with lockstep.busy("evaluating"):
    ...     total = sum(range(10))

    Args:
        label: What it is, for the log lines of those who wait.
    """
    _labels.append(label)
    try:
        yield
    finally:
        _labels.remove(label)


def current() -> str:
    """What the process is busy with, "" if it is expected in the next exchange."""
    try:
        return _labels[-1]
    except IndexError:
        return ""


def main_thread_is_at() -> str:
    """Where the main thread is: the innermost line that belongs neither to Lockstep nor to a library."""
    frame: Any = sys._current_frames().get(threading.main_thread().ident or 0)
    frame = users_frame(frame) or frame
    return f"{frame.f_code.co_filename}:{frame.f_lineno}, in {frame.f_code.co_name}" if frame else "nowhere"
