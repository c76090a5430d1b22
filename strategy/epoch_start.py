"""Where the random orders of a dataset stand: what the next epochs' order depends on.

A dataset that shuffles anew in each epoch draws the epoch's order when an iterator is made. TensorFlow saves in an
iterator how many orders have been drawn, but not once the iterator has read all of its input; and restoring such an
iterator draws one more. So the state of the fresh iterator is kept too, and restored last.
"""

from __future__ import annotations

import tensorflow as tf

_STATE = "_STATE"


class EpochStart:
    """The state of an iterator when it was made.

    Args:
        dataset: What it iterates over.
        steps: The iterator, from which nothing has been taken.
    """

    def __init__(self, dataset: tf.data.Dataset, steps: tf.data.Iterator):
        self._dataset = dataset
        try:
            self._state = state_of(steps)
        except tf.errors.OpError:
            self._state = tf.constant("")  # Its position cannot be saved either, which says so when it is tried.

    @property
    def state(self) -> tf.Tensor:
        """The state as a string scalar."""
        return self._state

    def restore(self, saved: tf.Tensor) -> None:
        """Lets the next iterator over the dataset draw the order that followed on `saved`."""
        self._state = saved
        if tf.strings.length(saved):
            restore_state(iter(self._dataset), saved)


def state_of(steps: tf.data.Iterator) -> tf.Tensor:
    """Where an iterator stands, a string scalar."""
    return tf.io.serialize_tensor(steps._serialize_to_tensors()[_STATE])


def restore_state(steps: tf.data.Iterator, saved: tf.Tensor) -> None:
    """Puts an iterator where `state_of` found another one over the same dataset."""
    steps._restore_from_tensors({_STATE: tf.io.parse_tensor(saved, tf.variant)})
