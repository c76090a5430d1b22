"""The private TensorFlow that collective/ touches, in one place.

tests/source/private_tensorflow_test.py lists what is imported from `tensorflow.python`, with the reasons; this layer
imports nothing from there. It uses one private method of a public class, in `annotate`.
"""

import tensorflow as tf

ANNOTATION = "_lockstep_collective"


def annotate(op: tf.Operation, text: str) -> None:
    """Writes `text` on a graph op, where `Strategy.plan` finds it, also inside functions that were traced before."""
    op._set_attr(ANNOTATION, tf.compat.v1.AttrValue(s=text.encode()))
