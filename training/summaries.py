"""Summaries: an action that writes what a step returns to event files, which TensorBoard shows.

    Trainer(..., actions=[Summaries("run/summaries")])

Shown by `tensorboard --logdir=run/summaries`, which `pip install 'lockstep-tf[tensorboard]'` brings; writing needs
TensorFlow alone.

An event file is a file of records, each a `tf.compat.v1.Event`. The first one names the version, the second says that
the program has started at this step: readers then forget what earlier files of the folder hold of it and of later ones
(TensorBoard's fast loader does so by itself, for each output that is written again). `tf.summary` cannot write such an
event, so the records are written here.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from ..strategy.cluster import Cluster


class Summaries:
    """Writes each output as a scalar, which TensorBoard shows over the step.

    Each call's scalars are in the file when it returns. A program that starts again writes another file. What the
    one before wrote of steps after the checkpoint stays in its file, and TensorBoard does not show it: it passes over
    what earlier files of the folder hold of the first step that is written anew, and of later ones.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     summaries = lockstep.training.Summaries(folder)
    ...     summaries(10, {"loss": 0.5})
    ...     tf.io.gfile.glob(f"{folder}/train/*")
    ['.../train/events.out.tfevents...']

    Args:
      folder: Where TensorBoard looks for runs.
      name: The run's name there, a folder in `folder`; nothing else writes to it meanwhile.
      is_chief: Whether this worker writes, `strategy.is_chief`. By default the chief of the cluster that TF_CONFIG
        describes does; a strategy of another cluster resolver needs it said.

    Raises:
      ValueError: TF_CONFIG makes no sense.
    """

    def __init__(self, folder: str | os.PathLike[str], name: str = "train", is_chief: bool | None = None) -> None:
        self._folder = os.path.join(os.fspath(folder), name)
        if is_chief is None:
            cluster = Cluster.from_environment(os.environ)
            is_chief = cluster is None or cluster.is_chief
        self._is_chief = is_chief
        self._writer: Any = None

    def __call__(self, step: int, outputs: Mapping[str, float]) -> None:
        if not self._is_chief:
            return
        if self._writer is None:
            self._writer = _started_file(self._folder, step)
        values = [tf.compat.v1.Summary.Value(tag=name, simple_value=value) for name, value in outputs.items()]
        _write(self._writer, step=step, summary=tf.compat.v1.Summary(value=values))
        self._writer.flush()


def _started_file(folder: str, step: int) -> tf.io.TFRecordWriter:
    """A new event file, which begins with the start of a program at a step."""
    tf.io.gfile.makedirs(folder)
    # TensorBoard reads the files of a folder in the order of their names.
    seconds, nanoseconds = divmod(time.time_ns(), 10**9)
    name = f"events.out.tfevents.{seconds}.{nanoseconds:09d}.{socket.gethostname()}.{os.getpid()}"
    writer = tf.io.TFRecordWriter(os.path.join(folder, name))
    _write(writer, file_version="brain.Event:2")
    _write(writer, step=step, session_log=tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START))
    return writer


def _write(writer: tf.io.TFRecordWriter, **fields: Any) -> None:
    writer.write(tf.compat.v1.Event(wall_time=time.time(), **fields).SerializeToString())
