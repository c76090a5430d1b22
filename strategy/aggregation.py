"""The rules of `tf.VariableAggregation`: how what several replicas write becomes one value.

In a replica, a mirrored variable takes only one value for all. Which one:

    SUM, MEAN            the replicas' values are all-reduced (a Python number cannot be summed: it raises)
    ONLY_FIRST_REPLICA   replica 0's value is broadcast, unless all values are equal by construction
    NONE                 the values must be equal. Equal by construction costs nothing (invariance.py); other values are
                         compared, and the step fails if they differ, instead of letting the copies drift apart

Keras gives its own variables NONE and writes replicas' statistics to them (BatchNormalization's moving averages); there
NONE takes the mean over the replicas, weighted where `averaging_weight` says so.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Iterator, Sequence

import tensorflow as tf

from ..collective import ReduceOp, agree, all_reduce, broadcast
from . import over_workers
from .branches import note_write
from .invariance import is_equal_on_all_replicas
from .replica_scope import ReplicaScope
from .values import is_distributed

Aggregation = tf.VariableAggregation

_CHOICES = ("Give the variable an aggregation when it is made (`tf.VariableAggregation.SUM`, `MEAN` or "
            "`ONLY_FIRST_REPLICA`), reduce the value first with `tf.distribute.get_replica_context().all_reduce`, or "
            "use `synchronization=tf.VariableSynchronization.ON_READ` for a variable of each replica's own.")


def check_new_variable(name: str, synchronization: tf.VariableSynchronization, aggregation: tf.VariableAggregation,
                       dtype: tf.DType | None) -> None:
    """Raises ValueError for a combination that a variable cannot have.

    Args:
        name: For the error text.
        synchronization: As given by the user.
        aggregation: As given by the user.
        dtype: The variable's dtype, or None before it is known.
    """
    if synchronization not in (tf.VariableSynchronization.AUTO, tf.VariableSynchronization.ON_WRITE,
                               tf.VariableSynchronization.ON_READ):
        raise ValueError(f"Variable {name!r}: synchronization {synchronization} is not supported for a variable that "
                         "has a copy on every replica. Use AUTO, ON_WRITE or ON_READ, or make the variable outside of "
                         "`strategy.scope()`.")
    if aggregation not in tuple(Aggregation):
        raise ValueError(f"Variable {name!r}: unknown aggregation {aggregation!r}. Use one of {list(Aggregation)}.")
    if aggregation is Aggregation.MEAN and dtype is not None and not (dtype.is_floating or dtype.is_complex):
        raise ValueError(f"Variable {name!r}: aggregation MEAN with dtype {dtype.name}. A mean of whole numbers is no "
                         "whole number. Use a floating dtype, SUM or ONLY_FIRST_REPLICA.")


def value_for_all(variable: tf.Variable, scope: ReplicaScope, method: str, value: Any) -> Any:
    """The one value that every copy takes, from what this replica wants to write.

    Synchronisation: every replica must call, except where the value is equal by construction.
    """
    where = f"Variable {variable.name!r}: `{method}` in a replica"
    aggregation = variable.aggregation
    if is_distributed(value):
        raise TypeError(f"{where} got a per-replica value. Pass it to `strategy.run` as an argument, so that each "
                        "replica sees its own component.")
    is_literal = not (tf.is_tensor(value) or isinstance(value, (tf.Variable, tf.IndexedSlices)))
    if is_literal and aggregation is Aggregation.SUM and scope.member.size > 1:
        raise ValueError(f"{where} got the Python value {value!r}, and its aggregation is SUM. A value that is no "
                         f"per-replica tensor cannot be summed: it could mean {value!r} once or once per replica. Pass "
                         "`tf.constant(...)` to add it up over the replicas, or assign outside of `strategy.run`.")
    if scope.member.size == 1:
        return value
    if is_literal and scope.is_traced_once:
        note_write(variable)
        return value  # A constant of the program: the same on every replica that comes here.
    if isinstance(value, tf.IndexedSlices):
        return _slices_for_all(variable, scope, method, _of_tensors(value, variable.dtype), where)
    value = tf.convert_to_tensor(value, dtype=None if tf.is_tensor(value) else variable.dtype)
    if value.dtype != variable.dtype:
        raise ValueError(f"{where} got a value of dtype {value.dtype.name}, and the variable has "
                         f"{variable.dtype.name}. Use `tf.cast(value, {variable.dtype.name!r})`.")
    if aggregation is Aggregation.SUM:
        return _reduced(scope, ReduceOp.SUM, _named(value, variable))
    if scope.is_traced_once and is_equal_on_all_replicas(value):
        note_write(variable)
        return value
    if aggregation is Aggregation.MEAN:
        return _reduced(scope, ReduceOp.MEAN, _named(value, variable))
    if aggregation is Aggregation.ONLY_FIRST_REPLICA:
        return broadcast(scope.member, [value], 0, variable.name)[0]
    if variable._made_by_keras and value.dtype.is_floating:
        if _averaging.weight is None:
            return _reduced(scope, ReduceOp.MEAN, _named(value, variable))
        return _weighted_mean(scope, variable, value, tf.cast(_averaging.weight, value.dtype))
    return agree(scope.member, value, f"Variable {variable.name!r} with aggregation NONE: `{method}` in a replica",
                 _CHOICES)


class _Averaging(threading.local):
    weight: tf.Tensor | None = None


_averaging = _Averaging()


@contextlib.contextmanager
def averaging_weight(weight: tf.Tensor) -> Iterator[None]:
    """The weight of what this replica writes to Keras's variables, where the replicas' values are averaged.

    Args:
        weight: A scalar of at least 0; a replica with weight 0 is left out, whatever it writes.
    """
    before, _averaging.weight = _averaging.weight, weight
    try:
        yield
    finally:
        _averaging.weight = before


def _weighted_mean(scope: ReplicaScope, variable: tf.Variable, value: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """The weighted mean over the replicas; the variable's own value where no replica has any weight."""
    share = tf.where(weight > 0, value, tf.zeros_like(value)) * weight
    total, weights = all_reduce(scope.member, ReduceOp.SUM, [share, weight], scope.strategy.options)
    return tf.where(weights > 0, tf.math.divide_no_nan(total, weights), tf.cast(variable.read_value(), value.dtype))


