"""`SyncOnReadVariable`: each replica writes its own copy; reading from outside combines the copies."""

from __future__ import annotations

from typing import Any, Callable

import tensorflow as tf

from . import replica_scope
from .aggregation import check_write_from_outside, combined
from .replicated_variable import ReplicatedVariable
from .values import is_distributed


class SyncOnReadVariable(ReplicatedVariable):
    """A variable that each replica writes for itself, and that is combined when read from outside."""

    _synchronization = tf.VariableSynchronization.ON_READ

    def _read(self, read: Callable[[tf.Variable], tf.Tensor]) -> tf.Tensor:
        index = replica_scope.copy_index(self._distribute_strategy)
        if index is not None:
            return read(self._values[index])
        return combined(self)

    @property
    def handle(self) -> tf.Tensor:
        if replica_scope.copy_index(self._distribute_strategy) is None and len(self._values) > 1:
            raise ValueError(f"Variable {self.name!r}: its handle was asked for outside of `strategy.run`. Each "
                             "replica has its own copy (synchronization ON_READ). Read it with `read_value()`.")
        return self._copy().handle

    def _write_in_replica(self, scope: replica_scope.ReplicaScope, method: str, value: Any) -> None:
        self._check_not_scatter(method)
        if is_distributed(value):
            raise TypeError(f"Variable {self.name!r}: `{method}` in a replica got a per-replica value. Pass it to "
                            "`strategy.run` as an argument, so that each replica sees its own component.")
        getattr(self._values[scope.index], method)(value)

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
        """Splits `value` so that the copies sum to it: equal shares, the remainder of integers on the first ones."""
        if is_distributed(value):
            self._write_everywhere("assign", value)  # Raises, with the variable's name.
        total = tf.cast(tf.convert_to_tensor(value), self.dtype)
        size = len(self._values)
        for index, copy in enumerate(self._values):
            with tf.device(copy.device):
                if self.dtype.is_integer:
                    copy.assign(total // size + tf.cast(total % size > index, self.dtype))
                else:
                    copy.assign(total / tf.cast(size, self.dtype))

    def _value_to_save(self) -> tf.Tensor:
        if self._aggregation is tf.VariableAggregation.NONE:
            return self._primary.read_value()
        return combined(self)

    def _restore(self, value: tf.Tensor) -> None:
        """A sum is restored whole onto the first copy, so that it is exact for any number of replicas."""
        if self._aggregation is not tf.VariableAggregation.SUM:
            self._write_everywhere("assign", value)
            return
        value = tf.cast(value, self.dtype)
        for index, copy in enumerate(self._values):
            with tf.device(copy.device):
                copy.assign(value if index == 0 else tf.zeros_like(value))
