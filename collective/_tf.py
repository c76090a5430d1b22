"""The private TensorFlow that collective/ touches, in one place.

tests/source/private_tensorflow_test.py lists what is imported from `tensorflow.python`, with the reasons.
"""

from __future__ import annotations

from typing import Any, Callable, Sequence

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.util.tf_stack import extract_stack

__all__ = [
    "ANNOTATION", "SHARED_RESULTS", "annotate", "call_once", "extract_stack", "is_for_xla", "leave_optimized",
    "mark_shared", "outside_of_loops", "with_gradient",
]

ANNOTATION = "_lockstep_collective"
SHARED_RESULTS = "_lockstep_shared_results"


def annotate(op: tf.Operation, text: str) -> None:
    """Writes `text` on a graph op, where `Strategy.plan` finds it, also inside functions that were traced before."""
    op._set_attr(ANNOTATION, tf.compat.v1.AttrValue(s=text.encode()))


def with_gradient(function: Callable[[Sequence[tf.Tensor]], Sequence[tf.Tensor]], gradient: Callable[..., Any],
                  tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """`function(tensors)`, with a gradient of its own.

    `tf.custom_gradient` would keep every graph that it is used in for ever, in TensorFlow's registry of gradients.

    Args:
        function: Computes the results; nothing in it is differentiated.
        gradient: From the gradients of the results to those of `tensors`.
        tensors: The operands.
    """
    if tf.executing_eagerly():
        return list(tf.custom_gradient(lambda *operands: (list(function(operands)), gradient))(*tensors))
    with record.stop_recording():
        results = list(function(tensors))
        outputs = tf.identity_n([*results, *tensors])

    def pull_back(*upstream: tf.Tensor) -> list[Any]:
        return [None] * len(results) + list(gradient(*upstream[:len(results)]))

    outputs[0].op._gradient_function = lambda op, *upstream: pull_back(*upstream)
    record.record_operation("IdentityN", outputs, [*results, *tensors], pull_back)
    return outputs[:len(results)]


def mark_shared(results: Sequence[tf.Tensor]) -> None:
    """Marks the first outputs of a graph op, all that are given, as what a collective has made the same for all."""
    op = results[0].op
    assert all(result.op is op for result in results)
    op._set_attr(SHARED_RESULTS, tf.compat.v1.AttrValue(i=len(results)))


def call_once(function: Any, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Calls a `tf.function` that is called nowhere else, with flat tensors, in the graph that is built.

    What the function captures is captured outside of the loops and branches around the call: TensorFlow 2.21 cannot
    differentiate a loop whose gradient captures an eager tensor, such as the handle of a queue, on its own.
    """
    concrete = function.get_concrete_function(*tensors)
    return list(concrete.inference_fn.call_flat(*tensors, *map(outside_of_loops, concrete.captured_inputs)))


def outside_of_loops(eager: tf.Tensor) -> tf.Tensor:
    """An eager tensor as the graph around all current loops and branches captures it."""
    graph = tf.compat.v1.get_default_graph()
    while type(graph).__name__ != "FuncGraph" and getattr(graph, "outer_graph", None) is not None:
        graph = graph.outer_graph
    return graph.capture(eager) if hasattr(graph, "capture") else eager


def is_for_xla(graph: Any) -> bool:
    """Whether a graph is, or belongs to, that of a function with `jit_compile=True`."""
    while graph is not None:
        place = graph._get_control_flow_context()
        while place is not None:
            if place.IsXLAContext():
                return True
            place = place.outer_context
        graph = getattr(graph, "outer_graph", None)
    return False


def leave_optimized(call: tf.Operation) -> None:
    """Keeps TensorFlow from optimising a called function once more when the call starts.

    The outermost function is optimised together with all functions that it reaches. After that every call on the way
    would have its function, and all that is in it, optimised again: a step once for each replica, and twice more.
    """
    config = tf.compat.v1.ConfigProto.FromString(call.get_attr("config_proto"))
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    call._set_attr("config_proto", tf.compat.v1.AttrValue(s=config.SerializeToString()))
