"""A run, as the runner of its calls sees it: what has been called, and when a checkpoint is due."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from .batch_source import BatchSource
from .call_record import Call, CallRecord


class Run:
    """A run of which nothing is kept.

    Attributes:
        calls: What the program has called.
        is_written: Whether this process writes checkpoints of it.
    """

    is_written = False

    def __init__(self) -> None:
        self.calls = CallRecord()

    def resume(self, trace: Callable[[], Any], step: tf.Variable, source: BatchSource) -> None:
        """Goes on where the newest checkpoint stands, the first time that it is called.

        Args:
            trace: Traces the step, so that everything that it makes is there to be restored.
            step: The counter.
            source: The position in the data.
        """

    def steps_to_save(self, step: int) -> int | None:
        """How many steps are left until the next checkpoint is due, None if none is."""
        return None

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint is to be written after this step."""
        return False

    def save(self, step: tf.Variable, source: BatchSource) -> None:
        """Writes a checkpoint. Synchronisation: every worker calls."""

    def finish(self) -> None:
        """Returns when the last checkpoint is complete. Synchronisation: every worker calls."""

    def log(self, call: Call, step: int, rows: int, outputs: Mapping[str, float]) -> None:
        """Adds a line to the log."""
