"""How fast a run goes, and the one line of text that tells it.

Both displays of `progress.py` show this line; it needs nothing but numbers and a time.

    pace = Pace(total_steps=300)
    pace.update(now=10.0, num_steps=1, num_rows=128)
    pace.update(now=10.5, num_steps=11, num_rows=1280)
    status_line(pace, {"loss": 0.25})    # "step 12/300, loss 0.2500, 2,560 examples/s, 0:13 left"
"""

import collections
import math
from collections.abc import Mapping

WINDOW_SECS = 15.0


class Pace:
    """Steps and rows so far, and the speed over the last `WINDOW_SECS` seconds.

    The first loop traces and compiles, so the speed is that of what comes after it.

    Attributes:
      total_steps: The steps of the whole run, None where unknown.
      num_steps: The steps so far.
    """

    def __init__(self, total_steps: int | None) -> None:
        self.total_steps = total_steps
        self.num_steps = 0
        self._num_rows = 0
        # (time, steps, rows) after each loop in the window, and after the last one before it.
        self._marks: collections.deque[tuple[float, int, int]] = collections.deque()

    def update(self, now: float, num_steps: int, num_rows: int) -> None:
        """Notes that a loop ended.

        Args:
          now: The time, in seconds, from any start.
          num_steps: The steps of the loop.
          num_rows: The rows that these steps saw in all replicas.
        """
        self.num_steps += num_steps
        self._num_rows += num_rows
        self._marks.append((now, self.num_steps, self._num_rows))
        while len(self._marks) > 2 and self._marks[1][0] <= now - WINDOW_SECS:
            self._marks.popleft()

    @property
    def examples_per_sec(self) -> float | None:
        """Rows per second, None until two loops have ended."""
        return self._per_sec(2)

    @property
    def secs_left(self) -> float | None:
        """Seconds until the last step at this speed, None where not known or at the end."""
        steps_per_sec = self._per_sec(1)
        if self.total_steps is None or self.num_steps >= self.total_steps or not steps_per_sec:
            return None
        return (self.total_steps - self.num_steps) / steps_per_sec

    def _per_sec(self, column: int) -> float | None:
        if len(self._marks) < 2:
            return None
        first, last = self._marks[0], self._marks[-1]
        secs = last[0] - first[0]
        return (last[column] - first[column]) / secs if secs > 0 else None


def status_line(pace: Pace, values: Mapping[str, float]) -> str:
    """The state of a run in one line: step, values, examples per second, time left.

    What is not known yet is left out.
    """
    step = f"{pace.num_steps}" if pace.total_steps is None else f"{pace.num_steps}/{pace.total_steps}"
    parts = [f"step {step}"] + [f"{key} {_short(value)}" for key, value in values.items()]
    if pace.examples_per_sec is not None:
        parts.append(f"{pace.examples_per_sec:,.0f} examples/s")
    if pace.secs_left is not None:
        secs = math.ceil(pace.secs_left)
        hours = f"{secs // 3600}:{secs // 60 % 60:02d}" if secs >= 3600 else f"{secs // 60}"
        parts.append(f"{hours}:{secs % 60:02d} left")
    return ", ".join(parts)


def _short(value: float) -> str:
    """Four decimals, or three digits where these would hide the number."""
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e4 else f"{value:.2e}"
