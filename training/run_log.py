"""The log of a run: one line of JSON for each loop of steps, which a run that is continued cuts and goes on with.

    {"call": "train", "step": 20, "rows": 640, "outputs": {"loss": 0.31, "accuracy": 0.9}, "seconds": 1.9}

All but the times are the same for an interrupted and an uninterrupted run. `read_log` reads the lines back.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
from typing import Mapping

from ..collective.options import is_integer


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


@dataclasses.dataclass(frozen=True)
class LogLine:
    """A line that was read.

    Attributes:
        call: "train" or "evaluate".
        step: How many steps the run had trained.
        rows: How many rows the steps saw in all replicas.
        outputs: The averages, which need not be finite.
        seconds: Since this start of the program; less than in the line before where the run was continued.
    """

    call: str
    step: int
    rows: int
    outputs: Mapping[str, float]
    seconds: float


def read_log(path: str) -> list[LogLine]:
    """Reads the lines of a log.

    Raises:
        ValueError: A line is none of a log; the text gives its number.
        OSError: The file cannot be read.
    """
    with open(path, "rb") as file:
        return [_read_line(path, number, text) for number, text in enumerate(file, start=1)]


def _read_line(path: str, number: int, text: bytes) -> LogLine:
    try:
        found = json.loads(text)
        line = LogLine(*(found[field.name] for field in dataclasses.fields(LogLine)))
        is_right = (line.call in ("train", "evaluate") and is_integer(line.step) and is_integer(line.rows)
                    and line.rows >= 0 and math.isfinite(line.seconds)
                    and all(isinstance(value, (int, float)) for value in line.outputs.values()))
    except (ValueError, TypeError, KeyError, AttributeError):
        is_right = False
    if not is_right:
        shown = text.decode(errors="replace").rstrip()
        raise ValueError(f"{path}: line {number} is {shown[:60]!r}. Expected a line that a Trainer has written. Remove "
                         "it, or go on with the run, which cuts its log where it goes on.")
    return line
