"""Making replicated variables under `Strategy.scope()`.

A variable that is made while a step is traced (an optimizer's slots, on its first call) is lifted out of the trace and
made right away, once for all replicas: the step is not traced a second time for it.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import weakref
from typing import Any, Callable, Iterator

import tensorflow as tf

from ..collective.user_lines import user_line
from . import keras_corrections, over_workers, replica_scope
from ._tf import ResourceVariable, lift_to_graph
from .aggregation import check_new_variable
from .mirrored_variable import MirroredVariable
from .replicated_variable import ReplicatedVariable
from .sync_on_read_variable import SyncOnReadVariable

NextCreator = Callable[..., tf.Variable]

# What `tf.Variable` takes; the creator chain adds more that only TensorFlow's own creators understand.
_PUBLIC_ARGUMENTS = ("trainable", "validate_shape", "name", "dtype", "constraint", "shape")

# The package of Keras's own variable class.
_KERAS_VARIABLES = "keras.src.backend."

# How far up the stack Keras's variable class is looked for: tf.Variable's own creator chain is about this deep.
_FRAMES_TO_KERAS = 24


class _Making(threading.local):
    copies = False


_making = _Making()


def create_variable(strategy: tf.distribute.Strategy, next_creator: NextCreator, **kwargs: Any) -> tf.Variable:
    """Makes one variable with a copy on each of the strategy's devices, equal at the start.

    Args:
        strategy: The strategy in whose scope the variable is made.
        next_creator: The next creator in TensorFlow's chain.
        **kwargs: What the chain passes on; `synchronization` and `aggregation` choose the kind.
    """
    if _making.copies:
        return next_creator(**kwargs)
    synchronization = kwargs.pop("synchronization", None) or tf.VariableSynchronization.AUTO
    aggregation = _public_aggregation(kwargs.pop("aggregation", None))
    kwargs.pop("colocate_with", None)
    kwargs.pop("distribute_strategy", None)
    name = kwargs.get("name") or "Variable"
    dtype = kwargs.get("dtype")
    check_new_variable(name, synchronization, aggregation, None if dtype is None else tf.as_dtype(dtype))
    if kwargs.get("trainable") is None:
        kwargs["trainable"] = synchronization is not tf.VariableSynchronization.ON_READ
    made_by_keras = _called_from_keras()
    keras_corrections.install()

    def make() -> ReplicatedVariable:
        with _making_copies():
            copies = _make_copies(strategy, next_creator, kwargs)
        check_new_variable(copies[0].name, synchronization, aggregation, copies[0].dtype)
        kind = SyncOnReadVariable if synchronization is tf.VariableSynchronization.ON_READ else MirroredVariable
        is_sum = kind is SyncOnReadVariable and aggregation is tf.VariableAggregation.SUM
        # Keras's gradient accumulators are each replica's own, and added up when the gradients are reduced.
        is_sum |= made_by_keras and _base_name(name).endswith("gradient_accumulator")
        return kind(strategy, copies, aggregation, made_by_keras, is_sum)

    scope = replica_scope.current()
    if scope is not None and not scope.is_traced_once and scope.member.size > 1:
        # Replicas that run one by one share the variable that the first one asks for in the same place.
        return scope.member.once((name, kwargs.get("dtype"), synchronization, aggregation, kwargs["trainable"],
                                  user_line()), make)
    made = make()
    if scope is not None and scope.is_traced_once and _made_in_trace.variables is not None:
        _made_in_trace.variables.append((made.name, user_line(), weakref.ref(made)))
    return made


@contextlib.contextmanager
def kept_by_the_program(step: str) -> Iterator[None]:
    """While it lasts, a step is traced; the variables that it makes must be there afterwards.

    Raises:
        ValueError: One is not: every call would need a new one, and the step is traced once.
    """
    before, _made_in_trace.variables = _made_in_trace.variables, []
    try:
        yield
        made = _made_in_trace.variables
    finally:
        _made_in_trace.variables = before
    if not made:
        return
    gc.collect()  # Autograph's frames hold what the step has made, in cycles.
    lost = [(name, line) for name, line, variable in made if variable() is None]
    if lost:
        listed = ", ".join(f"{name!r} ({line})" for name, line in lost[:3])
        more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
        raise ValueError(
            f"`strategy.run`: the step {step!r} makes a variable in each call, and keeps it nowhere: {listed}{more}. A "
            "step is traced once. Make variables, layers and optimizers outside of it, under `strategy.scope()`, or "
            "keep what the first call makes.")


class _MadeInTrace(threading.local):
    variables: list[tuple[str, str, weakref.ref[tf.Variable]]] | None = None


_made_in_trace = _MadeInTrace()


def _public_aggregation(aggregation: Any) -> Any:
    """`tf.VariableAggregation`'s member for what the creator chain passes on: its default is TensorFlow 1's enum."""
    for member in tf.VariableAggregation:
        if aggregation == member:
            return member
    return tf.VariableAggregation.NONE if aggregation is None else aggregation


def make_own_variable(strategy: tf.distribute.Strategy, start: Callable[[int], Any], dtype: tf.DType,
                      name: str) -> SyncOnReadVariable:
    """Makes a variable of each replica's own, with a start value for each; also while a step is traced.

    Args:
        strategy: The strategy whose replicas own the copies.
        start: Gives the value of a replica's copy.
        dtype: The variable's dtype.
        name: The variable's name.
    """
    copies = []
    with tf.init_scope():
        for replica, device in enumerate(strategy.extended.worker_devices, start=strategy.extended.first_replica):
            with tf.device(device):
                copies.append(ResourceVariable(start(replica), trainable=False, dtype=dtype, name=f"{name}/{replica}"))
    return SyncOnReadVariable(strategy, copies, tf.VariableAggregation.NONE)


def _make_copies(strategy: tf.distribute.Strategy, next_creator: NextCreator,
                 kwargs: dict[str, Any]) -> list[tf.Variable]:
    if tf.executing_eagerly():
        creator, arguments = next_creator, dict(kwargs)
    else:
        creator, arguments = ResourceVariable, {key: kwargs[key] for key in _PUBLIC_ARGUMENTS if key in kwargs}
        arguments["initial_value"] = _lifted(kwargs.get("initial_value"), kwargs.get("name"))
    copies: list[tf.Variable] = []
    with tf.init_scope():
        name = _base_name(arguments.get("name"))
        for index, device in enumerate(strategy.extended.worker_devices):
            if index:
                # The first copy's value, not the initializer again: that could draw other random numbers.
                arguments["initial_value"] = copies[0].read_value()
                arguments["name"] = f"{name}/replica_{index}"
            with tf.device(device):
                copies.append(creator(**arguments))
            if index == 0 and strategy.extended.workers is not None:
                # All workers start with the chief's value.
                copies[0].assign(over_workers.broadcast(
                    strategy.extended.workers, copies[0].read_value(), 0, f"the initial value of variable {name}"))
    return copies


def _base_name(name: str | None) -> str:
    return (name or "Variable").split(":")[0].rstrip("/")


def _lifted(initial_value: Any, name: str | None) -> Any:
    """An initial value that can be computed outside of the trace in which it was written."""
    if getattr(initial_value, "graph", None) is None or not tf.is_tensor(initial_value):
        return initial_value

    def recompute() -> tf.Tensor:
        with tf.init_scope():
            return tf.function(lambda: lift_to_graph([initial_value], tf.compat.v1.get_default_graph())
                               [initial_value])()

    try:
        return recompute()
    except Exception as error:
        raise ValueError(
            f"Variable {name!r}: its initial value depends on the inputs of the step in which it is made "
            f"({initial_value.name}). Variables are made once, before the step runs. Make it from constants, or pass a "
            "function as the initial value.") from error


def _called_from_keras() -> bool:
    frame = sys._getframe(1)
    for _ in range(_FRAMES_TO_KERAS):
        if frame.f_back is None:
            return False
        frame = frame.f_back
        if frame.f_globals.get("__name__", "").startswith(_KERAS_VARIABLES):
            return True
    return False


@contextlib.contextmanager
def _making_copies() -> Iterator[None]:
    _making.copies = True
    try:
        yield
    finally:
        _making.copies = False
