"""Checkpoints of several workers: all save, the chief writes.

`tf.train.Checkpoint.save` collects the values, in which every worker takes part (exact counters are sums over all), and
then writes files. Where the workers name the same path, only the chief writes it, and the others go on when it is
written: one checkpoint results, no temporary folders. A worker that names a path of its own writes it.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from . import activity, over_workers, worker_runtime
from ._tf import CheckpointWriter, checkpoint_management

# Paths that the chief has written in this process's place.
_left_to_chief: set[str] = set()


def install() -> None:
    """Puts the writing in the place of TensorFlow's; in a process that is no worker of several it does the same."""
    if not hasattr(CheckpointWriter.save, "_lockstep_original"):
        CheckpointWriter.save = _writing_once(CheckpointWriter.save)
        checkpoint_management._delete_file_if_exists = _deleting_own(checkpoint_management._delete_file_if_exists)


def _writing_once(original: Any) -> Any:
    @functools.wraps(original)
    def save(self: Any, file_prefix: Any, options: Any = None) -> Any:
        runtime = worker_runtime.current()
        if runtime is None or not tf.executing_eagerly():
            return original(self, file_prefix, options)
        path = tf.convert_to_tensor(file_prefix)
        name = "`Checkpoint.save`: the path (every worker must save)"
        with activity.busy("saving a checkpoint"):
            paths = [text.numpy() for text, in over_workers.all_parts(
                runtime.group, [[path]], name, one_per_worker=True)]
            written = None
            if runtime.cluster.rank and paths[runtime.cluster.rank] == paths[0]:
                _left_to_chief.add(paths[0].decode())
            else:
                written = original(self, file_prefix, options)
        over_workers.all_parts(runtime.group, [[tf.constant("")]], "`Checkpoint.save`: written", one_per_worker=True)
        return written

    save._lockstep_original = original  # type: ignore[attr-defined]
    return save


def _deleting_own(original: Any) -> Any:
    """A `CheckpointManager` deletes old checkpoints; those that the chief has written are the chief's to delete."""
    def delete(filespec: str) -> None:
        if filespec.rpartition(".")[0] not in _left_to_chief:
            original(filespec)

    return delete
