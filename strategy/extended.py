"""The hooks through which TensorFlow and Keras reach a strategy: `strategy.extended`."""

from __future__ import annotations

import dataclasses
import functools
import weakref
from typing import Any, Callable, Sequence

import tensorflow as tf

from ..collective import (
    CollectiveOptions,
    Copies,
    Member,
    QueueMember,
    Queues,
    ReduceOp,
    SoloMember,
    WorkerGroup,
    absentees,
    all_gather,
)
from ..collective import all_reduce as all_reduce_values
from ..collective.turns import Turns
from . import over_workers, replica_scope
from ._tf import convert_with_autograph
from .arguments import check_call, check_num_components
from .cross_replica import (
    combine_all,
    combine_components,
    equal_arguments,
    gather_components,
    gather_local_results,
    sum_of_gradients,
)
from .devices import ReplicaPins, devices_of
from .distributed_dataset import DistributedDataset
from .mirrored_variable import MirroredVariable
from .random_streams import RandomStreams
from .replica_context import ReplicaContext
from .replicated_variable import ReplicatedVariable
from .values import Mirrored, PerReplica, components, is_distributed, regroup, select
from .variable_creation import create_variable
from .worker_input import LONGEST


class ReplicatedExtended(tf.distribute.StrategyExtended):
    """The advanced API of a strategy whose replicas live on the devices of this process.

    Args:
        strategy: The strategy that this belongs to.
        devices: Full names of the devices of this process's replicas.
        options: The strategy's collective options.
        workers: Where the workers meet, None if there is one.

    Attributes:
        options: The collective options.
        workers: Where the workers meet, None if there is one.
        queues: Where the replicas of a launch meet.
        traced_member: The seat of "the replica that runs this body".
        random_streams: The streams of the random ops in traced steps.
        replica_pins: The device function of traced bodies.
        reporting_model: The Keras model whose metrics the step that was traced last reports, see keras_trainer.py.
    """

    def __init__(self, strategy: tf.distribute.Strategy, devices: Sequence[str], options: CollectiveOptions,
                 workers: WorkerGroup | None = None):
        super().__init__(strategy)
        self._devices = tuple(devices)
        self.workers = workers
        self.options = options
        self.reporting_model: Any = None
        self.replica_pins = ReplicaPins(devices)
        # tf.function keeps traces apart by the device functions around them: nested functions are traced for each
        # strategy, never shared between two.
        self._retrace_functions_for_each_device = True
        self.random_streams = RandomStreams(strategy)
        self._mirrored: weakref.WeakValueDictionary[int, MirroredVariable] = weakref.WeakValueDictionary()
        self.queues = Queues(len(devices), self)
        self._watches_absentees = False
        self.traced_member: Member = self._make_traced_member()

    def note_mirrored(self, variable: MirroredVariable) -> None:
        """Notes a variable whose copies are to be equal."""
        self._mirrored[id(variable)] = variable

    @property
    def mirrored_variables(self) -> list[MirroredVariable]:
        """Those that exist."""
        return list(self._mirrored.values())

    @functools.cached_property
    def turns(self) -> Turns:
        """The turns that the replicas take around state that exists once."""
        return Turns(f"{self.queues.name}/turns", len(self._devices), self)

    def watch_absentees(self) -> None:
        """From now on, replicas of this process that do not come to an exchange of a launch are told and waited out."""
        if not self._watches_absentees:
            self._watches_absentees = True
            absentees.watch(self.queues, self.options.warn_seconds, self.options.timeout_seconds)

    def _make_traced_member(self) -> Member:
        if self._num_replicas_in_sync == 1:
            return SoloMember(self._devices)
        self._replica_ids = []
        for index, device in enumerate(self._devices):
            with tf.device(device):
                self._replica_ids.append(tf.Variable(self.first_replica + index, trainable=False, dtype=tf.int32,
                                                     name="replica_id"))
        self._replica_id_copies = Copies([copy.handle for copy in self._replica_ids], "replica_id", self,
                                         is_equal=False)
        return QueueMember(self._devices, self._replica_ids[0], self.queues, self.workers)

    # What there is.

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """Full names of the replicas' devices."""
        return self._devices

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """Full names of the devices that hold variables: those of the replicas."""
        return self._devices

    @property
    def _num_replicas_in_sync(self) -> int:
        return len(self._devices) if self.workers is None else self.workers.num_replicas

    @property
    def first_replica(self) -> int:
        """The rank, among all replicas, of the first one of this process."""
        return 0 if self.workers is None else self.workers.first_replica

    @property
    def is_chief(self) -> bool:
        """Whether this process is the one that writes what is written once."""
        return self.workers is None or self.workers.rank == 0

    @property
    def should_checkpoint(self) -> bool:
        """Whether this process writes checkpoints."""
        return True

    @property
    def should_save_summary(self) -> bool:
        """Whether this process writes summaries."""
        return self.is_chief

    @property
    def experimental_between_graph(self) -> bool:
        return False

    @property
    def experimental_should_init(self) -> bool:
        return True

    def _in_multi_worker_mode(self) -> bool:
        return self.workers is not None

    def _use_merge_call(self) -> bool:
        return False

    def _get_local_replica_id(self, replica_id_in_sync_group: int) -> int:
        return replica_id_in_sync_group - self.first_replica

    def _get_replica_id_in_sync_group(self, replica_id: int) -> int:
        return replica_id + self.first_replica

    # Variables.

    def _create_variable(self, next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
        return create_variable(self._container_strategy(), next_creator, **kwargs)

    def variable_created_in_scope(self, v: tf.Variable) -> bool:
        """Whether `v` was made under this strategy's scope."""
        owner = self.value_container(v)
        return isinstance(owner, ReplicatedVariable) and owner.distribute_strategy is self._container_strategy()

    def _validate_colocate_with_variable(self, colocate_with_variable: tf.Variable) -> None:
        if not self.variable_created_in_scope(colocate_with_variable):
            raise ValueError(f"`colocate_vars_with`: {colocate_with_variable!r} was not made under this strategy's "
                             "scope. Make it under `strategy.scope()`.")

    def value_container(self, value: Any) -> Any:
        """The replicated variable that a copy belongs to, or the value itself."""
        container = getattr(value, "_distributed_container", None)
        return value if container is None or container() is None else container()

    def read_var(self, v: tf.Variable) -> tf.Tensor:
        """The value of a variable in cross-replica context."""
        return tf.identity(v)

    # Collectives.

    def reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any = None) -> Any:
        """Reduces a per-replica value and puts the result where `destinations` are.

        Args:
            reduce_op: A `ReduceOp`, `tf.distribute.ReduceOp` or its name.
            value: A per-replica value of tensors or IndexedSlices; or one value, which SUM and PROD refuse.
            destinations: A device name, or a value or variable whose devices are meant.
            options: Overrides the strategy's options.

        Returns:
            A tensor for one device, a mirrored value for several; inside `merge_call` this replica's result.

        Raises:
            RuntimeError: Called in a replica context, where `all_reduce` is meant.
            ValueError: There is no such device, or as `Strategy.reduce`.
            TypeError: `destinations` is something else, or as `Strategy.reduce`.
        """
        self._container_strategy()._require_cross_replica("extended.reduce_to")
        op = ReduceOp.of(reduce_op)
        scope = replica_scope.current()
        if scope is not None:
            return all_reduce_values(scope.member, op, [value], self._container_strategy()._options_for(options))[0]
        combined = combine_components(op, value, len(self._devices), "extended.reduce_to", self.workers)
        return self.broadcast_to(combined, destinations)

    def batch_reduce_to(self, reduce_op: Any, value_destination_pairs: Sequence[tuple[Any, Any]],
                        options: Any = None) -> list[Any]:
        """`reduce_to` for several (value, destinations) pairs, in one bucket plan where a step is traced.

        Raises:
            ValueError: `value_destination_pairs` is something else than a list of pairs.
        """
        self._container_strategy()._require_cross_replica("extended.batch_reduce_to")
        op = ReduceOp.of(reduce_op)
        if not isinstance(value_destination_pairs, (list, tuple)) \
                or not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in value_destination_pairs):
            raise ValueError(f"`extended.batch_reduce_to`: `value_destination_pairs` is {value_destination_pairs!r}. "
                             "Expected a list of (value, destinations) pairs.")
        values = [value for value, _ in value_destination_pairs]
        scope = replica_scope.current()
        if scope is not None:
            return all_reduce_values(scope.member, op, values, self._container_strategy()._options_for(options))
        combined = combine_all(op, values, len(self._devices), "extended.reduce_to", self.workers)
        return [self.broadcast_to(total, destinations)
                for total, (_, destinations) in zip(combined, value_destination_pairs, strict=True)]

    def _replica_ctx_all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        return tf.distribute.get_replica_context().all_reduce(reduce_op, value, options)

    def broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        """Puts one value on the devices of `destinations`."""
        scope = replica_scope.current()
        if scope is not None or not isinstance(tensor, (tf.Tensor, tf.IndexedSlices)):
            return tensor
        devices = devices_of(destinations, self._devices)
        copies = []
        for device in devices:
            with tf.device(device):
                copies.append(tensor if isinstance(tensor, tf.IndexedSlices) else tf.identity(tensor))
        return copies[0] if len(copies) == 1 else Mirrored(copies)

    def _gather_to_implementation(self, value: Any, destinations: Any, axis: int, options: Any) -> Any:
        scope = replica_scope.current()
        if scope is not None:
            return all_gather(scope.member, tf.convert_to_tensor(value), axis)
        return self.broadcast_to(gather_components(value, axis, len(self._devices), self.workers), destinations)

    def total_gradient(self, gradients: Sequence[Any]) -> Any:
        """The gradient of a variable from those of its copies: the sum over all replicas, None where there is none."""
        return over_workers.total_gradient(self.workers, sum_of_gradients(gradients), "`strategy.run`: gradient")

    # Running code for each copy or each replica.

    def update(self, var: ReplicatedVariable, fn: Callable[..., Any], args: Any = (), kwargs: Any = None,
               group: bool = True) -> Any:
        check_call("extended.update", "fn", fn, args, kwargs)
        return super().update(var, fn, args, kwargs, group)

    def _update(self, var: ReplicatedVariable, fn: Callable[..., Any], args: Any, kwargs: Any, group: bool) -> Any:
        self._check_owned(var)
        scope = replica_scope.current()
        if scope is not None:
            return self._replica_ctx_update(var, fn, args, kwargs)
        args, kwargs = equal_arguments(var, None, "`extended.update`", (tuple(args), kwargs))
        results = [self._update_copy(var, index, fn, select(index, tuple(args)), select(index, kwargs))
                   for index in range(len(self._devices))]
        return regroup(results) if group else tuple(results)

    def _replica_ctx_update(self, var: ReplicatedVariable, fn: Callable[..., Any], args: Any = (), kwargs: Any = None,
                            group: bool = True) -> Any:
        scope = replica_scope.current()
        if scope is None:
            raise RuntimeError("`extended.update`: called in a replica context outside of `strategy.run`. Call it in "
                               "the step, or in cross-replica context, under `strategy.scope()`.")
        self._check_owned(var)
        args, kwargs = equal_arguments(var, scope, "`extended.update`", (tuple(args), kwargs or {}))
        return self._update_copy(var, scope.index, fn, args, kwargs)

    def _check_owned(self, var: Any) -> None:
        if not isinstance(var, ReplicatedVariable) or not self.variable_created_in_scope(var):
            raise ValueError(f"`extended.update`: {var!r} is not a variable made under this strategy's scope. "
                             "Make it under `strategy.scope()`.")

    def _update_copy(self, var: ReplicatedVariable, index: int, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        copy = var.values[index]
        device = tf.device(None if replica_scope.current() is not None else copy.device)
        with device, replica_scope.updating(index):
            return fn(copy, *args, **kwargs)

    def call_for_each_replica(self, fn: Callable[..., Any], args: Any = (), kwargs: Any = None) -> Any:
        """Runs `fn` on every replica, see `Strategy.run`; inside `merge_call`, on this replica."""
        strategy = self._container_strategy()
        strategy._require_cross_replica("extended.call_for_each_replica")
        scope = replica_scope.current()
        if scope is None:
            return strategy._run_on_replicas(fn, args, kwargs)
        fn = convert_with_autograph(fn, always=False)
        replica = dataclasses.replace(scope, in_merge_call=False)
        with replica_scope.entered(replica), ReplicaContext(strategy, scope.member, scope.index):
            return fn(*args, **(kwargs or {}))

    def _local_results(self, val: Any) -> tuple[Any, ...]:
        if isinstance(val, tf.Variable) and not isinstance(val, ReplicatedVariable):
            return (val,)  # One copy: TensorFlow's gradient tapes ask, also inside `merge_call`.
        scope = replica_scope.current()
        if scope is not None and scope.in_merge_call and not isinstance(val, MirroredVariable):
            return gather_local_results(scope.member, val)
        if isinstance(val, ReplicatedVariable):
            return val.values
        check_num_components(val, len(self._devices), "`experimental_local_results`: the value")
        if is_distributed(val):
            return components(val)
        if tf.nest.is_nested(val):
            return tuple(select(index, val) for index in range(len(self._devices)))
        return (val,)

    # Input.

    def _experimental_distribute_dataset(self, dataset: Any, options: Any, ends_with: str = LONGEST
                                         ) -> DistributedDataset:
        return DistributedDataset(dataset, self._devices, options, workers=self.workers, ends_with=ends_with)

    def _distribute_datasets_from_function(self, dataset_fn: Callable[[tf.distribute.InputContext], Any],
                                           options: Any, ends_with: str = LONGEST) -> DistributedDataset:
        return DistributedDataset.from_function(dataset_fn, self._devices, options, workers=self.workers,
                                                ends_with=ends_with)

    def _experimental_distribute_values_from_function(self, value_fn: Callable[[Any], Any]) -> PerReplica:
        first, size = self.first_replica, self._num_replicas_in_sync
        return PerReplica([value_fn(tf.distribute.experimental.ValueContext(first + index, size))
                           for index in range(len(self._devices))])
