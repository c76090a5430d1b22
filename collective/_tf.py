"""The private TensorFlow that collective/ touches, in one place.

tests/source/private_tensorflow_test.py lists what is imported from `tensorflow.python`, with the reasons; this layer
imports nothing from there. It uses a few private members of what public TensorFlow hands out.
"""

from __future__ import annotations

from typing import Any, Sequence

import tensorflow as tf

ANNOTATION = "_lockstep_collective"


def annotate(op: tf.Operation, text: str) -> None:
    """Writes `text` on a graph op, where `Strategy.plan` finds it, also inside functions that were traced before."""
    op._set_attr(ANNOTATION, tf.compat.v1.AttrValue(s=text.encode()))


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


def leave_optimized(call: tf.Operation) -> None:
    """Keeps TensorFlow from optimising a called function once more when the call starts.

    The outermost function is optimised together with all functions that it reaches. After that every call on the way
    would have its function, and all that is in it, optimised again: a step once for each replica, and twice more.
    """
    config = tf.compat.v1.ConfigProto.FromString(call.get_attr("config_proto"))
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    call._set_attr("config_proto", tf.compat.v1.AttrValue(s=config.SerializeToString()))
