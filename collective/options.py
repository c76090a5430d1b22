"""Options of the collectives."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

IMPLEMENTATIONS = ("auto", "local", "ring", "nccl", "naive")


def is_integer(value: Any) -> bool:
    """Whether an argument is a whole number of Python or NumPy; True and False are none."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


@dataclasses.dataclass(frozen=True)
class CollectiveOptions:
    """How the replicas exchange tensors.

    >>> lockstep.CollectiveOptions(bucket_bytes=1 << 20).merge(implementation="ring")
    CollectiveOptions(implementation='ring', bucket_bytes=1048576, timeout_seconds=600.0, warn_seconds=30.0)

    Attributes:
        implementation: "auto" (NCCL where all replicas are GPUs, else "local"), "local" (replicas of one process add
            in shared memory, in a fixed order), "ring" or "nccl" (TensorFlow's collective op with that hint; dtypes
            that it does not know, such as uint8 and complex64, travel as "local"), or "naive" (one tensor at a time:
            the readable reference).
        bucket_bytes: Largest bucket, in bytes: tensors of one dtype travel together up to this size. A tensor that is
            larger alone, or whose size is not known when the step is traced, is a bucket of its own; 0 makes every
            tensor one.
        timeout_seconds: How long workers wait: for a peer that has not started, for one that shows no sign of life, and
            in an exchange for one that does not come. Then all raise `lockstep.PeerError`. A peer that is seen to trace
            or to save is not late. And how long the replicas of a process wait in an exchange of a launch, by "local"
            or "naive", for one that does not come: then the step raises `lockstep.CollectiveError`, once TensorFlow has
            been able to cancel what holds that one up, which it cannot while a Python function runs.
        warn_seconds: After which wait in an exchange a log line names those who are missing.

    Raises:
        ValueError: An unknown `implementation`, a negative `bucket_bytes`, or a wait that is not positive.
    """

    implementation: str = "auto"
    bucket_bytes: int = 32 << 20
    timeout_seconds: float = 600.0
    warn_seconds: float = 30.0

    def __post_init__(self) -> None:
        if self.implementation not in IMPLEMENTATIONS:
            raise ValueError(f"CollectiveOptions: `implementation` is {self.implementation!r}. "
                             f"Expected one of {', '.join(IMPLEMENTATIONS)}.")
        if not is_integer(self.bucket_bytes) or self.bucket_bytes < 0:
            raise ValueError(f"CollectiveOptions: `bucket_bytes` is {self.bucket_bytes!r}. "
                             "Expected a whole number of bytes, 0 or more.")

        for name in ("timeout_seconds", "warn_seconds"):
            seconds = getattr(self, name)
            if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not seconds > 0:
                raise ValueError(f"CollectiveOptions: `{name}` is {seconds!r}. Expected a number of seconds above 0.")

    def merge(self, **changes: str | int | float) -> "CollectiveOptions":
        """Returns a copy with some fields replaced."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]
