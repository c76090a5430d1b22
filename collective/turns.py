"""Turns: replicas that do something one after another, in rank order, while they run at the same time.

A token goes round: each replica owns a queue, takes the token from its own and puts it in the next replica's. A launch
puts the token in replica 0's queue before it calls the bodies.
"""

from __future__ import annotations

from typing import Sequence

import tensorflow as tf

from .copies import Copies
from .local import HOST, Channel


class Turns(Channel):
    """The token's queues for one sync group.

    Args:
        name: Unique in the process.
        size: Number of replicas.
        group: The sync group's identity, see `Copies`.
    """

    def __init__(self, name: str, size: int, group: object):
        super().__init__(name, (), size, group)
        following = self.inward[1:] + self.inward[:1]
        with tf.init_scope(), tf.device(HOST):
            self.next_inward = Copies([tf.identity(queue) for queue in following], name, group, is_equal=False)

    def start(self) -> tf.Operation:
        """An op that gives the token to replica 0."""
        return self.put(self.inward[0], [], "")

    def begin(self) -> tf.Operation:
        """An op, of a body, that waits for this replica's turn."""
        return self.take(self.own_inward.handles[0])[1].op

    def end(self) -> tf.Operation:
        """An op, of a body, that passes the turn on."""
        return self.put(self.next_inward.handles[0], [], "")


def reachable(start: Sequence[tf.Operation], forward: bool) -> set[tf.Operation]:
    """The ops that depend on `start`, or those that it depends on, within one graph; `start` itself included."""
    seen = set(start)
    todo = list(start)
    while todo:
        op = todo.pop()
        if forward:
            near = [consumer for output in op.outputs for consumer in output.consumers()]
            near += op._control_outputs
        else:
            near = [tensor.op for tensor in op.inputs] + list(op.control_inputs)
        fresh = [other for other in near if other not in seen]
        seen.update(fresh)
        todo.extend(fresh)
    return seen
