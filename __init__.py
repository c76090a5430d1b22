"""Lockstep: data-parallel training on TensorFlow, every replica running the same step on its part of the batch."""

from . import training
from .collective import CollectiveError, CollectiveMismatchError, CollectiveOptions, PeerError, ReduceOp
from .strategy import (
    DataParallel,
    DeviceMesh,
    MirroredStrategy,
    MultiWorkerMirroredStrategy,
    PerReplica,
    Plan,
    Strategy,
    TensorLayout,
    average_loss,
    busy,
    distribute_tensor,
    initialize,
    list_devices,
    relayout,
    set_keras_correction,
)

__all__ = [
    "CollectiveError",
    "CollectiveMismatchError",
    "CollectiveOptions",
    "DataParallel",
    "DeviceMesh",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "PeerError",
    "PerReplica",
    "Plan",
    "ReduceOp",
    "Strategy",
    "TensorLayout",
    "average_loss",
    "busy",
    "distribute_tensor",
    "initialize",
    "list_devices",
    "relayout",
    "set_keras_correction",
    "training",
]
