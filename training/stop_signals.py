"""The signals that ask the launcher to stop, noted while it waits for its workers.

    with StopSignals() as signals:
        selector.register(signals, selectors.EVENT_READ)     # wakes up for them, and when a worker ends
        ...
        signals.received                                     # [Signals.SIGINT]
"""

import select
import signal
import socket
from types import FrameType, TracebackType
from typing import Any

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """Notes SIGINT, SIGTERM and SIGHUP instead of dying of them; one that was ignored stays ignored, as under nohup.

    Attributes:
      received: What has come so far.
    """

    def __init__(self) -> None:
        self.received: list[signal.Signals] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._wakeup_before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for signum in STOPPING:
            if signal.getsignal(signum) != signal.SIG_IGN:
                self._before[signum] = signal.signal(signum, self._note)
        # A handler, so that the end of a worker wakes the selector up too.
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, _do_nothing)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        self._reader.close()
        self._writer.close()

    def fileno(self) -> int:
        """What becomes readable when a signal has come or a worker has ended."""
        return self._reader.fileno()

    def drain(self) -> None:
        """Makes it unreadable again."""
        try:
            while self._reader.recv(4096):
                pass
        except BlockingIOError:
            pass

    def wait(self, seconds: float) -> bool:
        """Waits for so many seconds, or until a signal comes or a worker ends; returns whether a signal has come."""
        if not self.received and select.select([self], [], [], seconds)[0]:
            self.drain()
        return bool(self.received)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self.received.append(signal.Signals(signum))


def _do_nothing(signum: int, frame: FrameType | None) -> None:
    pass
