"""`MultiWorkerMirroredStrategy`: several processes, on one or several machines, each with replicas on its devices."""

from __future__ import annotations

import os

import tensorflow as tf
from absl import logging

from ..collective import CollectiveOptions
from . import worker_checkpoints, worker_runtime
from .base import Strategy
from .cluster import Cluster
from .devices import replica_devices


class MultiWorkerMirroredStrategy(Strategy):
    """Synchronous training on several workers; takes the place of `tf.distribute.MultiWorkerMirroredStrategy`.

    Every worker is a process that runs the same program, and has one replica on each of its GPUs, or on each logical
    CPU where there are none. Variables made under `scope` start with the chief's values and stay equal everywhere.
    Without a cluster there is one worker, and everything is as with `MirroredStrategy`.

    Make it at the start of the program: TensorFlow starts its servers only before the first op.

    Synchronisation: every worker must call, and must make the same variables and run the same steps after it.

    >>> strategy = lockstep.MultiWorkerMirroredStrategy()      # no TF_CONFIG here: one worker
    >>> strategy.is_chief, strategy.num_workers
    (True, 1)

    Args:
        cluster_resolver: Tells the cluster and this process's task; None reads the environment variable TF_CONFIG.
        options: How tensors are exchanged and how long workers wait; None takes the defaults.

    Raises:
        ValueError: The cluster or the task is not valid; the text names the key.
        RuntimeError: TensorFlow has run ops in this process before.
        PeerError: A worker is missing at the time limit, or was started with something else.
        TypeError: An argument is of another type.
    """

    def __init__(self, cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
                 options: CollectiveOptions | None = None):
        if options is not None and not isinstance(options, CollectiveOptions):
            raise TypeError("MultiWorkerMirroredStrategy: `options` is "
                            f"{options!r}. Expected a lockstep.CollectiveOptions.")
        cluster = Cluster.from_environment(os.environ) if cluster_resolver is None \
            else Cluster.from_resolver(cluster_resolver)
        resolver = cluster_resolver or tf.distribute.cluster_resolver.TFConfigClusterResolver()
        if cluster is None or cluster.num_workers == 1:
            reason = "no cluster in TF_CONFIG" if cluster is None else (
                "the evaluator works alone" if cluster.is_evaluator else "the cluster has one worker")
            logging.info("MultiWorkerMirroredStrategy: one worker (%s).", reason)
            super().__init__(replica_devices(None), options)
            self.extended._cluster_resolver = resolver
            return
        runtime = worker_runtime.join(cluster, options or CollectiveOptions())
        worker_checkpoints.install()
        super().__init__(replica_devices(worker_runtime.local_devices(cluster)), options, runtime.group)
        self.extended._cluster_resolver = resolver  # What `strategy.cluster_resolver` gives.
