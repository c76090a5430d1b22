"""Ends the workers of a launcher that has been killed and can no longer do it itself.

The guard is a small program of its own that reads a pipe from the launcher, and this file is both: the program, run by
its path so that it imports nothing but the standard library, and the class that starts it. The kernel closes the pipe
when the launcher dies, however it dies; the guard then kills the process group of every worker that it knows.

A worker starts as a shell that first writes its own process id into that pipe and then becomes the Python program. The
pipe stays open in the shell until then, so there is no moment at which a worker runs and the guard neither knows it nor
will come to know it.

    guard = OrphanGuard()
    subprocess.Popen(guard.command(["python", "train.py"]), stdin=guard.pipe, start_new_session=True)
    guard.forget(pid)        # the worker and its group have ended
    guard.close()            # kills what it has not been told to forget
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import IO

_ANNOUNCE_AND_RUN = 'echo $$ >&0 && exec "$@" </dev/null'


class OrphanGuard:
    """The guard of one job, as the launcher sees it."""

    def __init__(self) -> None:
        """Starts the program."""
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )

    @property
    def pipe(self) -> IO[bytes]:
        """What a worker's first process gets as its standard input."""
        assert self._process.stdin is not None
        return self._process.stdin

    def command(self, command: Sequence[str]) -> list[str]:
        """The command that announces itself to the guard and then runs `command`, in the same process."""
        return ["/bin/sh", "-c", _ANNOUNCE_AND_RUN, "sh", *command]

    def forget(self, pid: int) -> None:
        """Says that a worker's process group has ended, so that its number may belong to somebody else."""
        try:
            self.pipe.write(b"-%d\n" % pid)
        except BrokenPipeError:
            pass  # The guard itself was killed; it will kill nobody.

    def close(self) -> None:
        """Ends the program."""
        self.pipe.close()
        self._process.wait()


def remaining_groups(lines: Iterable[bytes]) -> set[int]:
    """Reads to the end; returns the groups that were announced ("12\\n") and not forgotten ("-12\\n")."""
    groups: set[int] = set()
    for line in lines:
        number = int(line)
        if number > 0:
            groups.add(number)
        else:
            groups.discard(-number)
    return groups


def main() -> None:
    """The program: waits for the end of its standard input, then kills the groups that remain."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    for group in remaining_groups(sys.stdin.buffer):
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            pass


if __name__ == "__main__":
    main()
