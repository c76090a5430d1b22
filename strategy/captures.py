"""What the placeholders of a graph stand for: tensors of the graphs around it, and in the end eager ones."""

from __future__ import annotations

import tensorflow as tf

from ._tf import FuncGraph


def captured(placeholder: tf.Tensor) -> tf.Tensor | None:
    """What a placeholder stands for in the graph around its own, None where it stands for no capture."""
    graph = placeholder.graph
    if not isinstance(graph, FuncGraph):
        return None
    return next((outer for outer, inner in graph.captures if inner is placeholder), None)


def origin(tensor: tf.Tensor) -> tf.Tensor:
    """The eager tensor behind a capture, through the graphs around it; for what is none, the tensor itself."""
    while getattr(tensor, "graph", None) is not None:
        outer = captured(tensor) if tensor.op.type == "Placeholder" else None
        if outer is None:
            break
        tensor = outer
    return tensor
