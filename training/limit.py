"""When a call of the trainer has run enough: after so many steps, ends of the data, or seconds."""

from __future__ import annotations

import dataclasses
from typing import Any

from .batch_source import BatchSource, DistributedData
from .call_record import Call
from .checks import check_finite, positive, positive_number


@dataclasses.dataclass(frozen=True)
class Limit:
    """The end of a call; of what is given, the first that is reached.

    Attributes:
        steps: How many steps.
        epochs: How many ends of the data.
        seconds: How much time in loops, on whichever worker it is over first; those of an earlier start of the run
            count.
    """

    steps: int | None = None
    epochs: int | None = None
    seconds: float | None = None

    @classmethod
    def checked(cls, where: str, data: DistributedData, steps: Any, epochs: Any, seconds: Any) -> Limit:
        """The limit that a caller of `where` gives.

        Raises:
            ValueError: It is none, or one of epochs of data that has no end.
        """
        if steps is not None and epochs is not None or steps is epochs is seconds is None:
            raise ValueError(
                f"`{where}`: got `steps` {steps}, `epochs` {epochs} and `seconds` {seconds}. Expected steps or epochs, "
                f"and seconds beside them or alone. Write `{where}(steps=1000)` or `{where}(epochs=10, seconds=3600)`.")
        if steps is not None:
            positive(where, "steps", steps)
        if epochs is not None:
            positive(where, "epochs", epochs)
            check_finite(data, where, "train_data", f"Use `{where}(steps=...)`")
        if seconds is not None:
            positive_number(where, "seconds", seconds)
        return cls(steps, epochs, seconds)

    def is_reached(self, call: Call) -> bool:
        """Whether there is nothing left to run."""
        return (call.was_stopped or self.steps is not None and call.num_steps >= self.steps
                or self.epochs is not None and call.num_epochs >= self.epochs)

    def is_over_time(self, call: Call) -> bool:
        """Whether this worker's time is over; the workers agree on a stop."""
        return self.seconds is not None and call.seconds >= self.seconds

    def steps_of_loop(self, call: Call, steps_per_loop: int) -> int:
        """How many steps the next loop may run."""
        return steps_per_loop if self.steps is None else min(steps_per_loop, self.steps - call.num_steps)

    def steps_left(self, call: Call, source: BatchSource) -> int | None:
        """How many steps are left, None where that is unknown."""
        if self.steps is not None:
            return self.steps - call.num_steps
        return None if self.epochs is None else source.steps_to_end(self.epochs - call.num_epochs)

    def part(self, every: int, done: int, spent: float) -> Limit:
        """The limit of the next part, of `every` epochs where this one has epochs, else of `every` steps.

        Args:
            every: The length of a part.
            done: How many epochs, or steps, earlier parts have run.
            spent: How many seconds they took.
        """
        seconds = None if self.seconds is None else self.seconds - spent
        if self.epochs is not None:
            return Limit(epochs=min(every, self.epochs - done), seconds=seconds)
        return Limit(steps=every if self.steps is None else min(every, self.steps - done), seconds=seconds)
