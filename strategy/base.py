"""The base of all strategies: the public surface of `tf.distribute.Strategy`, on an engine of our own."""

from __future__ import annotations

import copy
from typing import Any, Callable, Sequence

import tensorflow as tf
from absl import logging

from ..collective import CollectiveOptions, ReduceOp, WorkerGroup
from ..collective.options import is_integer
from . import keras_corrections, over_workers, py_functions, replica_scope
from .arguments import check_call
from .cross_replica import combine_all, combine_along, gather_components, gather_local_results
from .distributed_dataset import DistributedDataset
from .engine import Engine
from .extended import ReplicatedExtended
from .plan import Plan
from .random_streams import RandomStreams
from .values import PerReplica, is_distributed
from .worker_input import LONGEST


class Strategy(tf.distribute.Strategy):
    """What is copied and where: the base of `MirroredStrategy`.

    A strategy makes variables in one copy per replica (`scope`), runs a step on every replica (`run`), combines what
    the replicas return (`reduce`, `gather`) and splits global batches among them (`experimental_distribute_dataset`).

    >>> strategy = lockstep.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> isinstance(strategy, lockstep.Strategy), strategy.num_replicas_in_sync
    (True, 2)

    Args:
        devices: Full names of the devices of this process's replicas.
        options: How the replicas exchange tensors; None takes the defaults.
        workers: Where the workers meet, None if there is one.
    """

    def __init__(self, devices: Sequence[str], options: CollectiveOptions | None = None,
                 workers: WorkerGroup | None = None):
        if options is None:
            options = CollectiveOptions()
        if not isinstance(options, CollectiveOptions):
            raise TypeError(f"{type(self).__name__}: `options` is {options!r}. Expected a lockstep.CollectiveOptions.")
        super().__init__(ReplicatedExtended(self, devices, options, workers))
        self._engine = Engine(self)
        keras_corrections.install()
        py_functions.install()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Strategy":
        """A strategy of its own on the same devices; variables stay with the strategy under which they were made."""
        other = type(self).__new__(type(self))
        memo[id(self)] = other
        Strategy.__init__(other, self.extended.worker_devices, self.options, self.extended.workers)
        for name, value in self.__dict__.items():
            if name not in other.__dict__:
                setattr(other, name, copy.deepcopy(value, memo))
        return other

    @property
    def options(self) -> CollectiveOptions:
        """The options of this strategy's collectives."""
        return self.extended.options

    @property
    def random_streams(self) -> RandomStreams:
        """Where the random ops of traced steps stand; a `tf.train.Checkpoint` holds it to go on exactly."""
        return self.extended.random_streams

    def scope(self) -> Any:
        """A context manager under which variables get a copy on every replica.

        It may be entered again under itself, not under the scope of another strategy.

        Raises:
            RuntimeError: It would be.
        """
        if tf.distribute.has_strategy() and tf.distribute.get_strategy() is not self:
            raise RuntimeError(
                "Mixing different tf.distribute.Strategy objects: the scope of a "
                f"{_described(self)} under that of a {_described(tf.distribute.get_strategy())}. Leave the outer one "
                "first: a model is made, compiled and trained under one strategy.")
        return super().scope()

    def run(self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None,
            options: tf.distribute.RunOptions | None = None) -> Any:
        """Runs `fn` on every replica, each with its components of the per-replica values among the arguments.

        A `tf.function`, and anything called inside one, is traced once for all replicas and launched on all at the
        same time. A plain function called eagerly runs once per replica in Python, in the order of the replicas.

        Synchronisation: one process calls for all its replicas. Launches of one strategy follow each other, also from
        several threads.

        >>> strategy = lockstep.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> double = tf.function(lambda x: 2 * x)
        >>> parts = lockstep.PerReplica((tf.constant(1), tf.constant(5)))
        >>> [int(part) for part in strategy.experimental_local_results(strategy.run(double, args=(parts,)))]
        [2, 10]

        Args:
            fn: A function of tensors, or of any Python objects that are the same on all replicas.
            args: Positional arguments: a list or tuple, nests of per-replica values, tensors, Python objects.
            kwargs: Keyword arguments, likewise.
            options: Must be None or the defaults: `tf.distribute.RunOptions` concerns TPUs.

        Returns:
            What `fn` returns, tensors being per-replica values (plain tensors for one replica). An object that is the
            same on all replicas is returned as it is.

        Raises:
            RuntimeError: Called inside another `run`, or the step changes shared state in no possible order.
            TypeError: `fn` is no function.
            ValueError: `args` is no list or tuple, `kwargs` no dictionary, `options` is not the default, or an argument
                has another number of components than there are replicas.
            CollectiveMismatchError: The replicas met in different collectives.
        """
        self._check_run("strategy.run", fn, args, kwargs)
        if options is not None and options != tf.distribute.RunOptions():
            raise ValueError(f"`strategy.run`: `options` is {options}. They concern TPUs only. Leave them out.")
        self._say_whole_batches(args)
        return self._run_on_replicas(fn, args, kwargs)

    def _run_on_replicas(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any] | None) -> Any:
        """`run` without its checks, also for a function given to `merge_call`."""
        keras_corrections.install()
        with self.scope(), over_workers.naming_the_peer(self.extended.workers):
            return self._engine.run(fn, args, kwargs or {})

    def _check_run(self, where: str, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any] | None
                   ) -> None:
        if replica_scope.is_running():
            raise RuntimeError(f"`{where}`: called with {getattr(fn, '__name__', fn)!r} inside another "
                               "`strategy.run`. A replica cannot start replicas. Call the function itself.")
        check_call(where, "fn", fn, args, kwargs)

    def plan(self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> Plan:
        """Returns what `run(fn, args, kwargs)` will do, without running it, see `Plan`.

        The step is traced, so variables that it makes are made.

        >>> strategy = lockstep.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> plan = strategy.plan(lambda x: tf.distribute.get_replica_context().all_reduce("SUM", x), (tf.zeros([2]),))
        >>> [(exchange.kind, exchange.num_bytes) for exchange in plan.exchanges]
        [('all-reduce', 8)]

        Args:
            fn: As in `run`; a plain function is planned as a `tf.function`.
            args: As in `run`.
            kwargs: As in `run`.

        Raises:
            RuntimeError: Called inside `run`.
            TypeError: `fn` is no function.
            ValueError: `args` is no list or tuple, or `kwargs` no dictionary.
        """
        self._check_run("strategy.plan", fn, args, kwargs)
        with self.scope():
            return self._engine.plan(fn, args, kwargs or {})

    def reduce(self, reduce_op: Any, value: Any, axis: int | Sequence[int] | None = None) -> Any:
        """Combines a per-replica value into one.

        >>> strategy = lockstep.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> rows = lockstep.PerReplica((tf.constant([1.0, 4.0]), tf.constant([9.0])))
        >>> float(strategy.reduce("MEAN", rows, axis=0)), float(strategy.reduce("SUM", rows, axis=0))
        (4.66..., 14.0)

        Args:
            reduce_op: A `ReduceOp`, `tf.distribute.ReduceOp` or its name.
            value: A per-replica value, or a nest of them. A single value stands for equal ones on all replicas: MEAN,
                MIN and MAX return it, SUM and PROD refuse it.
            axis: None combines element by element. An axis, or several, is reduced as well; components may differ in
                size along it, and MEAN divides by what they really have together.

        Returns:
            The nest with a tensor in place of each value. MEAN of integers is float64.

        Raises:
            RuntimeError: Called in a replica context.
            ValueError: No such axis, unequal shapes with `axis=None`, SUM or PROD of a single value, None, or another
                number of components than there are replicas.
            TypeError: The op means nothing for the dtype, the replicas' dtypes differ, or `axis` is of a wrong type.
        """
        self._require_cross_replica("reduce")
        op = ReduceOp.of(reduce_op)
        size = len(self.extended.worker_devices)
        workers = self.extended.workers

        scope = replica_scope.current()
        if scope is not None and scope.in_merge_call:
            if axis is None:
                return tf.nest.map_structure(lambda leaf: self.extended.reduce_to(op, leaf, leaf), value)
            value = tf.nest.map_structure(lambda leaf: PerReplica(gather_local_results(scope.member, leaf)), value)
            size, workers = scope.member.size, None  # The replicas of all workers are there.
        if axis is None:
            return tf.nest.pack_sequence_as(value, combine_all(op, tf.nest.flatten(value), size, "reduce", workers))
        return tf.nest.map_structure(lambda leaf: combine_along(op, leaf, axis, size, "reduce", workers), value)

    def gather(self, value: Any, axis: int) -> Any:
        """Concatenates a per-replica value along `axis`, in the order of the replicas.

        >>> strategy = lockstep.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> rows = lockstep.PerReplica((tf.constant([1, 4]), tf.constant([9])))
        >>> strategy.gather(rows, axis=0).numpy().tolist()
        [1, 4, 9]

        Args:
            value: A per-replica value of tensors of any dtype and of rank 1 or more, or a nest of them; sizes along
                `axis` may differ.
            axis: The axis to join along; negative values count from the end.

        Raises:
            RuntimeError: Called in a replica context; `all_gather` is for that.
            ValueError: A scalar, no such axis, shapes that differ elsewhere, None, or another number of components than
                there are replicas.
            TypeError: The replicas' dtypes differ.
            NotImplementedError: A `tf.IndexedSlices` value.
        """
        self._require_cross_replica("gather", "tf.distribute.get_replica_context().all_gather")
        scope = replica_scope.current()
        if scope is not None and scope.in_merge_call:
            return tf.nest.map_structure(lambda leaf: self.extended._gather_to_implementation(leaf, "", axis, None),
                                         value)
        size, workers = len(self.extended.worker_devices), self.extended.workers
        return tf.nest.map_structure(lambda leaf: gather_components(leaf, axis, size, workers), value)

    @property
    def num_workers(self) -> int:
        """The number of workers, processes, that train together."""
        return 1 if self.extended.workers is None else self.extended.workers.size

    @property
    def worker_index(self) -> int:
        """This process's number among the workers; 0 is the chief."""
        return 0 if self.extended.workers is None else self.extended.workers.rank

    @property
    def is_chief(self) -> bool:
        """Whether this process is the chief: the worker that writes what is written once."""
        return self.extended.is_chief

    def barrier(self, name: str) -> None:
        """Waits until every worker has come here; returns at once where there is one worker.

        Synchronisation: every worker must call, with the same name, outside of `tf.function`.

        Args:
            name: Tells barriers apart, in errors too.

        Raises:
            RuntimeError: Called in a replica context.
            PeerError: A worker failed, left, or is somewhere else.
        """
        self._require_cross_replica("barrier")
        over_workers.reduced(self.extended.workers, ReduceOp.SUM, tf.constant(0), f"barrier {name!r}")

    def broadcast(self, value: Any, root: int = 0) -> Any:
        """Gives every worker what worker `root` has: a decision, a seed, a file name.

        Synchronisation: every worker must call.

        >>> strategy = lockstep.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> float(strategy.broadcast(0.5))
        0.5

        Args:
            value: A nest of tensors, or of what becomes one, of the same structure and dtypes on all workers; shapes
                may differ.
            root: The worker's number; 0 is the chief.

        Returns:
            The nest of `root`, as tensors.

        Raises:
            RuntimeError: Called in a replica context.
            ValueError: There is no worker `root`.
            PeerError: A worker failed, left, or is somewhere else.
        """
        self._require_cross_replica("broadcast")
        if not is_integer(root) or not 0 <= root < self.num_workers:
            raise ValueError(f"`broadcast`: `root` is {root!r}. Expected the number of a worker, 0 to "
                             f"{self.num_workers - 1}.")
        tensors = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(value)]
        parts = over_workers.all_parts(self.extended.workers, [tensors], "`broadcast`", one_per_worker=True)
        return tf.nest.pack_sequence_as(value, list(parts[root]))

    def experimental_distribute_dataset(self, dataset: tf.data.Dataset,
                                        options: tf.distribute.InputOptions | None = None,
                                        ends_with: str = LONGEST) -> DistributedDataset:
        """Splits the global batches of `dataset` among the replicas of all workers, see `DistributedDataset`.

        Synchronisation: every worker must call.
        """
        return self.extended._experimental_distribute_dataset(dataset, options, ends_with)

    def distribute_datasets_from_function(self, dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset],
                                          options: tf.distribute.InputOptions | None = None,
                                          ends_with: str = LONGEST) -> DistributedDataset:
        """Distributes a dataset of per-replica batches that `dataset_fn` makes, see `DistributedDataset`.

        Synchronisation: every worker must call.
        """
        return self.extended._distribute_datasets_from_function(dataset_fn, options, ends_with)

    def _options_for(self, options: Any) -> CollectiveOptions:
        """The options of one call."""
        if options is None:
            return self.options
        if not isinstance(options, CollectiveOptions):
            raise TypeError(f"`options` is {options!r}. Expected a lockstep.CollectiveOptions or None.")
        return options

    def _require_cross_replica(self, method: str, instead: str = "tf.distribute.get_replica_context().all_reduce"
                               ) -> None:
        if tf.distribute.get_replica_context() is not None and replica_scope.current() is not None:
            raise RuntimeError(f"`{method}`: called inside `strategy.run`. There it is one replica's value. "
                               f"Use `{instead}`, or call it on what `strategy.run` returns.")

    def _say_whole_batches(self, args: Sequence[Any]) -> None:
        """Says once that tensors which are no per-replica values go to every replica whole."""
        if len(self.extended.worker_devices) == 1 or not tf.executing_eagerly():
            return
        leaves = [leaf for leaf in tf.nest.flatten(list(args)) if not isinstance(leaf, tf.Variable)]
        if any(is_distributed(leaf) for leaf in leaves):
            return
        batch = next((leaf for leaf in leaves if tf.is_tensor(leaf) and leaf.shape.rank), None)
        if batch is not None:
            logging.log_first_n(
                logging.INFO, "strategy.run: each of the %d replicas gets the whole batch (shape %s): the numbers are "
                "those of one device on that batch. To split global batches among the replicas, iterate over "
                "strategy.experimental_distribute_dataset(dataset).", 1, len(self.extended.worker_devices), batch.shape)


def _described(strategy: tf.distribute.Strategy) -> str:
    return f"{type(strategy).__name__} of {strategy.num_replicas_in_sync} replicas"
