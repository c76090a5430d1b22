"""The log of a run: one line of JSON for each loop of steps, which a run that is continued cuts and goes on with.

    {"call": "train", "step": 20, "rows": 640, "outputs": {"loss": 0.31, "accuracy": 0.9}, "seconds": 1.9}

All but the times are the same for an interrupted and an uninterrupted run.
"""

from __future__ import annotations

import json
import os
import time
from typing import Mapping


class RunLog:
    """A file of lines.

    Args:
        path: The file; None writes nothing, as on workers that are not the chief.
    """

    def __init__(self, path: str | None):
        self._path = path
        self._start = time.monotonic()

    def write(self, call: str, step: int, rows: int, outputs: Mapping[str, float]) -> None:
        """Adds a line.

        Args:
            call: "train" or "evaluate".
            step: How many steps the run has trained.
            rows: How many rows the steps saw in all replicas, those of the loop or of the whole evaluation.
            outputs: What the steps returned, averaged over these.
        """
        if self._path is not None:
            line = {"call": call, "step": step, "rows": rows, "outputs": dict(outputs),
                    "seconds": round(time.monotonic() - self._start, 3)}
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return os.path.getsize(self._path) if self._path is not None and os.path.exists(self._path) else 0

    def cut(self, size: int) -> None:
        """Removes what was written after the file had this size."""
        if self._path is not None and size < self.size:
            os.truncate(self._path, size)
