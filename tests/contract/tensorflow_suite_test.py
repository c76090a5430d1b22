"""TensorFlow's own tests for any strategy (`strategy_test_lib`), called with ours on two logical CPUs.

Left out, with the reason:

    _test_minimize_loss_graph      builds a TensorFlow 1 graph and runs it in a session
    _test_input_fn_iterator        TensorFlow 1 iterators with an initializer; `_test_input_fn_iterable` tests the same
    _test_numpy_dataset            skips itself for strategies of TensorFlow 2
    _test_collective_comms*        what the tests of all-reduce are made of; they are called through those
    _input_fn_to_test_input_context  a helper, used below
    OneDevice..., RemoteSingleWorker...  bases for strategies of other kinds; one replica is tested by TwoDevice's laws
                                     elsewhere in this suite
"""

import pytest
import tensorflow as tf
from tensorflow.python.distribute import strategy_test_lib

import lockstep

LEFT_OUT = {
    "_test_minimize_loss_graph", "_test_input_fn_iterator", "_test_numpy_dataset", "_test_collective_comms",
    "_test_collective_comms_gradients", "_test_collective_comms_gradient_tape",
}


class _Iterator:
    """The TensorFlow 1 iterator that the suite asks for: one element for each replica and step."""

    def __init__(self, strategy, dataset_fn):
        self._parts = iter(strategy.distribute_datasets_from_function(dataset_fn))

    def initialize(self):
        return ()

    def get_next(self):
        return next(self._parts)


class StrategyOfTheSuite(lockstep.MirroredStrategy):
    """Our strategy with the methods of TensorFlow 1 that the suite calls."""

    def unwrap(self, value):
        return self.experimental_local_results(value)

    def group(self, value):
        return tf.group(*tf.nest.flatten(self.experimental_local_results(value)))

    def make_input_fn_iterator(self, dataset_fn):
        return _Iterator(self, dataset_fn)

    def experimental_run(self, fn, iterator):
        return self.run(fn, args=(iterator.get_next(),))


@pytest.fixture
def strategy():
    return StrategyOfTheSuite(["CPU:0", "CPU:1"])


@pytest.fixture
def laws():
    return strategy_test_lib.DistributionTestBase()


@pytest.fixture
def laws_of_two():
    return strategy_test_lib.TwoDeviceDistributionTestBase()


ANY = ("_test_minimize_loss_eager", "_test_summary_for_replica_zero_only", "_test_replica_id",
       "_test_call_and_merge_exceptions", "_test_global_step_update", "_test_trainable_variable")
TWO = ("_test_run", "_test_all_reduce_sum", "_test_all_reduce_sum_gradients", "_test_all_reduce_sum_gradient_tape",
       "_test_all_reduce_mean", "_test_all_reduce_mean_gradients", "_test_all_reduce_mean_gradient_tape")


@pytest.mark.parametrize("name", ANY)
def test_law_of_any_strategy(strategy, laws, name):
    getattr(laws, name)(strategy)


# `tf.gradients` works in a tf.function only, as the suite says itself.
WAYS = [(name, in_function) for name in TWO for in_function in (False, True) if in_function or "gradients" not in name]


@pytest.mark.parametrize("name, run_in_function", WAYS)
def test_law_of_two_devices(strategy, laws_of_two, name, run_in_function):
    getattr(laws_of_two, name)(strategy, run_in_function=run_in_function)


def test_input_function_is_called_with_its_context_and_iterated_again(strategy, laws):
    input_fn = laws._input_fn_to_test_input_context(
        lambda: tf.data.Dataset.range(10), expected_num_replicas_in_sync=2, expected_num_input_pipelines=1,
        expected_input_pipeline_id=0)
    laws._test_input_fn_iterable(strategy, input_fn, [[i, i + 1] for i in range(0, 10, 2)])


def test_each_test_of_the_suite_is_called_or_left_out_by_name():
    def tests_of(base):
        return {name for name in vars(base) if name.startswith("_test")}

    assert tests_of(strategy_test_lib.DistributionTestBase) <= {*ANY, *LEFT_OUT, "_test_input_fn_iterable"}
    assert tests_of(strategy_test_lib.TwoDeviceDistributionTestBase) <= {*TWO, *LEFT_OUT}
