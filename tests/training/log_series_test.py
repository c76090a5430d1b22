"""The series of a log: which lines they hold, the rows per second between lines, and means that keep what they mean."""

import math

import numpy as np
import pytest

from lockstep.training.log_series import Series, output_names, output_series, thinned, throughput_series
from lockstep.training.run_log import LogLine


def train(step, seconds, rows=10, **outputs):
    return LogLine("train", step, rows, outputs, seconds)


def evaluate(step, seconds, rows=10, **outputs):
    return LogLine("evaluate", step, rows, outputs, seconds)


def lists(series):
    return series.steps.tolist(), series.values.tolist(), series.weights.tolist()


def test_names_stand_in_the_order_in_which_they_first_appear():
    assert output_names([train(1, 1, b=1.0), train(2, 2, a=1.0, b=1.0), evaluate(2, 3, c=1.0)]) == ["b", "a", "c"]


def test_an_output_is_taken_from_the_lines_of_one_call_that_have_it():
    lines = [train(1, 1, 4, x=0.5), evaluate(1, 2, 9, x=0.75), train(2, 3, y=8.0), train(3, 4, 2, x=0.25)]
    assert lists(output_series(lines, "train", "x")) == ([1, 3], [0.5, 0.25], [4, 2])
    assert lists(output_series(lines, "evaluate", "x")) == ([1], [0.75], [9])
    assert lists(output_series(lines, "evaluate", "y")) == ([], [], [])


@pytest.mark.parametrize("value, rows", [(math.nan, 10), (math.inf, 10), (-math.inf, 10), (0.0, 0)])
def test_what_is_not_finite_or_of_no_rows_is_a_gap(value, rows):
    values = output_series([train(1, 1, x=1.0), train(2, 2, rows, x=value)], "train", "x").values
    np.testing.assert_array_equal(values, [1.0, math.nan])


def test_throughput_is_rows_over_the_time_since_the_line_before_evaluations_too():
    lines = [train(2, 5.0, 64), train(4, 5.5, 64), evaluate(4, 9.5, 1000), train(6, 10.5, 32)]
    assert lists(throughput_series(lines)) == ([4, 6], [128.0, 32.0], [0.5, 1.0])


def test_lines_of_the_same_instant_count_as_one():
    lines = [train(1, 1.0), train(2, 1.0), train(3, 1.5), train(4, 1.5), train(5, 2.0)]
    assert lists(throughput_series(lines)) == ([4, 5], [40.0, 20.0], [0.5, 0.5])


@pytest.mark.parametrize("first", [train(3, 0.5), evaluate(2, 0.5)])
def test_a_run_that_was_continued_starts_a_new_segment_at_its_first_line(first):
    series = throughput_series([train(1, 7.0), train(2, 8.0), first, train(4, 1.0)])
    assert series.steps.tolist() == [2, first.step, 4]
    np.testing.assert_array_equal(series.values, [10.0, math.nan, 20.0])
    assert series.weights.tolist() == [1.0, 0.0, 0.5]


@pytest.mark.parametrize("lines", [[], [train(1, 1.0)], [train(1, 1.0), train(2, 1.0)],
                                   [train(1, 2.0), train(2, 1.0)], [evaluate(0, 1.0), evaluate(0, 2.0)]])
def test_without_time_between_two_lines_of_training_there_is_no_throughput(lines):
    assert lists(throughput_series(lines)) == ([], [], [])


def test_a_short_series_is_not_thinned():
    series = Series(np.arange(5.0), np.arange(5.0), np.zeros(5))
    assert thinned(series, max_points=5) is series


def test_thinning_averages_neighbours_by_weight_at_the_last_of_their_steps():
    series = Series(np.arange(1.0, 6.0), np.array([0.0, 4.0, 1.0, 1.0, 7.0]), np.array([1.0, 3.0, 2.0, 2.0, 5.0]))
    assert lists(thinned(series, max_points=3)) == ([2, 4, 5], [3.0, 1.0, 7.0], [4, 4, 5])


@pytest.mark.parametrize("count", [501, 999, 1000, 1001, 12345])
def test_thinning_keeps_the_weighted_mean_and_the_last_step(count):
    numbers = np.arange(count, dtype=np.float64)
    series = Series(numbers, numbers % 7, 1 + numbers % 3)
    thin = thinned(series)
    assert 250 < len(thin.steps) <= 500
    assert thin.steps[-1] == count - 1
    assert thin.weights.sum() == series.weights.sum()
    np.testing.assert_allclose(np.average(thin.values, weights=thin.weights),
                               np.average(series.values, weights=series.weights), rtol=1e-12)


def test_thinned_throughput_is_all_rows_over_all_seconds():
    thin = thinned(throughput_series([train(0, 0.0), train(1, 1.0, 10), train(2, 4.0, 60), train(3, 6.0, 40)]), 2)
    assert lists(thin) == ([2, 3], [70 / 4, 20.0], [4, 2])


def test_a_gap_stays_a_gap_when_thinned():
    series = Series(np.arange(4.0), np.array([1.0, math.nan, 2.0, 2.0]), np.array([1.0, 0.0, 1.0, 1.0]))
    np.testing.assert_array_equal(thinned(series, max_points=2).values, [math.nan, 2.0])
