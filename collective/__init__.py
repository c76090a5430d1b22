"""How tensors meet: members, buckets, all-reduce, all-gather, broadcast; errors."""

from .all_gather import agree, all_gather, broadcast
from .all_reduce import all_reduce
from .copies import Copies
from .errors import CollectiveError, CollectiveMismatchError, PeerError
from .local import Queues
from .member import Exchange, Member, SoloMember
from .options import CollectiveOptions
from .queue_member import QueueMember
from .reduce_op import ReduceOp
from .worker_group import WorkerGroup

__all__ = [
    "CollectiveError",
    "CollectiveMismatchError",
    "CollectiveOptions",
    "Copies",
    "Exchange",
    "Member",
    "PeerError",
    "QueueMember",
    "Queues",
    "ReduceOp",
    "SoloMember",
    "WorkerGroup",
    "agree",
    "all_gather",
    "all_reduce",
    "broadcast",
]
