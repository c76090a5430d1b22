"""Keras's callbacks on several workers: what is written once is written by the chief.

Every function gets the original and its arguments, see corrections.py.
"""

from __future__ import annotations

import sys
from typing import Any, Callable

from . import activity


def only_the_chiefs(original: Callable[..., Any], self: Any, callbacks: Any = None, add_history: bool = False,
                    add_progbar: bool = False, model: Any = None, **params: Any) -> None:
    """`CallbackList.__init__`: callbacks that only write (logs, a progress bar) are left out on the other workers."""
    if _is_chief(model):
        return original(self, callbacks, add_history, add_progbar, model, **params)
    keras = sys.modules["keras"]
    writers = (keras.callbacks.TensorBoard, keras.callbacks.CSVLogger, keras.callbacks.ProgbarLogger)
    flat = keras.tree.flatten(callbacks) if callbacks else []
    others = [callback for callback in flat if not isinstance(callback, writers)]
    return original(self, others, add_history, False, model, **params)


def checkpoint(original: Callable[..., Any], self: Any, epoch: int, batch: Any, logs: Any) -> Any:
    """`ModelCheckpoint._save_model`: all decide whether the model is the best so far, the chief writes it."""
    if not _has_workers(self.model):
        return original(self, epoch, batch, logs)
    if _is_chief(self.model):
        with activity.busy("saving a model"):
            original(self, epoch, batch, logs)
    else:
        self._should_save_model(epoch, batch, logs, self._get_file_path(epoch, batch, logs))
    return self.model.distribute_strategy.barrier("keras.callbacks.ModelCheckpoint")


def backup(original: Callable[..., Any], self: Any) -> Any:
    """`BackupAndRestore._save_model`: the chief writes."""
    if not _has_workers(self.model):
        return original(self)
    if _is_chief(self.model):
        with activity.busy("saving a backup"):
            original(self)
    return self.model.distribute_strategy.barrier("keras.callbacks.BackupAndRestore")


def delete_backup(original: Callable[..., Any], self: Any, logs: Any = None) -> Any:
    """`BackupAndRestore.on_train_end`: the chief deletes."""
    return original(self, logs) if _is_chief(self.model) else None


def _has_workers(model: Any) -> bool:
    return getattr(_extended(model), "workers", None) is not None


def _is_chief(model: Any) -> bool:
    """Whether this process writes: the chief of several workers, or a process that has no others."""
    return not _has_workers(model) or _extended(model).is_chief


def _extended(model: Any) -> Any:
    return getattr(getattr(model, "distribute_strategy", None), "extended", None)
