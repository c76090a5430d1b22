"""Checkpoints of several workers: all save, the chief writes.

`tf.train.Checkpoint.save` collects the values, in which every worker takes part (exact counters are sums over all), and
then writes files. Where the workers name the same path, only the chief writes it, and the others go on when it is
written: one checkpoint results, no temporary folders. A worker that names a path of its own writes it. Where one
cannot write, all are told.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import tensorflow as tf

from ..collective import CollectiveError
from . import activity, over_workers, worker_runtime
from ._tf import CheckpointWriter, checkpoint_management

# Paths, without the numbers of the saves, that the chief writes in this process's place.
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
        rank, problem, written = runtime.cluster.rank, None, None
        with activity.busy("saving a checkpoint"):
            paths = _of_all(runtime, file_prefix, "the path (every worker must save)")
            if rank and paths[rank] == paths[0]:
                _left_to_chief.add(_unnumbered(paths[0]))
            else:
                try:
                    written = original(self, file_prefix, options)
                except Exception as error:
                    problem = error
        problems = _of_all(runtime, f"{type(problem).__name__}: {problem}" if problem else "", "written")
        if problem is not None:
            raise problem
        if any(problems):
            listed = "; ".join(f"{name}: {text}" for name, text in zip(runtime.group.names, problems) if text)
            raise CollectiveError(f"`Checkpoint.save`: the checkpoint could not be written. {listed}")
        return written

    save._lockstep_original = original  # type: ignore[attr-defined]
    return save


def _of_all(runtime: worker_runtime.WorkerRuntime, own: Any, name: str) -> list[str]:
    """What every worker says, a string each."""
    parts = over_workers.all_parts(runtime.group, [[tf.convert_to_tensor(own)]], f"`Checkpoint.save`: {name}",
                                   one_per_worker=True)
    return [text.numpy().decode(errors="replace") for text, in parts]


def _deleting_own(original: Any) -> Any:
    """A `CheckpointManager` deletes old checkpoints, also those of a process before it: those that the chief writes are
    the chief's to delete."""
    def delete(filespec: str) -> None:
        if _unnumbered(filespec.rpartition(".")[0]) not in _left_to_chief:
            original(filespec)

    return delete


def _unnumbered(path: str) -> str:
    return re.sub(r"-\d+$", "", path)
