"""The series that a run's log holds: its outputs and its throughput over the step, thinned where the log is long.

    lines = read_log("run/log.jsonl")
    loss = thinned(output_series(lines, "train", "loss"))
    rate = thinned(throughput_series(lines))
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Iterable, Sequence

import numpy as np

from .run_log import LogLine

MAX_POINTS = 500


@dataclasses.dataclass(frozen=True)
class Series:
    """Values over the step.

    Attributes:
        steps: Where the values stand, a float64 vector.
        values: As long; NaN is a gap.
        weights: As long; what each value counts in a mean.
    """

    steps: np.ndarray
    values: np.ndarray
    weights: np.ndarray


def output_names(lines: Iterable[LogLine]) -> list[str]:
    """The names of all outputs, in the order in which they first appear."""
    return list(dict.fromkeys(name for line in lines for name in line.outputs))


def output_series(lines: Iterable[LogLine], call: str, name: str) -> Series:
    """An output of the calls of one kind, weighed by rows; what is not finite, or of no rows, is a gap."""
    return _series([(line.step, line.outputs[name] if line.rows else math.nan, line.rows)
                    for line in lines if line.call == call and name in line.outputs])


def throughput_series(lines: Iterable[LogLine]) -> Series:
    """The rows per second of training, weighed by seconds, so that a mean is again rows per second.

    The time of a line runs from the line before, so the first one of each start of the program has none; between two
    starts is a gap. Lines of the same instant count as one.
    """
    points: list[tuple[float, float, float]] = []
    before = math.inf
    for seconds, group in itertools.groupby(lines, lambda line: line.seconds):
        together = list(group)
        step = together[-1].step
        rows = sum(line.rows for line in together if line.call == "train")
        if seconds < before:
            if points:
                points.append((step, math.nan, 0.0))
        elif any(line.call == "train" for line in together):
            points.append((step, rows / (seconds - before), seconds - before))
        before = seconds
    return _series(points)


def thinned(series: Series, max_points: int = MAX_POINTS) -> Series:
    """Averages neighbours where there are more than so many points.

    Each mean stands at the last of its steps, as a line of the log does. A mean over a gap is a gap.
    """
    count = len(series.steps)
    if count <= max_points:
        return series
    starts = np.arange(0, count, math.ceil(count / max_points))
    weights = np.add.reduceat(series.weights, starts)
    return Series(series.steps[np.append(starts[1:], count) - 1],
                  np.add.reduceat(series.values * series.weights, starts) / weights, weights)


def _series(points: Sequence[tuple[float, float, float]]) -> Series:
    steps, values, weights = np.array(points, np.float64).reshape(-1, 3).T
    return Series(steps, np.where(np.isfinite(values), values, np.nan), weights)
