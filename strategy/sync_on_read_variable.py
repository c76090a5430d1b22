"""`SyncOnReadVariable`: each replica writes its own copy; reading from outside combines the copies."""

from __future__ import annotations

import functools
from typing import Any, Callable

import tensorflow as tf

from ..collective.all_gather import all_components
from . import replica_scope
from .aggregation import check_write_from_outside, combined
from .replicated_variable import ReplicatedVariable
from .values import is_distributed


class SyncOnReadVariable(ReplicatedVariable):
    """A variable that each replica writes for itself, and that is combined when read from outside."""

    _synchronization = tf.VariableSynchronization.ON_READ

    def _read(self, read: Callable[[tf.Variable], tf.Tensor]) -> tf.Tensor:
        index = replica_scope.copy_index(self._distribute_strategy)
        if index is None:
            return self._combined() if tf.executing_eagerly() else self._combined_in_a_call()
        scope = replica_scope.current()
        if scope is not None and scope.in_merge_call and replica_scope.updated_index() is None:
            return combined(self, [value for value, in all_components(scope.member, [self._primary.read_value()])])
        return read(self._values[index])

    def _combined(self) -> tf.Tensor:
        return combined(self, [copy.read_value() for copy in self._values])

    @functools.cached_property
    def _combined_in_a_call(self) -> Callable[[], tf.Tensor]:
        """Reads all copies in a call of its own: values on their way between devices must not wait beside a launch.

        When a step fails, what waits beside the launch is cancelled, and TensorFlow reports that instead of the cause.
        """
        return tf.function(self._combined, autograph=False, experimental_attributes={"_noinline": True})

    @property
    def handle(self) -> tf.Tensor:
        strategy = self._distribute_strategy
        if replica_scope.copy_index(strategy) is None and strategy.num_replicas_in_sync > 1:
            raise ValueError(f"Variable {self.name!r}: its handle was asked for outside of `strategy.run`. Each "
                             "replica has its own copy (synchronization ON_READ). Read it with `read_value()`.")
        return self._copy().handle

    def _write_in_replica(self, scope: replica_scope.ReplicaScope, method: str, value: Any) -> None:
        self._check_not_scatter(method)
        if is_distributed(value):
            raise TypeError(f"Variable {self.name!r}: `{method}` in a replica got a per-replica value. Pass it to "
                            "`strategy.run` as an argument, so that each replica sees its own component.")
        getattr(self._values[scope.index], method)(value)

    def _write_in_merge_call(self, scope: replica_scope.ReplicaScope, method: str, value: Any) -> None:
        self._check_not_scatter(method)
        check_write_from_outside(self, method)
        copy = self._values[scope.index]
        if method == "assign" and self._aggregation is tf.VariableAggregation.SUM:
            copy.assign(self._share(value, scope.member.rank))
        else:
            getattr(copy, method)(value)

    def _write_from_outside(self, method: str, value: Any) -> None:
        self._check_not_scatter(method)
        check_write_from_outside(self, method)
        if method == "assign" and self._aggregation is tf.VariableAggregation.SUM:
            self._assign_shares(value)
        else:
            self._write_everywhere(method, value)

    def _check_not_scatter(self, method: str) -> None:
        if "scatter" in method:
            raise NotImplementedError(f"Variable {self.name!r}: `{method}` on a variable with synchronization ON_READ "
                                      "is not supported. Use `assign`, `assign_add` or `assign_sub`.")

    def _assign_shares(self, value: Any) -> None:
        if is_distributed(value):
            self._write_everywhere("assign", value)  # Raises, with the variable's name.
        for index, copy in enumerate(self._values):
            with tf.device(copy.device):
                copy.assign(self._share(value, self._distribute_strategy.extended.first_replica + index))

    def _share(self, value: Any, index: int | tf.Tensor) -> tf.Tensor:
        """A copy's share of `value`, so that the copies sum to it: equal, the remainder of integers on the first."""
        total = tf.cast(tf.convert_to_tensor(value), self.dtype)
        size = self._distribute_strategy.num_replicas_in_sync
        if self.dtype.is_integer:
            return total // size + tf.cast(total % size > tf.cast(index, self.dtype), self.dtype)
        return total / tf.cast(size, self.dtype)

    def _value_to_save(self) -> tf.Tensor:
        is_mean = self._aggregation is tf.VariableAggregation.MEAN
        return self._combined() if is_mean else super()._value_to_save()
