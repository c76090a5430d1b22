"""A member: one replica's seat in its sync group.

Every algorithm of this layer is written from the view of one member: it hands over this replica's tensors and takes the
result that all members share. Where the members are, is the business of the subclass:

    SoloMember       a group of one: nothing is exchanged
    QueueMember      replicas of one launch, meeting through queues in shared memory (local.py)
    the strategy's   replicas that run one after another in Python, meeting in a Python list

`exchange` is all that a subclass has to offer; `combine` turns one list of tensors per rank into the shared result.
Replicas of several workers also have ways of their own to `reduce` and to `broadcast`, where not all must have
everything.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Callable, Sequence

import tensorflow as tf

from .reduce_op import ReduceOp, combine

Parts = Sequence[Sequence[tf.Tensor]]
Combine = Callable[[Parts], Sequence[tf.Tensor]]
Verdict = Callable[[Parts], tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Exchange:
    """What one exchange is, for plans, error texts and agreement between replicas.

    Attributes:
        kind: "all-reduce", "all-gather", "broadcast" or "agree".
        op: The reduce op's name, the axis of an all-gather ("axis 0"), "" where there is neither.
        dtype: The dtype of the tensors.
        algorithm: The name of the algorithm.
        num_bytes: Bytes that each replica hands over, None where not known when the step is traced.
        tensors: Names of the tensors.
    """

    kind: str
    op: str
    dtype: str
    algorithm: str
    num_bytes: int | None
    tensors: tuple[str, ...]

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Exchange":
        """Inverse of `to_json`."""
        fields = json.loads(text)
        return cls(**{**fields, "tensors": tuple(fields["tensors"])})

    def __str__(self) -> str:
        shown = ", ".join(self.tensors[:3]) + (f" and {len(self.tensors) - 3} more" if len(self.tensors) > 3 else "")
        return f"{self.kind}{' ' + self.op if self.op else ''} of {self.dtype} ({shown})"


class Member:
    """One replica's seat in a sync group of `size` replicas.

    Attributes:
        size: Number of replicas in the group.
        devices: The devices of those that live in this process, by rank.
        can_use_device_collectives: Whether the members run at the same time, each on its device, as TensorFlow's
            collective ops need.
    """

    can_use_device_collectives = False

    def __init__(self, devices: Sequence[str]):
        self.devices = tuple(devices)
        self.size = len(self.devices)

    @property
    def rank(self) -> tf.Tensor | int:
        """This member's position in the group, an int or an int32 scalar."""
        raise NotImplementedError(f"{type(self).__name__}.rank")

    def exchange(self, tensors: Sequence[tf.Tensor], combine: Combine, what: Exchange,
                 result_dtypes: Sequence[tf.DType] | None = None, verdict: Verdict | None = None) -> list[tf.Tensor]:
        """Hands over `tensors`, and returns what `combine` makes of everybody's.

        Synchronisation: every member must call, in the same order, with the same number and dtypes of tensors.

        Args:
            tensors: This member's tensors; shapes may differ between members where `combine` allows it.
            combine: Turns the members' lists, by rank, into the results that all share.
            what: Says what this exchange is.
            result_dtypes: The dtypes of the results, those of `tensors` if None.
            verdict: Looks at the members' lists and returns a string scalar: "" if all is well, else why the step
                fails.
        """
        raise NotImplementedError(f"{type(self).__name__}.exchange")

    def reduce(self, op: ReduceOp, tensors: Sequence[tf.Tensor], what: Exchange,
               verdict: Verdict | None = None) -> list[tf.Tensor]:
        """Hands over `tensors`, and returns what `op` makes of each with everybody's.

        Synchronisation: every member must call, with equally shaped tensors.

        Args:
            op: How to reduce.
            tensors: This member's tensors, all of one dtype.
            what: Says what this exchange is.
            verdict: As for `exchange`.
        """
        return self.exchange(tensors, lambda parts: combine_columns(op, parts), what,
                             [op.result_dtype(tensor.dtype) for tensor in tensors], verdict)

    def broadcast(self, tensors: Sequence[tf.Tensor], root: int, what: Exchange) -> list[tf.Tensor]:
        """Returns the tensors of the member with rank `root`; shapes may differ.

        Synchronisation: every member must call, with the same dtypes.
        """
        return self.exchange(tensors, lambda parts: parts[root], what)

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Calls `make` for the group once, and gives every member the object that it returns.

        Args:
            key: Tells apart what one member makes and another does not, hashable.
            make: Makes the object.
        """
        return make()

    def instance_key(self, what: Exchange, shapes: str, num_keys: int) -> int:
        """The first of `num_keys` numbers, the same on every member, that no other collective of the process uses.

        Args:
            what: The exchange that will use them.
            shapes: Its static shapes, "" if they are not static.
            num_keys: How many numbers.
        """
        raise NotImplementedError(f"{type(self).__name__}.instance_key")

    def collective(self, instance_key: tf.Tensor, operand: tf.Tensor, run: Callable[[tf.Tensor], tf.Tensor]
                   ) -> tf.Tensor:
        """Runs one of TensorFlow's collective ops, `run(operand)`, and lets those know of it who watch over waits.

        Args:
            instance_key: The op's key.
            operand: What this member brings.
            run: Makes the op.
        """
        return run(operand)

    @property
    def group_key(self) -> int:
        """A number, the same on every member, that no other group of the process uses.

        TensorFlow has resolved the group, see `device_collectives.join_group`.
        """
        raise NotImplementedError(f"{type(self).__name__}.group_key")


def combine_columns(op: ReduceOp, parts: Parts) -> list[tf.Tensor]:
    """Reduces the first tensors of all lists, the second ones, and so on."""
    return [combine(op, column) for column in zip(*parts, strict=True)]


class SoloMember(Member):
    """The member of a group of one: the traced step holds no op that a step without a strategy would not hold."""

    @property
    def rank(self) -> int:
        return 0

    def exchange(self, tensors: Sequence[tf.Tensor], combine: Combine, what: Exchange,
                 result_dtypes: Sequence[tf.DType] | None = None, verdict: Verdict | None = None) -> list[tf.Tensor]:
        return list(combine([tensors]))
