"""Tests of `lockstep.training.loop`: a number of steps goes in, totals come out."""

import pytest
import tensorflow as tf

from lockstep.training.loop import make_loop, no_totals
from lockstep.training.step_outputs import StepOutputs
from testing.replicas import mirrored


def steps(count):
    return tf.constant(count, tf.int64)


class Setup:
    """A loop over 1..10 in batches of 4, whose step reports its rows and counts its traces."""

    def __init__(self, num_replicas, num_rows=10):
        self.strategy = mirrored(num_replicas)
        self.traces = 0
        self.outputs = StepOutputs("train_step")
        with self.strategy.scope():
            self.counter = tf.Variable(0, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
        self.loop = make_loop(self.strategy, self.step, self.outputs, self.counter)
        dataset = tf.data.Dataset.range(1, num_rows + 1).batch(4)
        self.data = self.strategy.experimental_distribute_dataset(dataset)

    def step(self, rows):
        self.traces += 1
        return {"x": rows}

    def run(self, iterator, count, totals):
        result = self.loop(iterator, steps(count), totals)
        return int(result["num_steps"]), result["totals"]


@pytest.mark.parametrize("num_replicas", [1, 2, 4])
def test_a_loop_runs_as_many_steps_as_asked(num_replicas):
    setup = Setup(num_replicas)
    ran, totals = setup.run(iter(setup.data), 2, no_totals())
    assert ran == 2
    assert totals.values.numpy().tolist() == [8, 36, 8]


@pytest.mark.parametrize("num_replicas", [1, 2, 4])
def test_a_loop_stops_where_the_data_ends(num_replicas):
    setup = Setup(num_replicas)
    iterator = iter(setup.data)
    ran, totals = setup.run(iterator, 7, no_totals())
    assert ran == 3
    assert totals.values.numpy().tolist() == [10, 55, 10]
    ran, unchanged = setup.run(iterator, 7, totals)
    assert ran == 0
    assert unchanged.values.numpy().tolist() == [10, 55, 10]


def test_totals_go_on_from_loop_to_loop():
    setup = Setup(2)
    iterator = iter(setup.data)
    totals = no_totals()
    for expected in ([4, 10, 4], [8, 36, 8], [10, 55, 10]):
        _, totals = setup.run(iterator, 1, totals)
        assert totals.values.numpy().tolist() == expected


def test_the_counter_counts_steps_that_ran():
    setup = Setup(2)
    setup.run(iter(setup.data), 2, no_totals())
    setup.run(iter(setup.data), 9, no_totals())
    assert int(setup.counter.read_value()) == 5


@pytest.mark.parametrize("num_replicas", [1, 2, 4])
def test_the_step_is_traced_once_for_all_counts_and_iterators(num_replicas):
    setup = Setup(num_replicas)
    totals = no_totals()
    for count in (1, 2, 3, 5):
        _, totals = setup.run(iter(setup.data), count, totals)
    assert setup.traces == 1
    assert setup.loop.experimental_get_tracing_count() == 1


def test_no_steps_leave_no_totals():
    setup = Setup(2, num_rows=0)
    ran, totals = setup.run(iter(setup.data), 3, no_totals())
    assert ran == 0
    assert not totals.values.numpy().any()
