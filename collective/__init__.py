"""How tensors meet: members, buckets, all-reduce, all-gather, broadcast; errors."""

from .all_gather import agree, all_gather, broadcast
from .all_reduce import all_reduce
from .copies import Copies
from .errors import CollectiveError, CollectiveMismatchError
from .local import QueueMember, Queues
from .member import Exchange, Member, SoloMember
from .options import CollectiveOptions
from .reduce_op import ReduceOp

__all__ = [
    "CollectiveError",
    "CollectiveMismatchError",
    "CollectiveOptions",
    "Copies",
    "Exchange",
    "Member",
    "QueueMember",
    "Queues",
    "ReduceOp",
    "SoloMember",
    "agree",
    "all_gather",
    "all_reduce",
    "broadcast",
]
