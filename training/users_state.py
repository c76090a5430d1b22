"""What checkpoints hold of the user's: models, optimizers, variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf


class UsersState:
    """The user's state, by name.

    Args:
        state: What the user has given.
        reserved: Names that it must not have.

    Raises:
        ValueError: It is none.
    """

    def __init__(self, state: Mapping[str, Any] | None, reserved: Sequence[str]):
        if not state or any(name in reserved or not name.isidentifier() for name in state):
            raise ValueError(f"`Trainer`: `state` is {state!r}. Expected a dict of what checkpoints shall hold, such "
                             f"as {{'model': model, 'optimizer': optimizer}}, with other names than {reserved}.")
        self._state = dict(state)

    def to_save(self) -> dict[str, Any]:
        """What `tf.train.Checkpoint` takes, by name."""
        return {**self._state, **self._lists_of_keras()}

    @property
    def keras_variables(self) -> list[tf.Variable]:
        """The variables of Keras's objects, some of them more than once."""
        return [variable for listed in self._lists_of_keras().values() for variable in listed]

    def _lists_of_keras(self) -> dict[str, list[tf.Variable]]:
        """What a Keras object tracks leaves out its seeds and metrics: its lists of variables have all."""
        return {f"{name}_{kind}": [variable.value for variable in getattr(value, kind)]
                for name, value in self._state.items() if _is_kerass(value)
                for kind in ("variables", "metrics_variables") if hasattr(value, kind)}


def _is_kerass(value: Any) -> bool:
    """Whether a value is a model, layer, optimizer or the like of Keras."""
    return any(kind.__module__.startswith("keras.") for kind in type(value).__mro__) and hasattr(value, "variables")
