"""Stopping a run at the end of a step: what a signal or an action asks for, all workers do together.

    with StopRequest(strategy) as stop:
        while ...:
            loop(...)
            if stop.is_agreed():
                ...    # on all workers, after the same step
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

import tensorflow as tf

# "Temporary failure, try again" of sysexits.h: the run is complete up to its last step, and can be continued.
EXIT_STOPPED = 75

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Whether the run is to stop.

    While it is open, SIGTERM and Ctrl-C ask for a stop instead of ending the process; a second Ctrl-C interrupts at
    once.

    Args:
        strategy: Whose workers agree.
        catches_signals: Whether signals are caught; only on the main thread.

    Attributes:
        comes_of_a_signal: After `is_agreed`: whether a signal has asked, on any worker.
    """

    def __init__(self, strategy: tf.distribute.Strategy, catches_signals: bool):
        self._strategy = strategy
        self._catches = catches_signals and threading.current_thread() is threading.main_thread()
        self._before: dict[int, Any] = {}
        self._is_asked = False
        self._signal: int | None = None
        self.comes_of_a_signal = False

    def ask(self) -> None:
        """Asks for a stop after this step."""
        self._is_asked = True

    def is_agreed(self) -> bool:
        """Whether any worker has asked. Synchronisation: every worker calls, after the same step."""
        asked = 2 if self._signal is not None else int(self._is_asked)
        if getattr(self._strategy, "num_workers", 1) > 1:
            asked = int(self._strategy.reduce("MAX", tf.constant(asked)))
        self.comes_of_a_signal = asked == 2
        return asked > 0

    def __enter__(self) -> "StopRequest":
        if self._catches:
            self._before = {number: signal.signal(number, self._take) for number in _SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if kind is None and self._signal is not None and not self.comes_of_a_signal:
            signal.raise_signal(self._signal)  # It came after the last agreement: as if nobody had caught it.

    def _take(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT == self._signal:
            raise KeyboardInterrupt
        self._signal = number
