"""`MirroredStrategy`: one process, one replica on each of its devices."""

from __future__ import annotations

from typing import Sequence

from ..collective import CollectiveOptions
from .base import Strategy
from .devices import replica_devices


class MirroredStrategy(Strategy):
    """Synchronous training on the devices of one process; takes the place of `tf.distribute.MirroredStrategy`.

    Every replica runs the same step on its part of the global batch. Variables made under `scope` have one copy on each
    device; the copies are equal at all times.

    >>> strategy = lockstep.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     weight = tf.Variable(1.0)
    >>> @tf.function
    ... def step(x):
    ...     with tf.GradientTape() as tape:
    ...         loss = lockstep.average_loss((weight * x) ** 2)
    ...     gradient = tape.gradient(loss, weight)
    ...     weight.assign_sub(0.1 * tf.distribute.get_replica_context().all_reduce("SUM", gradient))
    ...     return loss
    >>> batches = tf.data.Dataset.from_tensor_slices([1.0, 2.0, 3.0]).batch(3)
    >>> for batch in strategy.experimental_distribute_dataset(batches):
    ...     loss = strategy.reduce("SUM", strategy.run(step, args=(batch,)))
    >>> round(float(loss), 4), round(float(weight), 4)
    (4.6667, 0.0667)

    Args:
        devices: Device names, one replica each, such as `["GPU:0", "GPU:1"]`. None takes all GPUs, else all logical
            CPUs.
        options: How the replicas exchange tensors; None takes the defaults.

    Raises:
        ValueError: `devices` is empty, or names a device twice or one that does not exist.
        TypeError: `devices` is no list of strings, or `options` is no `CollectiveOptions`.
    """

    def __init__(self, devices: Sequence[str] | None = None, options: CollectiveOptions | None = None):
        super().__init__(replica_devices(devices), options)
