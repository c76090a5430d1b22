"""Gradients through replicas that run one by one: a tape around `strategy.run` of a plain function.

Tapes record on one thread only, and each replica has a thread of its own. So each replica's run has its own tape, and
the run as a whole has a gradient that plays the replicas' tapes backwards, again one by one, so that the gradients of
collectives meet.

The gradient reaches what the replicas are known to depend on: arguments, tensors in the function's own closure, and
variables that the replicas' tapes watch.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator, Sequence

import tensorflow as tf

from .function_key import Closure
from .launch_gradient import no_second_gradient
from .one_by_one import run_one_by_one
from .replicated_variable import ReplicatedVariable
from .values import PerReplica, regroup, select


def run_one_by_one_taped(strategy: tf.distribute.Strategy, function: Callable[..., Any], args: Sequence[Any],
                         kwargs: dict[str, Any]) -> Any:
    """`run_one_by_one`, recorded on the tapes that are open.

    Raises:
        LookupError: The gradient is differentiated again.
    """
    size = len(strategy.extended.worker_devices)
    closure = Closure(function)
    given = (tuple(args), kwargs, closure.lifted)
    tapes = [tf.GradientTape(persistent=True) for _ in range(size)]
    inputs = [_floats(select(index, given)) for index in range(size)]

    def taped(index: int, args: Any, kwargs: Any) -> Any:
        with tapes[index]:
            for tensor in inputs[index]:
                tapes[index].watch(tensor)
            return closure.of_replica(index)(*args, **kwargs)

    result = run_one_by_one(strategy, taped, (PerReplica(range(size)), tuple(args), kwargs), {})
    results = [_floats(select(index, result)) for index in range(size)]
    variables = _watched_copies(strategy, tapes)
    num_inputs, num_results = len(inputs[0]), len(results[0])

    def pull_back(index: int, upstream: Sequence[tf.Tensor]) -> list[Any]:
        sources = [*inputs[index], *(copies[index] for copies in variables)]
        return tapes[index].gradient(results[index], sources, list(upstream))

    @tf.custom_gradient
    def linked(*sources: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., list[Any]]]:
        def gradient(*upstream: tf.Tensor) -> list[Any]:
            parts = [upstream[index * num_results:(index + 1) * num_results] for index in range(size)]
            found = run_one_by_one(strategy, pull_back, (PerReplica(range(size)), PerReplica(parts)), {})
            own = [select(index, found) for index in range(size)]
            return _only_once([*(one for gradients in own for one in gradients[:num_inputs]),
                               *map(strategy.extended.total_gradient, zip(*(one[num_inputs:] for one in own)))],
                              [*sources, *upstream])

        return [tensor for own in results for tensor in own], gradient

    sources = [*(tensor for own in inputs for tensor in own), *(copies[0].value() for copies in variables)]
    if not sources or not num_results:
        return result
    outputs = iter(linked(*sources))
    return regroup([_with_floats(select(index, result), outputs) for index in range(size)])


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, tf.Tensor) and (leaf.dtype.is_floating or leaf.dtype.is_complex)


def _floats(structure: Any) -> list[tf.Tensor]:
    return [leaf for leaf in tf.nest.flatten(structure, expand_composites=True) if _is_float(leaf)]


def _with_floats(structure: Any, floats: Iterator[tf.Tensor]) -> Any:
    leaves = [next(floats) if _is_float(leaf) else leaf for leaf in tf.nest.flatten(structure, expand_composites=True)]
    return tf.nest.pack_sequence_as(structure, leaves, expand_composites=True)


def _watched_copies(strategy: tf.distribute.Strategy, tapes: Sequence[tf.GradientTape]) -> list[Sequence[tf.Variable]]:
    """By variable that a tape has watched: the copy of each replica."""
    found = {id(variable): variable for tape in tapes for variable in
             map(strategy.extended.value_container, tape.watched_variables())}
    return [variable.values if isinstance(variable, ReplicatedVariable) else (variable,) * len(tapes)
            for variable in found.values()]


def _only_once(gradients: Sequence[Any], sources: Sequence[tf.Tensor]) -> list[Any]:
    """The gradients, tied to what they depend on so that differentiating them again raises."""
    flat = [leaf for leaf in tf.nest.flatten(list(gradients), expand_composites=True) if leaf is not None]
    tied = iter(tf.custom_gradient(lambda *unused: (flat, no_second_gradient))(*sources))
    leaves = [None if leaf is None else next(tied)
              for leaf in tf.nest.flatten(list(gradients), expand_composites=True)]
    return tf.nest.pack_sequence_as(list(gradients), leaves, expand_composites=True)
