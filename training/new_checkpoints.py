"""Following a run from outside: its checkpoints, one after another, as they become complete."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator


def new_checkpoints(newest: Callable[[], int | None], poll_seconds: float, timeout_seconds: float | None,
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
