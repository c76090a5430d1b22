"""One worker of the launcher: its process, what it writes, and how it ends.

A worker leads a session of its own, so that all it starts ends with it: when it has ended, what is left of its process
group is killed. (Only a process that starts yet another session escapes; that is what such a call is for.)
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO

from .orphan_guard import OrphanGuard
from .worker_output import Console, LogFile, WorkerOutput

READ_BYTES = 64 << 10
# What was in a pipe when the worker ended is at most its capacity, usually one read.
MAX_LAST_READS = 16


class Stream:
    """The read end of one of a worker's pipes; never blocks.

    Attributes:
      at_end: Whether everything that will ever come has been read.
    """

    def __init__(self, pipe: IO[bytes], output: WorkerOutput) -> None:
        os.set_blocking(pipe.fileno(), False)
        self.at_end = False
        self._pipe = pipe
        self._output = output

    def fileno(self) -> int:
        """The number that a selector takes."""
        return self._pipe.fileno()

    def read(self) -> bool:
        """Hands on what has come; returns whether that was anything."""
        try:
            data = os.read(self.fileno(), READ_BYTES)
        except BlockingIOError:
            return False
        self.at_end = not data
        self._output.feed(data)
        return bool(data)

    def close(self) -> None:
        """Hands on what is left."""
        self._output.close()
        self._pipe.close()


class WorkerProcess:
    """A running worker.

    Attributes:
        rank: Its number in the job.
        is_stopped: Whether the launcher has sent it a signal, so that how it ends is no failure of its own.
        streams: Its open streams.
    """

    def __init__(
        self,
        rank: int,
        program: Sequence[str],
        environ: Mapping[str, str],
        guard: OrphanGuard,
        console: Console,
        log: LogFile | None,
    ) -> None:
        """Starts the process.

        Args:
          rank: Its number in the job.
          program: What this Python runs: a script and its arguments, or "-m", a module and its arguments.
          environ: Its environment.
          guard: Kills it if the launcher dies.
          console: Where its lines go.
          log: Where its output goes as well; closed with the worker.

        Raises:
          OSError: The system has no room for another process.
        """
        self.rank = rank
        self.is_stopped = False
        self._guard = guard
        self._log = log
        self._process = subprocess.Popen(
            guard.command([sys.executable, *program]),
            stdin=guard.pipe,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environ,
            start_new_session=True,
        )
        prefix = f"[worker {rank}] ".encode()
        assert self._process.stdout is not None and self._process.stderr is not None
        self._stderr = WorkerOutput(prefix, console.err, log)
        self.streams = [
            Stream(self._process.stdout, WorkerOutput(prefix, console.out, log)),
            Stream(self._process.stderr, self._stderr),
        ]

    @property
    def returncode(self) -> int:
        """How it ended: its exit code, or minus the signal that killed it."""
        assert self._process.returncode is not None, f"worker {self.rank} has not ended"
        return self._process.returncode

    @property
    def last_errors(self) -> list[str]:
        """The last lines of its standard error."""
        return list(self._stderr.tail)

    def has_ended(self) -> bool:
        """Whether the process has ended; the first time, what is left of its group is killed."""
        if self._process.returncode is None:
            # It stays a zombie until its group has been killed, and keeps the group's number from being used again.
            if os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return False
            self._end()
        return True

    def send(self, signum: signal.Signals) -> None:
        """Sends a signal to the worker; SIGKILL to all its group."""
        self.is_stopped = True
        if signum == signal.SIGKILL:
            os.killpg(self._process.pid, signum)
        else:
            os.kill(self._process.pid, signum)

    def kill(self) -> None:
        """Ends the worker and its group now."""
        if self._process.returncode is None:
            self.send(signal.SIGKILL)
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
            self._end()

    def close(self) -> None:
        """Hands on the last output of a process that has ended, and closes the streams."""
        for stream in self.streams:
            for _ in range(MAX_LAST_READS):
                if not stream.read():
                    break
            stream.close()
        self.streams = []
        if self._log is not None:
            self._log.close()

    def _end(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._guard.forget(self._process.pid)
