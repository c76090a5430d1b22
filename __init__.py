"""Lockstep: data-parallel training on TensorFlow, every replica running the same step on its part of the batch."""

from . import training
from .collective import CollectiveError, CollectiveMismatchError, CollectiveOptions, PeerError, ReduceOp
from .strategy import (
    MirroredStrategy,
    MultiWorkerMirroredStrategy,
    PerReplica,
    Plan,
    Strategy,
    average_loss,
    busy,
    set_keras_correction,
)

__all__ = [
    "CollectiveError",
    "CollectiveMismatchError",
    "CollectiveOptions",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "PeerError",
    "PerReplica",
    "Plan",
    "ReduceOp",
    "Strategy",
    "average_loss",
    "busy",
    "set_keras_correction",
    "training",
]
