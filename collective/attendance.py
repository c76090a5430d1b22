"""Attendance: how many exchanges each replica of a process has come to in this launch, and to which one last.

Replicas that wait cannot look around, so each leaves a note before it waits. A thread outside reads the notes
(absentees.py) and sees who is missing, and where.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Notes:
    """The notes of all replicas at one moment.

    Attributes:
        launch: The number of the launch.
        counts: By replica: how many exchanges of the launch it has come to.
        last: By replica: the text of the last one, "" if there was none.
    """

    launch: int
    counts: tuple[int, ...]
    last: tuple[str, ...]

    @property
    def absent(self) -> list[int]:
        """The replicas that others wait for."""
        return [rank for rank, count in enumerate(self.counts) if count < max(self.counts)]

    @property
    def awaited(self) -> str:
        """The text of the exchange that the others wait in."""
        return self.last[self.counts.index(max(self.counts))]


class Attendance:
    """The notes of one group's replicas, on the current device.

    Args:
        size: Number of replicas.
    """

    def __init__(self, size: int):
        self._size = size
        self._counts = tf.Variable([0] * size, trainable=False, dtype=tf.int32, name="attendance")
        self._last = tf.Variable([""] * size, trainable=False, name="attended")
        self._launch = tf.Variable(0, trainable=False, dtype=tf.int64, name="launch")
        for variable in (self._counts, self._last, self._launch):
            variable.handle._lockstep_queue = True  # Shared by all replicas, and meant to be.

    def note(self, rank: tf.Tensor, what: str) -> list[tf.Operation]:
        """Ops that note that replica `rank` comes to its next exchange, `what`."""
        told = tf.raw_ops.ResourceScatterUpdate(resource=self._last.handle, indices=rank, updates=what)
        counted = tf.raw_ops.ResourceScatterAdd(resource=self._counts.handle, indices=rank, updates=tf.constant(1))
        return [told, counted]

    def clear(self) -> list[tf.Operation]:
        """Ops that begin the notes of another launch."""
        return [tf.raw_ops.AssignVariableOp(resource=self._counts.handle, value=tf.zeros([self._size], tf.int32)),
                tf.raw_ops.AssignAddVariableOp(resource=self._launch.handle, value=tf.constant(1, tf.int64))]

    def read(self) -> Notes:
        """The notes now."""
        counts = self._counts.read_value().numpy().tolist()
        last = [text.decode() for text in self._last.read_value().numpy()]
        return Notes(int(self._launch.read_value()), tuple(counts), tuple(last))
