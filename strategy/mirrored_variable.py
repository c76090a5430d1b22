"""`MirroredVariable`: all copies are equal, always."""

from __future__ import annotations

from typing import Any, Callable

import tensorflow as tf

from . import replica_scope
from .aggregation import value_for_all
from .cross_replica import equal_arguments
from .replicated_variable import ReplicatedVariable


class MirroredVariable(ReplicatedVariable):
    """A variable whose copies are equal at all times."""

    def _read(self, read: Callable[[tf.Variable], tf.Tensor]) -> tf.Tensor:
        return read(self._copy())

    def _write_in_replica(self, scope: replica_scope.ReplicaScope, method: str, value: Any) -> None:
        agreed = value_for_all(self, scope, method, value)
        getattr(self._values[scope.index], method)(agreed)

    def _write_in_merge_call(self, scope: replica_scope.ReplicaScope, method: str, value: Any) -> None:
        if self._made_by_keras:  # Keras writes replicas' statistics wherever it is.
            self._write_in_replica(scope, method, value)
            return
        getattr(self._values[scope.index], method)(equal_arguments(self, scope, f"`{method}` in `merge_call`", value))

    def _write_from_outside(self, method: str, value: Any) -> None:
        self._write_everywhere(method, value)
