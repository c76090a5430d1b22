"""The private TensorFlow that collective/ touches, in one place.

tests/source/private_tensorflow_test.py lists what is imported from `tensorflow.python`, with the reasons; this layer
imports nothing from there. It uses one private method of a public class, `tf.Operation._set_attr`.
"""

import tensorflow as tf

ANNOTATION = "_lockstep_collective"


def annotate(op: tf.Operation, text: str) -> None:
    """Writes `text` on a graph op, where `Strategy.plan` finds it, also inside functions that were traced before."""
    op._set_attr(ANNOTATION, tf.compat.v1.AttrValue(s=text.encode()))


def leave_optimized(call: tf.Operation) -> None:
    """Keeps TensorFlow from optimising a called function once more when the call starts.

    The outermost function is optimised together with all functions that it reaches. After that every call on the way
    would have its function, and all that is in it, optimised again: a step once for each replica, and twice more.
    """
    config = tf.compat.v1.ConfigProto.FromString(call.get_attr("config_proto"))
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    call._set_attr("config_proto", tf.compat.v1.AttrValue(s=config.SerializeToString()))
