"""The start line: where the replicas of a process wait until all of them have what their step needs.

Replica 0 counts the others and lets them go:

    replica 0    take `size - 1` arrivals, put `size - 1` permits
    the others   put an arrival, take a permit
"""

from __future__ import annotations

import tensorflow as tf


class StartLine:
    """The queues of one group's start line, on the current device.

    Args:
        name: Unique in the process.
        size: Number of replicas.
    """

    def __init__(self, name: str, size: int):
        self._others = size - 1
        self._arrivals, self._permits = (
            tf.raw_ops.FIFOQueueV2(component_types=[tf.int32], shapes=[[]], capacity=size, shared_name=f"{name}/{kind}")
            for kind in ("arrivals", "permits"))
        for queue in (self._arrivals, self._permits):
            queue._lockstep_queue = True

    def wait(self, rank: int) -> tf.Operation:
        """An op that completes when all replicas have come to their own."""
        one = tf.constant(1)
        if rank > 0:
            arrived = tf.raw_ops.QueueEnqueueV2(handle=self._arrivals, components=[one])
            with tf.control_dependencies([arrived]):
                return tf.raw_ops.QueueDequeueV2(handle=self._permits, component_types=[tf.int32])[0].op
        all_arrived = self._take(self._arrivals, tf.constant(self._others))
        return tf.raw_ops.QueueEnqueueManyV2(handle=self._permits, components=[all_arrived])

    def drain(self) -> list[tf.Operation]:
        """Ops that remove what a launch that was cancelled has left."""
        return [self._take(queue, tf.raw_ops.QueueSizeV2(handle=queue)).op
                for queue in (self._arrivals, self._permits)]

    @staticmethod
    def _take(queue: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.QueueDequeueManyV2(handle=queue, n=count, component_types=[tf.int32])[0]
