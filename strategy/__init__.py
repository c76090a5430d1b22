"""What is copied and where: strategies, variables, per-replica values, input, and the engine that runs steps."""

from .average_loss import average_loss
from .base import Strategy
from .distributed_dataset import DistributedDataset
from .distributed_iterator import DistributedIterator
from .mirrored_strategy import MirroredStrategy
from .replica_context import ReplicaContext
from .values import Mirrored, PerReplica
from .variables import MirroredVariable, SyncOnReadVariable

__all__ = [
    "DistributedDataset",
    "DistributedIterator",
    "Mirrored",
    "MirroredStrategy",
    "MirroredVariable",
    "PerReplica",
    "ReplicaContext",
    "Strategy",
    "SyncOnReadVariable",
    "average_loss",
]
