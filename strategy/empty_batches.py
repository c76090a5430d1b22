"""Ops that cannot take a batch of no rows, in a step that a replica may run on none.

A global batch with fewer rows than replicas leaves some of them without any. TensorFlow's kernels for convolution and
pooling then end the process (`MaxPool`: a failed check), fail, or return another shape (when they are fused with what
follows). So while a body is traced, each such op whose number of rows is not known is put in a branch that is taken
where there are rows; where there are none, its result is zeros.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Sequence

import tensorflow as tf

from . import replica_scope

Inputs = Sequence[tf.Tensor]


def _like_output(inputs: Inputs, output: tf.Tensor) -> tf.Tensor | None:
    """The output's static shape with no rows; None where more than the rows is unknown."""
    if output.shape.rank is None or not output.shape[1:].is_fully_defined():
        return None
    return tf.constant([0, *output.shape[1:]], tf.int32)


# Op -> (the input that has the rows, the shape of the result where there are none).
_SHAPES: dict[str, tuple[int, Callable[[Inputs, tf.Tensor], tf.Tensor | None]]] = {
    **{op: (0, _like_output) for op in (
        "Conv2D", "Conv3D", "DepthwiseConv2dNative", "MaxPool", "MaxPool3D", "AvgPool", "AvgPool3D")},
    **{op: (0, lambda inputs, output: inputs[1]) for op in (
        "Conv2DBackpropFilter", "Conv3DBackpropFilterV2", "DepthwiseConv2dNativeBackpropFilter")},
    **{op: (2, lambda inputs, output: inputs[0]) for op in (
        "Conv2DBackpropInput", "Conv3DBackpropInputV2", "DepthwiseConv2dNativeBackpropInput")},
    **{op: (0, lambda inputs, output: tf.shape(inputs[0])) for op in ("MaxPoolGrad", "MaxPool3DGrad")},
    **{op: (1, lambda inputs, output: inputs[0]) for op in ("AvgPoolGrad", "AvgPool3DGrad")},
}


class _Guarding(threading.local):
    active = False


_guarding = _Guarding()


def on_op(op_type: str, inputs: Inputs, attrs: Any, outputs: Sequence[tf.Tensor], op_name: Any = None,
          graph: Any = None) -> Sequence[tf.Tensor] | None:
    """Called for each op of a body as it is made; returns what stands in for its outputs, or None."""
    if op_type not in _SHAPES or graph is None or _guarding.active:
        return None
    scope = replica_scope.current()
    position, shape_of = _SHAPES[op_type]
    batch, output = inputs[position], outputs[0]
    if scope is None or scope.member.size == 1 or batch.shape.rank is None or batch.shape[0] is not None:
        return None
    _guarding.active = True
    try:
        shape = shape_of(inputs, output)
        if shape is None:
            return None
        named = {name: value for name, value in output.op.node_def.attr.items() if not name.startswith("_")}

        def compute() -> tf.Tensor:
            branch = tf.compat.v1.get_default_graph()
            return branch.create_op(op_type, list(inputs), [output.dtype], attrs=named).outputs[0]

        result = tf.cond(tf.shape(batch)[0] > 0, compute, lambda: tf.zeros(shape, output.dtype))
    finally:
        _guarding.active = False
    result.set_shape(output.shape)
    # The op that is replaced stays in the graph, unused. Without a control input TensorFlow would fuse it with what
    # takes the same gradient, and bring it back to life.
    output.op._add_control_input(batch.op)
    return [result]
