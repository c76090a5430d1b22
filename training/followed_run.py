"""A run that another process trains, followed from outside: its checkpoints are read, as they become complete."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping

from .call_record import Call
from .checkpoints import Checkpoints
from .run import Run
from .run_log import RunLog
from .users_state import UsersState

_LOG = "evaluations.jsonl"


class FollowedRun(Run):
    """A run that this process evaluates; it writes a log of its own, and nothing else.

    Args:
        model_dir: The run's folder.
        checkpoints: The run's checkpoints.
        state: What is read of them.
    """

    def __init__(self, model_dir: str, checkpoints: Checkpoints, state: UsersState):
        super().__init__()
        self._checkpoints, self._state = checkpoints, state
        self._log = RunLog(os.path.join(model_dir, _LOG))

    def new_checkpoints(self, poll_seconds: float, timeout_seconds: float | None) -> Iterator[int]:
        """Reads the state from each new checkpoint, and gives its step; see `new_steps`."""
        for step in new_steps(self._checkpoints.newest, poll_seconds, timeout_seconds):
            if self._checkpoints.read_part(step, self._state.to_save()):
                yield step

    def log(self, call: Call, step: int, rows: int, outputs: Mapping[str, float]) -> None:
        self._log.write(call.kind, step, rows, outputs)


def new_steps(newest: Callable[[], int | None], poll_seconds: float, timeout_seconds: float | None,
              clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
              ) -> Iterator[int]:
    """The steps of new checkpoints; where several came in the meantime, the newest of them.

    Args:
        newest: The step of the newest complete checkpoint, None where there is none.
        poll_seconds: How long to wait before looking again: nothing tells that another process has written one.
        timeout_seconds: After how long without a new one to end; None never does.
        clock: Tells the time in seconds.
        sleep: Waits so many seconds.
    """
    last, since = -1, clock()
    while True:
        step = newest()
        if step is not None and step > last:
            yield step
            last, since = step, clock()
        elif timeout_seconds is not None and clock() - since >= timeout_seconds:
            return
        else:
            sleep(poll_seconds)