def _reduced(scope: ReplicaScope, op: ReduceOp, value: Any) -> Any:
    return all_reduce(scope.member, op, [value], scope.strategy.options)[0]


def _named(value: tf.Tensor, variable: tf.Variable) -> tf.Tensor:
    """The value under the variable's name, which error texts about its exchange tell."""
    return value if tf.executing_eagerly() else tf.identity(value, name=variable.name.split(":")[0])


def _of_tensors(slices: tf.IndexedSlices, dtype: tf.DType) -> tf.IndexedSlices:
    """Slices whose parts are tensors; a program may have written lists."""
    values = tf.convert_to_tensor(slices.values, dtype=None if tf.is_tensor(slices.values) else dtype)
    return tf.IndexedSlices(values, tf.convert_to_tensor(slices.indices), slices.dense_shape)


def _slices_for_all(variable: tf.Variable, scope: ReplicaScope, method: str, value: tf.IndexedSlices,
                    where: str) -> tf.IndexedSlices:
    aggregation = variable.aggregation
    if aggregation in (Aggregation.SUM, Aggregation.MEAN):
        if method not in ("scatter_add", "scatter_sub"):
            raise NotImplementedError(f"{where} with aggregation {aggregation.name}. Only `scatter_add` and "
                                      "`scatter_sub` can be combined over replicas. Use aggregation NONE or "
                                      "ONLY_FIRST_REPLICA.")
        return _reduced(scope, ReduceOp[aggregation.name], value)
    parts = [value.values, value.indices]
    if scope.is_traced_once and all(is_equal_on_all_replicas(part) for part in parts):
        note_write(variable)
        return value
    if aggregation is Aggregation.ONLY_FIRST_REPLICA:
        rows, indices = broadcast(scope.member, parts, 0, variable.name)
    else:
        name = f"Variable {variable.name!r} with aggregation NONE: `{method}` in a replica"
        rows, indices = (agree(scope.member, part, name, _CHOICES) for part in parts)
    return tf.IndexedSlices(rows, indices, value.dense_shape)


def combined(variable: tf.Variable, values: Sequence[tf.Tensor]) -> tf.Tensor:
    """The value of an ON_READ variable outside of the replicas, from the values of all copies or of this process's.

    Synchronisation: where there are several workers and these are the values of one, every worker must call.

    Raises:
        ValueError: The aggregation is NONE: there is no single value.
    """
    aggregation, strategy = variable.aggregation, variable.distribute_strategy
    size, workers = strategy.num_replicas_in_sync, strategy.extended.workers
    if len(values) == size:
        workers = None
    if size == 1:
        return values[0]
    if aggregation is Aggregation.ONLY_FIRST_REPLICA:
        return over_workers.broadcast(workers, values[0], 0, variable.name)
    if aggregation is Aggregation.NONE:
        raise ValueError(
            f"Variable {variable.name!r}: it was read outside of `strategy.run`. It has synchronization ON_READ and "
            f"aggregation NONE, so its {size} copies have no single value. Read the copies with "
            "`strategy.experimental_local_results(variable)`, or give it an aggregation.")
    total = over_workers.reduced(workers, ReduceOp.SUM, tf.add_n(values), variable.name)
    return total / size if aggregation is Aggregation.MEAN else total


def check_write_from_outside(variable: tf.Variable, method: str) -> None:
    """Raises ValueError where writing an ON_READ variable from outside the replicas has no meaning."""
    where = f"Variable {variable.name!r}: `{method}` outside of `strategy.run`"
    if variable.aggregation is Aggregation.NONE:
        raise ValueError(f"{where} on a variable with synchronization ON_READ and aggregation NONE, whose copies "
                         "belong to the replicas. Assign inside `strategy.run`, or give it an aggregation.")
    if variable.aggregation is Aggregation.SUM and method != "assign":
        raise ValueError(f"{where} on a variable with synchronization ON_READ and aggregation SUM: each copy would "
                         "change, and the sum several times over. Use `assign`, or write inside `strategy.run`.")
