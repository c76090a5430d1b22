"""What is copied and where: strategies, variables, per-replica values, input, and the engine that runs steps."""

from .activity import busy
from .average_loss import average_loss
from .base import Strategy
from .data_parallel import DataParallel
from .device_mesh import DeviceMesh
from .distribute_tensor import distribute_tensor, relayout
from .distributed_dataset import DistributedDataset
from .distributed_iterator import DistributedIterator
from .distribution_devices import list_devices
from .initialize import initialize
from .keras_corrections import set_keras_correction
from .mirrored_strategy import MirroredStrategy
from .mirrored_variable import MirroredVariable
from .multi_worker_mirrored_strategy import MultiWorkerMirroredStrategy
from .plan import Plan
from .replica_context import ReplicaContext
from .sync_on_read_variable import SyncOnReadVariable
from .tensor_layout import TensorLayout
from .values import Mirrored, PerReplica

__all__ = [
    "DataParallel",
    "DeviceMesh",
    "DistributedDataset",
    "DistributedIterator",
    "Mirrored",
    "MirroredStrategy",
    "MirroredVariable",
    "MultiWorkerMirroredStrategy",
    "PerReplica",
    "Plan",
    "ReplicaContext",
    "Strategy",
    "SyncOnReadVariable",
    "TensorLayout",
    "average_loss",
    "busy",
    "distribute_tensor",
    "initialize",
    "list_devices",
    "relayout",
    "set_keras_correction",
]
