"""What a program has asked a trainer to do, call by call, so that a program that starts anew goes on where it was.

A run that is continued starts the same program again, which calls `train` and `evaluate` in the same order. A call that
had ended returns what it returned; the one that was interrupted goes on; later ones run. A program that asks for more
than it did, 500 steps in place of 300, goes on from there too, and forgets what came after.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Sequence


@dataclasses.dataclass
class Call:
    """One call of `train` or `evaluate`.

    Attributes:
        kind: "train" or "evaluate".
        num_steps: How many steps it has run.
        num_epochs: How many ends of the data it has reached.
        seconds: How long its loops have taken.
        totals: What the steps have added up to, see step_outputs.py.
        result: What it has returned, None before.
        was_stopped: Whether it has returned before its limit was reached, or was the last, as an action has asked.
    """

    kind: str
    num_steps: int = 0
    num_epochs: int = 0
    seconds: float = 0.0
    totals: Sequence[float] = ()
    result: dict[str, float] | None = None
    was_stopped: bool = False

    def begin_again(self) -> None:
        """Forgets what the call has run: the next start of the run begins it anew."""
        self.num_steps, self.num_epochs, self.totals = 0, 0, ()


class CallRecord:
    """The calls so far."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._position = 0

    def begin(self, kind: str) -> Call:
        """The call that begins: one of an earlier run, or a new one.

        Raises:
            ValueError: The earlier run called something else here.
        """
        if self._position == len(self._calls):
            self._calls.append(Call(kind))
        call = self._calls[self._position]
        if call.kind != kind:
            raise ValueError(f"`{kind}`: call {self._position + 1} of this program, where the run that is continued "
                             f"called `{call.kind}`. A run is continued by the same program: choose another "
                             "`model_dir`.")
        self._position += 1
        return call

    def goes_on(self, call: Call) -> None:
        """Says that a call runs: what an earlier run did after it is no longer true."""
        del self._calls[self._position:]
        assert self._calls[-1] is call

    def to_json(self) -> list[dict[str, Any]]:
        """The calls that have begun."""
        return [dataclasses.asdict(call) for call in self._calls[:self._position]]

    def restore(self, calls: Sequence[dict[str, Any]]) -> None:
        """Takes the calls of an earlier run; this one has not called anything yet."""
        self._calls = [Call(**call) for call in calls]
