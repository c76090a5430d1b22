"""What a worker writes, on its way to the launcher's output: whole lines with the worker's name before each.

A worker's standard output and standard error are one `WorkerOutput` each; `worker_process.py` feeds it what it reads.

    output = WorkerOutput(b"[worker 0] ", console.out, log=None)
    output.feed(b"loss 0.25\\nacc")       # writes "[worker 0] loss 0.25"
    output.close()                       # writes "[worker 0] acc"

A progress bar draws over its line with carriage returns. Here its newest state becomes a line of its own, one a second
at most, and the last one always; a log file gets every byte.
"""

import collections
import os
import re
import select
import time
from collections.abc import Callable
from typing import BinaryIO

TAIL_LINES = 500
MAX_LINE_BYTES = 64 << 10
BAR_SECS = 1.0

# A carriage return at the very end may yet turn out to be half of "\r\n".
_PIECE = re.compile(rb"([^\r\n]*)(\r\n|\n|\r(?!\Z))")


class Console:
    """The launcher's own output: the workers' lines, and a few of the launcher's."""

    def __init__(self) -> None:
        self._broken: set[int] = set()

    @property
    def is_broken(self) -> bool:
        """Whether nobody reads one of the streams any more; what is written to that one from then on is dropped."""
        return bool(self._broken)

    def out(self, data: bytes) -> None:
        """Writes to standard output."""
        self._write(1, data)

    def err(self, data: bytes) -> None:
        """Writes to standard error."""
        self._write(2, data)

    def say(self, text: str) -> None:
        """Writes a line of the launcher's own to standard error."""
        self.err(f"lockstep launch: {text}\n".encode(errors="surrogateescape"))

    def _write(self, descriptor: int, data: bytes) -> None:
        while data and descriptor not in self._broken:
            try:
                data = data[os.write(descriptor, data):]
            except BlockingIOError:
                select.select([], [descriptor], [])
            except OSError:
                self._broken.add(descriptor)


class LogFile:
    """A worker's log file, added to. A disk that is full ends the log and not the training."""

    def __init__(self, path: str, console: Console) -> None:
        """Opens the file.

        Args:
          path: Where it is.
          console: Is told when it cannot be written any more.

        Raises:
          OSError: It cannot be opened.
        """
        self._path = path
        self._console = console
        self._file: BinaryIO | None = open(path, "ab", buffering=0)

    def write(self, data: bytes) -> None:
        """Adds bytes."""
        try:
            if self._file is not None:
                self._file.write(data)
        except OSError as error:
            self._console.say(f"{self._path}: {error.strerror}. Nothing more is written to it.")
            self.close()

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


class WorkerOutput:
    """One stream of one worker.

    Attributes:
        tail: The last lines, as text.
    """

    def __init__(
        self,
        prefix: bytes,
        write: Callable[[bytes], None],
        log: LogFile | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepares the stream.

        Args:
          prefix: Stands before each line.
          write: Takes whole lines.
          log: Gets all bytes as they are; the worker's two streams may share it.
          clock: Tells the time in seconds.
        """
        self.tail: collections.deque[str] = collections.deque(maxlen=TAIL_LINES)
        self._prefix = prefix
        self._write = write
        self._log = log
        self._clock = clock
        self._unfinished = b""
        self._bar: bytes | None = None  # The state of a progress bar on the line that is being written.
        self._bar_is_shown = False
        self._bar_shown_at = -BAR_SECS

    def feed(self, data: bytes) -> None:
        """Takes the next bytes."""
        data = self._unfinished + data
        end = 0
        lines: list[bytes] = []
        for piece in _PIECE.finditer(data):
            self._piece(piece.group(1).replace(b"\b", b""), piece.group(2) == b"\r", lines)
            end = piece.end()
        if len(data) - end > MAX_LINE_BYTES:
            self._piece(data[end:], False, lines)
            end = len(data)
        self._unfinished = data[end:]
        self._pass_on(data[:end], lines)

    def close(self) -> None:
        """Takes the end of the stream: shows what no line end followed."""
        rest = self._unfinished
        text = rest.rstrip(b"\r").replace(b"\b", b"")
        lines: list[bytes] = []
        if text or self._bar is not None:
            self._piece(text, False, lines)
        self._unfinished = b""
        self._pass_on(rest and rest + b"\n", lines)

    def _piece(self, text: bytes, is_bar: bool, lines: list[bytes]) -> None:
        if is_bar:
            if text:
                self._bar, self._bar_is_shown = text, False
            now = self._clock()
            if self._bar is not None and not self._bar_is_shown and now - self._bar_shown_at >= BAR_SECS:
                lines.append(self._bar)
                self._bar_is_shown, self._bar_shown_at = True, now
            return
        if text or self._bar is None:
            lines.append(text)
        elif not self._bar_is_shown:
            lines.append(self._bar)
        self._bar = None

    def _pass_on(self, raw: bytes, lines: list[bytes]) -> None:
        if self._log is not None and raw:
            self._log.write(raw)
        if lines:
            self._write(b"".join(self._prefix + line + b"\n" for line in lines))
            self.tail.extend(line.decode(errors="replace") for line in lines)
