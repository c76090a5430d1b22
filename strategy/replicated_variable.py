"""Replicated variables: one copy of a variable per local replica.

`Strategy.scope()` makes every `tf.Variable` one of these. Two kinds, as in tf.distribute:

    MirroredVariable     synchronization AUTO or ON_WRITE: all copies are equal, always. What replicas assign is brought
                         to one value first, as `aggregation` says (aggregation.py).
    SyncOnReadVariable   synchronization ON_READ: each replica writes its own copy; reading from outside the replicas
                         combines the copies.

Reading in a replica gives the replica's copy. A step is traced once, with copy 0; the launch swaps the handles.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, Sequence

import tensorflow as tf

from ..collective import Copies, ReduceOp
from . import over_workers, replica_scope
from ._tf import CoreTensor
from .values import Mirrored, components, is_distributed


class ReplicatedVariable(tf.distribute.DistributedValues, tf.Variable, CoreTensor):
    """Base of the two kinds: everything that does not depend on when the copies are combined.

    Args:
        strategy: The strategy whose replicas own the copies.
        copies: Resource variables, one per local replica, in order.
        aggregation: How values from several replicas become one.
        made_by_keras: Whether Keras made the variable for itself, see `aggregation.value_for_all`.
        is_sum: Whether the copies are parts of a sum: checkpoints keep the sum.
    """

    _should_act_as_resource_variable = True
    _synchronization = tf.VariableSynchronization.ON_WRITE

    def __init__(self, strategy: tf.distribute.Strategy, copies: Sequence[tf.Variable],
                 aggregation: tf.VariableAggregation, made_by_keras: bool = False, is_sum: bool = False):
        self._values = tuple(copies)
        self._distribute_strategy = strategy
        self._aggregation = aggregation
        self._made_by_keras = made_by_keras
        self._is_sum = is_sum
        self._copies = Copies([copy.handle for copy in copies], self, strategy.extended,
                              is_equal=self._synchronization is not tf.VariableSynchronization.ON_READ)
        if self._copies.is_equal and not is_sum:
            strategy.extended.note_mirrored(self)
        for copy in copies:
            copy._distributed_container = weakref.ref(self)
            copy.handle._distributed_container = weakref.ref(self)
        # What TensorFlow and Keras read from a resource variable.
        self._unique_id = self._primary._unique_id
        self._in_graph_mode = False
        self._keras_initialized = True

    # What the variable is.

    @property
    def _primary(self) -> tf.Variable:
        return self._values[0]

    @property
    def values(self) -> tuple[tf.Variable, ...]:
        """The copies, in the order of the local replicas."""
        return self._values

    @property
    def distribute_strategy(self) -> tf.distribute.Strategy:
        return self._distribute_strategy

    @property
    def aggregation(self) -> tf.VariableAggregation:
        return self._aggregation

    @property
    def synchronization(self) -> tf.VariableSynchronization:
        return self._synchronization

    @property
    def name(self) -> str:
        return self._primary.name

    @property
    def _shared_name(self) -> str:
        return self._primary._shared_name

    @property
    def _save_slice_info(self) -> Any:
        return None  # Slots are made for whole variables.

    @property
    def dtype(self) -> tf.DType:
        return self._primary.dtype

    @property
    def shape(self) -> tf.TensorShape:
        return self._primary.shape

    def get_shape(self) -> tf.TensorShape:
        return self.shape

    @property
    def trainable(self) -> bool:
        return self._primary.trainable

    @property
    def constraint(self) -> Callable[[tf.Tensor], tf.Tensor] | None:
        return self._primary.constraint

    @property
    def device(self) -> str:
        scope = replica_scope.current()
        if scope is not None and scope.is_traced_once:
            return ""  # The body stands for every replica: `tf.device(v.device)` must pin it to none.
        return self._copy().device

    @property
    def graph(self) -> tf.Graph:
        return self._primary.graph

    @property
    def op(self) -> tf.Operation:
        return self._copy().op

    @property
    def initializer(self) -> tf.Operation:
        return tf.group(*(copy.initializer for copy in self._values))

    def is_initialized(self, name: str | None = None) -> tf.Tensor:
        return tf.reduce_all(tf.stack([copy.is_initialized() for copy in self._values]), name=name)

    def initialized_value(self) -> tf.Tensor:
        return self.read_value()

    @property
    def initial_value(self) -> Any:
        return self._primary.initial_value

    def _copy(self) -> tf.Variable:
        """The copy that the running code sees."""
        index = replica_scope.copy_index(self._distribute_strategy)
        return self._values[0 if index is None else index]

    @property
    def handle(self) -> tf.Tensor:
        return self._copy().handle

    # Reading.

    def value(self) -> tf.Tensor:
        return self._read(lambda copy: copy.value())

    def read_value(self) -> tf.Tensor:
        return self._read(lambda copy: copy.read_value())

    def _read(self, read: Callable[[tf.Variable], tf.Tensor]) -> tf.Tensor:
        raise NotImplementedError(f"{type(self).__name__}._read")

    def numpy(self) -> Any:
        return self.read_value().numpy()

    def eval(self, session: Any = None) -> Any:
        return self.read_value().eval(session=session)

    def sparse_read(self, indices: Any, name: str | None = None) -> tf.Tensor:
        return self._copy().sparse_read(indices, name=name)

    def gather_nd(self, indices: Any, name: str | None = None) -> tf.Tensor:
        return self._copy().gather_nd(indices, name=name)

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        value = self.value()
        if dtype is not None and not tf.as_dtype(dtype).is_compatible_with(value.dtype):
            raise ValueError(f"Variable {self.name!r}: has dtype {value.dtype.name}, and {tf.as_dtype(dtype).name} was "
                             "asked for. Use `tf.cast`.")
        return value

    _dense_var_to_tensor = __tf_tensor__

    def __int__(self) -> int:
        return int(self.read_value())

    def __float__(self) -> float:
        return float(self.read_value())

    def __bool__(self) -> bool:
        return bool(self.read_value())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    # Writing.

    def assign(self, value: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True) -> Any:
        return self._write("assign", value, read_value)

    def assign_add(self, delta: Any, use_locking: bool = False, name: str | None = None,
                   read_value: bool = True) -> Any:
        return self._write("assign_add", delta, read_value)

    def assign_sub(self, delta: Any, use_locking: bool = False, name: str | None = None,
                   read_value: bool = True) -> Any:
        return self._write("assign_sub", delta, read_value)

    def scatter_add(self, sparse_delta: tf.IndexedSlices, use_locking: bool = False, name: str | None = None) -> Any:
        return self._write("scatter_add", sparse_delta)

    def scatter_sub(self, sparse_delta: tf.IndexedSlices, use_locking: bool = False, name: str | None = None) -> Any:
        return self._write("scatter_sub", sparse_delta)

    def scatter_update(self, sparse_delta: tf.IndexedSlices, use_locking: bool = False,
                       name: str | None = None) -> Any:
        return self._write("scatter_update", sparse_delta)

    def scatter_min(self, sparse_delta: tf.IndexedSlices, use_locking: bool = False, name: str | None = None) -> Any:
        return self._write("scatter_min", sparse_delta)

    def scatter_max(self, sparse_delta: tf.IndexedSlices, use_locking: bool = False, name: str | None = None) -> Any:
        return self._write("scatter_max", sparse_delta)

    def scatter_mul(self, sparse_delta: tf.IndexedSlices, use_locking: bool = False, name: str | None = None) -> Any:
        return self._write("scatter_mul", sparse_delta)

    def scatter_div(self, sparse_delta: tf.IndexedSlices, use_locking: bool = False, name: str | None = None) -> Any:
        return self._write("scatter_div", sparse_delta)

    def batch_scatter_update(self, sparse_delta: tf.IndexedSlices, use_locking: bool = False,
                             name: str | None = None) -> Any:
        return self._write("batch_scatter_update", sparse_delta)

    def scatter_nd_add(self, indices: Any, updates: Any, name: str | None = None) -> Any:
        return self._scatter_nd(tf.tensor_scatter_nd_add, indices, updates)

    def scatter_nd_sub(self, indices: Any, updates: Any, name: str | None = None) -> Any:
        return self._scatter_nd(tf.tensor_scatter_nd_sub, indices, updates)

    def scatter_nd_update(self, indices: Any, updates: Any, name: str | None = None) -> Any:
        return self._scatter_nd(tf.tensor_scatter_nd_update, indices, updates)

    def _scatter_nd(self, scattered: Callable[..., tf.Tensor], indices: Any, updates: Any) -> Any:
        if self._aggregation in (tf.VariableAggregation.SUM, tf.VariableAggregation.MEAN) \
                and replica_scope.current() is not None:
            raise NotImplementedError(f"Variable {self.name!r}: `scatter_nd_*` in a replica with aggregation "
                                      f"{self._aggregation.name}. Use `scatter_add` or `scatter_sub`.")
        return self.assign(scattered(self._copy().read_value(), indices, updates))

    def _write(self, method: str, value: Any, read_value: bool = True) -> Any:
        index = replica_scope.updated_index()
        scope = replica_scope.current()
        if index is not None:
            getattr(self._values[index], method)(value)
        elif scope is not None and scope.strategy is self._distribute_strategy:
            write = self._write_in_merge_call if scope.in_merge_call else self._write_in_replica
            write(scope, method, value)
        elif scope is not None:
            raise ValueError(f"Variable {self.name!r}: `{method}` in a step of another strategy than the one under "
                             "whose scope it was made. Make it under the scope of the strategy that runs the step.")
        else:
            self._write_from_outside(method, value)
        return self if read_value else None

    def _write_in_replica(self, scope: replica_scope.ReplicaScope, method: str, value: Any) -> None:
        raise NotImplementedError(f"{type(self).__name__}._write_in_replica")

    def _write_in_merge_call(self, scope: replica_scope.ReplicaScope, method: str, value: Any) -> None:
        raise NotImplementedError(f"{type(self).__name__}._write_in_merge_call")

    def _write_from_outside(self, method: str, value: Any) -> None:
        raise NotImplementedError(f"{type(self).__name__}._write_from_outside")

    def _write_everywhere(self, method: str, value: Any) -> None:
        """Writes one value, or a mirrored value's components, to all copies."""
        if is_distributed(value) and not isinstance(value, Mirrored):
            raise ValueError(
                f"Variable {self.name!r}: `{method}` outside of `strategy.run` got a per-replica value with "
                f"{len(components(value))} components. All copies of a variable are written alike. Combine the "
                "components first, with `strategy.reduce`, or assign inside `strategy.run`.")
        for index, copy in enumerate(self._values):
            with tf.device(copy.device):
                getattr(copy, method)(components(value)[index] if is_distributed(value) else value)

    # Checkpoints and SavedModels hold one value under the name that a plain variable has, so that they are restored
    # onto any number of replicas, or with no strategy.

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        return {"VARIABLE_VALUE": self._value_to_save()}

    def _restore_from_tensors(self, restored_tensors: dict[str, tf.Tensor]) -> tf.Tensor:
        value = restored_tensors["VARIABLE_VALUE"]
        self._restore(tf.convert_to_tensor(value) if not tf.is_tensor(value) else value)
        return value

    def _value_to_save(self) -> tf.Tensor:
        if not self._is_sum:
            return self._primary.read_value()
        own = tf.add_n([copy.read_value() for copy in self._values])
        name = f"{self.name}, to save it: every worker must save"
        return over_workers.reduced(self._distribute_strategy.extended.workers, ReduceOp.SUM, own, name)

    def _restore(self, value: tf.Tensor) -> None:
        """A sum is restored whole onto the first copy, so that it is exact for any number of replicas."""
        if not self._is_sum:
            self._write_everywhere("assign", value)
            return
        value = tf.cast(value, self.dtype)
        first = self._distribute_strategy.extended.first_replica
        for index, copy in enumerate(self._values):
            with tf.device(copy.device):
                copy.assign(value if first + index == 0 else tf.zeros_like(value))

    def _write_object_proto(self, proto: Any, options: Any) -> None:
        self._primary._write_object_proto(proto, options)

    def _copy_trackable_to_cpu(self, object_map: dict[Any, Any]) -> None:
        if self not in object_map:
            with tf.device("CPU:0"):
                object_map[self] = tf.Variable(self._value_to_save(), trainable=self.trainable, name=self.name)
        else:
            object_map[self].assign(self._value_to_save())

    def _export_to_saved_model_graph(self, object_map: Any, tensor_map: Any, options: Any, **kwargs: Any) -> list[Any]:
        resources = self._primary._export_to_saved_model_graph(object_map=object_map, tensor_map=tensor_map,
                                                               options=options, **kwargs)
        exported = object_map[self._primary]
        object_map[self] = exported
        for copy in self._values:
            object_map[copy] = exported
            tensor_map[copy.handle] = exported.handle
        return [copy.handle for copy in self._values] if resources else []

    def __repr__(self) -> str:
        lines = ",\n".join(f"  {index}: {copy!r}" for index, copy in enumerate(self._values))
        return f"{type(self).__name__}:{{\n{lines}\n}}"

    __str__ = __repr__
