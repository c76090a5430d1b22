"""Switching corrections of Keras off in a test."""

import contextlib

import lockstep


@contextlib.contextmanager
def without(*names):
    """Switches corrections off."""
    for name in names:
        lockstep.set_keras_correction(name, enabled=False)
    try:
        yield
    finally:
        for name in names:
            lockstep.set_keras_correction(name, enabled=True)
