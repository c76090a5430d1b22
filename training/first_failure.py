"""Which worker of a failed job is the cause, and what it said.

When a worker fails, the others fail too: they notice that it is gone and raise `PeerError`, or the launcher stops them.
The cause is the first worker that ended in any other way.
"""

import re
import signal
from collections.abc import Sequence

from .worker_process import WorkerProcess

TRACEBACK = "Traceback (most recent call last):"
# Python prints these with a traceback of their own, after the one that counts.
AFTERTHOUGHT = "Exception ignored in"
LAST_LINES = 20

_CONSEQUENCE = re.compile(r"(\w+\.)*PeerError(:|$)")
# How TensorFlow logs, which may follow the traceback too.
_LOG_LINE = re.compile(
    r"[IWE]\d{4} |\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d+: [IWE] |WARNING: All log messages before absl"
)


def first_failure(failed: Sequence[WorkerProcess]) -> WorkerProcess:
    """Returns the worker that is the cause, out of those that failed, the earliest first."""
    causes = [worker for worker in failed if not _CONSEQUENCE.match(final_exception(worker.last_errors))]
    return (causes or failed)[0]


def exit_code(worker: WorkerProcess) -> int:
    """The exit code as a shell gives it: 128 and the number of the signal that killed it."""
    return worker.returncode if worker.returncode >= 0 else 128 - worker.returncode


def cause_text(cause: WorkerProcess) -> str:
    """What tells the cause: how the worker ended, then its last traceback or its last lines."""
    said = last_traceback(cause.last_errors)
    end = ":\n" + "\n".join(said) if said else ". It wrote nothing to standard error."
    return f"worker {cause.rank} failed first: {_how_it_ended(cause)}{end}"


def consequences_text(cause: WorkerProcess, ended: Sequence[WorkerProcess]) -> str:
    """What became of the other workers, "" where they had all ended well."""
    others = [f"worker {worker.rank}: {_how_it_ended(worker)}" for worker in ended if worker is not cause]
    return f"after worker {cause.rank} failed, {'; '.join(others)}." if others else ""


def last_traceback(lines: Sequence[str]) -> list[str]:
    """The last traceback among lines of standard error; the last lines where there is none."""
    lines = [line for line in lines if not _LOG_LINE.match(line)]
    starts = [
        number
        for number, line in enumerate(lines)
        if line == TRACEBACK and not (number and lines[number - 1].startswith(AFTERTHOUGHT))
    ]
    start = starts[-1] if starts else max(0, len(lines) - LAST_LINES)
    ends = [number for number, line in enumerate(lines) if number > start and line.startswith(AFTERTHOUGHT)]
    block = lines[start:ends[0] if starts and ends else None]
    while block and not block[-1].strip():
        block.pop()
    return block


def final_exception(lines: Sequence[str]) -> str:
    """The line of the last traceback that names the exception, "" where there is no traceback."""
    block = last_traceback(lines)
    if not block or block[0] != TRACEBACK:
        return ""
    return next((line for line in block[1:] if line and not line[0].isspace()), "")


def _how_it_ended(worker: WorkerProcess) -> str:
    code = worker.returncode
    how = f"exit code {code}" if code >= 0 else f"killed by {_signal_name(-code)}"
    if worker.is_stopped:
        return f"stopped by the launcher, {how}"
    if -code == signal.SIGKILL:
        return f"{how} (the kernel sends it when memory runs out)"
    exception = final_exception(worker.last_errors).partition(":")[0]
    return f"{how}, {exception}" if exception else how


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
