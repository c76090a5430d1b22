"""Iterators over distributed datasets: reading, the end of the data, functions, contexts, checkpoints."""

import numpy as np
import pytest
import tensorflow as tf

from lockstep.strategy.distributed_dataset import DistributedDataset
from testing.replicas import mirrored

REPLICAS = (1, 2, 3, 4, 7)


def distributed(dataset, num_replicas, **options):
    devices = [f"CPU:{index}" for index in range(num_replicas)]
    return DistributedDataset(dataset, devices, tf.distribute.InputOptions(**options))


def rows_of(element):
    """The rows of all parts, in the order of the replicas."""
    parts = element.values if isinstance(element, tf.distribute.DistributedValues) else [element]
    return np.concatenate([part.numpy() for part in parts]).tolist()


def rows_left(iterator):
    return [rows_of(element) for element in iterator]


def shuffled():
    return tf.data.Dataset.range(10).shuffle(6, seed=5).batch(3)


@pytest.mark.parametrize("num_replicas", REPLICAS)
def test_next_and_get_next_go_through_the_data_and_end(num_replicas):
    iterator = iter(distributed(tf.data.Dataset.range(6).batch(3), num_replicas))
    assert iter(iterator) is iterator
    assert rows_of(next(iterator)) == [0, 1, 2]
    assert rows_of(iterator.get_next()) == [3, 4, 5]
    with pytest.raises(tf.errors.OutOfRangeError):
        iterator.get_next()
    with pytest.raises(StopIteration):
        next(iterator)


@pytest.mark.parametrize("num_replicas", REPLICAS)
def test_the_optional_is_empty_at_the_end(num_replicas):
    iterator = iter(distributed(tf.data.Dataset.range(3).batch(3), num_replicas))
    element = iterator.get_next_as_optional()
    assert bool(element.has_value()) and rows_of(element.get_value()) == [0, 1, 2]
    assert element.element_spec == iterator.element_spec
    assert not bool(iterator.get_next_as_optional().has_value())


def test_it_is_what_keras_and_tensorflow_look_for():
    iterator = iter(distributed(tf.data.Dataset.range(3).batch(3), 2))
    assert isinstance(iterator, tf.distribute.DistributedIterator)
    assert isinstance(iterator, tf.data.Iterator)


@pytest.mark.parametrize("num_replicas", REPLICAS)
def test_a_function_of_an_iterator_is_traced_once_for_all_epochs_and_raises_at_the_end(num_replicas):
    dataset = distributed(tf.data.Dataset.range(7).batch(3), num_replicas)
    traces = []

    @tf.function
    def step(iterator):
        traces.append(1)
        return next(iterator)

    for _ in range(3):
        iterator = iter(dataset)
        assert [rows_of(step(iterator)) for _ in range(3)] == [[0, 1, 2], [3, 4, 5], [6]]
        with pytest.raises(tf.errors.OutOfRangeError):
            step(iterator)
    assert len(traces) == 1


def test_iterators_over_equal_datasets_do_not_trace_again_and_others_do():
    traces = []

    @tf.function
    def step(iterator):
        traces.append(1)
        return iterator.get_next()

    for rows, num_replicas in ((4, 2), (8, 2), (8, 3)):
        step(iter(distributed(tf.data.Dataset.range(rows).batch(4), num_replicas)))
    assert len(traces) == 2


def test_loops_over_an_iterator_inside_a_function_go_on_where_it_stands():
    @tf.function
    def last_rows(iterator):
        result = tf.constant(-1, tf.int64)
        for batch in iterator:
            result = batch.values[0][0]
        return result

    iterator = iter(distributed(tf.data.Dataset.range(8).batch(2), 2))
    next(iterator)
    assert int(last_rows(iterator)) == 6
    assert int(last_rows(iterator)) == -1


def test_the_optional_is_a_loop_variable():
    @tf.function
    def count(iterator, limit):
        def advance(steps, element):
            rows = tf.add_n([tf.size(part) for part in element.get_value().values])
            steps += rows
            return steps, tf.cond(steps < limit, iterator.get_next_as_optional, lambda: element)

        return tf.while_loop(
            lambda steps, element: tf.logical_and(steps < limit, element.has_value()), advance,
            [0, iterator.get_next_as_optional()])[0]

    iterator = iter(distributed(tf.data.Dataset.range(10).batch(3), 2))
    assert [int(count(iterator, limit)) for limit in (6, 3, 99)] == [6, 3, 1]


def test_an_optional_is_an_argument_that_does_not_trace_again():
    traces = []

    @tf.function
    def first_row(element):
        traces.append(1)
        return element.get_value().values[0][0]

    iterator = iter(distributed(tf.data.Dataset.range(6).batch(2), 2))
    assert [int(first_row(iterator.get_next_as_optional())) for _ in range(3)] == [0, 2, 4]
    assert len(traces) == 1


def test_an_endless_python_loop_while_tracing_is_refused():
    @tf.function
    def unrolled(iterator):
        return [1 for _ in iterator]

    with pytest.raises(RuntimeError, match="1000 calls of `next` while one `tf.function` is traced"):
        unrolled(iter(distributed(tf.data.Dataset.range(6).batch(2), 2)))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("call", [lambda it: it.get_next(), lambda it: it.get_next_as_optional(), next])
