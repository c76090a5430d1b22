"""Tests of `lockstep.training.pace`: speed and time left, from given times."""

import pytest

from lockstep.training.pace import WINDOW_SECS, Pace, status_line


def paced(total_steps, *loops):
    pace = Pace(total_steps)
    for loop in loops:
        pace.update(*loop)
    return pace


def test_one_loop_has_no_speed():
    pace = paced(10, (5.0, 1, 4))
    assert pace.examples_per_sec is None
    assert pace.secs_left is None


def test_speed_leaves_the_first_loop_out():
    pace = paced(10, (100.0, 1, 4), (102.0, 4, 16))
    assert pace.examples_per_sec == 8.0
    assert pace.secs_left == 2.5


def test_speed_is_that_of_the_window():
    slow = [(float(second), 1, 1) for second in range(10)]
    fast = [(10.0 + second, 1, 100) for second in range(int(WINDOW_SECS) + 1)]
    assert paced(None, *slow, *fast).examples_per_sec == 100.0


def test_time_left_needs_a_total():
    assert paced(None, (0.0, 1, 1), (1.0, 1, 1)).secs_left is None


def test_no_time_between_loops_gives_no_speed():
    assert paced(10, (1.0, 1, 1), (1.0, 1, 1)).examples_per_sec is None


def test_the_line_of_a_run_tells_all():
    pace = paced(300, (10.0, 1, 128), (10.5, 11, 1280))
    assert status_line(pace, {"loss": 0.25, "accuracy": 1}) == (
        "step 12/300, loss 0.2500, accuracy 1.0000, 2,560 examples/s, 0:14 left"
    )


def test_the_line_leaves_out_what_is_unknown():
    assert status_line(paced(None, (0.0, 3, 12)), {}) == "step 3"


def test_the_last_line_has_no_time_left():
    assert status_line(paced(2, (0.0, 1, 1), (1.0, 1, 1)), {}) == "step 2/2, 1 examples/s"


@pytest.mark.parametrize("steps_left, text", [(59, "0:59"), (60, "1:00"), (3599, "59:59"), (36061, "10:01:01")])
def test_time_left_is_read_as_a_clock(steps_left, text):
    pace = paced(2 + steps_left, (0.0, 1, 1), (1.0, 1, 1))
    assert status_line(pace, {}).endswith(f"{text} left")


@pytest.mark.parametrize(
    "value, text",
    [(0.0, "0.0000"), (0.5, "0.5000"), (-2.0, "-2.0000"), (1e-4, "1.00e-04"), (123456.0, "1.23e+05")],
)
def test_values_are_short(value, text):
    assert status_line(paced(None, (0.0, 1, 1)), {"x": value}) == f"step 1, x {text}"


@pytest.mark.parametrize("value, text", [(float("nan"), "nan"), (float("inf"), "inf")])
def test_values_that_are_not_finite_are_shown(value, text):
    assert status_line(paced(None, (0.0, 1, 1)), {"loss": value}) == f"step 1, loss {text}"
