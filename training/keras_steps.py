"""A compiled Keras model as steps of a trainer: its loss, metrics and optimizer, and the numbers of its `fit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..strategy import Strategy


class KerasSteps:
    """What a trainer runs for a compiled model.

    The model's metrics add up in variables of their own. A call of the trainer begins with fresh ones, and reports
    what they say, after each loop of all that the call has seen, as `fit` does within an epoch.

    Args:
        model: A compiled `keras.Model`, made and compiled under a strategy's scope.

    Attributes:
        strategy: That strategy.

    Raises:
        TypeError: `model` is no model of Keras.
        ValueError: It is not compiled, or in a way that a trainer cannot follow, or under no strategy of Lockstep.
    """

    def __init__(self, model: Any):
        where = "`Trainer.from_keras`"
        for name in ("train_step", "test_step", "get_metrics_result", "compiled"):
            if not hasattr(model, name):
                raise TypeError(f"{where}: `model` is a {type(model).__name__}. Expected a compiled `keras.Model`.")
        if not model.compiled or model.optimizer is None:
            raise ValueError(f"{where}: the model {model.name!r} is not compiled with an optimizer. "
                             "Call `compile` under `strategy.scope()` first.")
        if not isinstance(model.distribute_strategy, Strategy):
            raise ValueError(f"{where}: the model {model.name!r} was made under no strategy of Lockstep. Make and "
                             "compile it under `strategy.scope()`.")
        for name, unwanted, advice in (
                ("jit_compile", True, "XLA cannot compile the exchange between replicas: compile it without"),
                ("run_eagerly", True, "Use `tf.config.run_functions_eagerly(True)`")):
            if getattr(model, name) is unwanted:
                raise ValueError(f"{where}: the model {model.name!r} is compiled with `{name}={unwanted}`. {advice}.")
        self.model = model
        self.strategy: Strategy = model.distribute_strategy

    def train_step(self, batch: Any) -> dict[str, Any]:
        """A step of training; its outputs are the metrics."""
        self.model.train_step(batch)
        return {}

    def eval_step(self, batch: Any) -> dict[str, Any]:
        """A step of evaluation; its outputs are the metrics."""
        self.model.test_step(batch)
        return {}

    def reset(self) -> None:
        """Begins the metrics anew."""
        self.model.reset_metrics()

    def result(self) -> dict[str, float]:
        """What the metrics say. Synchronisation: every worker calls."""
        return {name: float(value) for name, value in self.model.get_metrics_result().items()}

    def options(self, given: dict[str, Any]) -> dict[str, Any]:
        """The options of a trainer: those that are given, then what the model says."""
        known: dict[str, Any] = {"steps_per_loop": self.model.steps_per_execution}
        if given.get("model_dir") is not None:
            known["state"] = {"model": self.model, "optimizer": self.model.optimizer}
        return {**known, **given}


def metrics_of(step: Callable[[Any], Any]) -> KerasSteps | None:
    """What a step adds up besides its outputs: the metrics of the model whose step it is."""
    owner = getattr(step, "__self__", None)
    return owner if isinstance(owner, KerasSteps) else None