def test_a_call_inside_run_is_refused_by_name(call, compiled):
    strategy = mirrored(2)
    iterator = iter(strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(2)))

    def step():
        return call(iterator)

    with pytest.raises(RuntimeError, match=r"`get_next.*was called inside `strategy.run`"):
        strategy.run(tf.function(step) if compiled else step)
    assert rows_of(next(iterator)) == [0, 1]


def test_a_new_iterator_inside_run_is_refused_by_name():
    strategy = mirrored(2)
    dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(2))
    with pytest.raises(RuntimeError, match=r"`iter\(distributed_dataset\)` was called inside"):
        strategy.run(lambda: iter(dataset))


def test_calls_in_the_scope_of_a_strategy_are_fine():
    strategy = mirrored(2)
    with strategy.scope():
        iterator = iter(strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(2)))
        assert rows_of(next(iterator)) == [0, 1]


@pytest.mark.parametrize("num_replicas", REPLICAS)
@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("position", range(5))
def test_a_restored_iterator_goes_on_at_the_next_row(position, epoch, num_replicas, tmp_path):
    dataset = distributed(shuffled(), num_replicas)
    for _ in range(epoch):
        rows_left(iter(dataset))
    iterator = iter(dataset)
    seen = [rows_of(next(iterator)) for _ in range(position)]
    path = tf.train.Checkpoint(iterator=iterator).save(tmp_path / "checkpoint")
    left = rows_left(iterator)
    assert sorted(sum(seen + left, [])) == list(range(10))

    again = iter(distributed(shuffled(), num_replicas))
    tf.train.Checkpoint(iterator=again).restore(path).assert_consumed()
    assert rows_left(again) == left


def test_a_restored_iterator_forgets_what_it_had_read_and_prepared(tmp_path):
    iterator = iter(distributed(shuffled(), 2))
    path = tf.train.Checkpoint(iterator=iterator).save(tmp_path / "checkpoint")
    left = rows_left(iterator)
    for _ in range(2):
        tf.train.Checkpoint(iterator=iterator).restore(path)
        assert rows_left(iterator) == left


@pytest.mark.parametrize("saved, restored", [(4, 2), (2, 7), (4, 1), (1, 4)])
def test_the_number_of_replicas_may_differ_between_saving_and_restoring(saved, restored, tmp_path):
    iterator = iter(distributed(shuffled(), saved, experimental_per_replica_buffer_size=2))
    next(iterator)
    path = tf.train.Checkpoint(iterator=iterator).save(tmp_path / "checkpoint")
    left = rows_left(iterator)

    again = iter(distributed(shuffled(), restored, experimental_per_replica_buffer_size=2))
    tf.train.Checkpoint(iterator=again).restore(path).assert_consumed()
    assert rows_left(again) == left


def test_the_position_is_saved_when_a_function_read_from_the_iterator(tmp_path):
    step = tf.function(lambda iterator: iterator.get_next())
    iterator = iter(distributed(tf.data.Dataset.range(9).batch(3), 2))
    step(iterator)
    path = tf.train.Checkpoint(iterator=iterator).save(tmp_path / "checkpoint")
    again = iter(distributed(tf.data.Dataset.range(9).batch(3), 2))
    tf.train.Checkpoint(iterator=again).restore(path).assert_consumed()
    assert rows_of(step(again)) == [3, 4, 5]


@pytest.mark.parametrize("position", range(3))
def test_iterators_over_per_replica_batches_are_restored(position, tmp_path):
    def make(context):
        return tf.data.Dataset.range(10).shuffle(6, seed=5).batch(2)

    iterator = iter(DistributedDataset.from_function(make, ["CPU:0", "CPU:1"]))
    for _ in range(position):
        next(iterator)
    path = tf.train.Checkpoint(iterator=iterator).save(tmp_path / "checkpoint")
    left = rows_left(iterator)
    again = iter(DistributedDataset.from_function(make, ["CPU:0", "CPU:1"]))
    tf.train.Checkpoint(iterator=again).restore(path).assert_consumed()
    assert rows_left(again) == left


def test_a_generator_cannot_be_saved_and_says_so(tmp_path):
    dataset = tf.data.Dataset.from_generator(lambda: iter(range(4)), output_signature=tf.TensorSpec([], tf.int64))
    iterator = iter(distributed(dataset.batch(2), 2))
    with pytest.raises(tf.errors.FailedPreconditionError, match="stateful"):
        tf.train.Checkpoint(iterator=iterator).save(tmp_path / "checkpoint")


@pytest.mark.parametrize("taken", range(5))
def test_the_epochs_after_the_restored_one_are_shuffled_as_they_would_have_been(tmp_path, taken):
    def dataset():
        return distributed(tf.data.Dataset.range(14).shuffle(14, seed=3).batch(4).prefetch(2), 2)

    before = dataset()
    iterator = iter(before)
    for _ in range(taken):
        next(iterator)
    path = tf.train.Checkpoint(iterator=iterator).write(tmp_path / "checkpoint")
    expected = [rows_left(iterator), rows_left(iter(before)), rows_left(iter(before))]
    after = dataset()
    again = iter(after)
    tf.train.Checkpoint(iterator=again).read(path).assert_consumed()
    assert [rows_left(again), rows_left(iter(after)), rows_left(iter(after))] == expected
