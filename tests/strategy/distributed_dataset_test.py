"""Global batches in, one part for each replica out: contents, specs, loops and errors of `DistributedDataset`."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from lockstep.strategy.distributed_dataset import DistributedDataset

REPLICAS = (1, 2, 3, 4, 7)

Pair = collections.namedtuple("Pair", ["left", "right"])


def cpus(count):
    return [f"CPU:{index}" for index in range(count)]


def parts_of(value):
    """The components of one leaf of an element, as lists; a plain value is the only one."""
    parts = value.values if isinstance(value, tf.distribute.DistributedValues) else [value]
    return [part.to_list() if isinstance(part, tf.RaggedTensor) else part.numpy().tolist() for part in parts]


def split(rows, num_replicas):
    return [part.tolist() for part in np.array_split(np.array(rows, np.int64), num_replicas)]


def batches(num_rows, batch_size):
    return [list(range(start, min(start + batch_size, num_rows))) for start in range(0, num_rows, batch_size)]


@pytest.mark.parametrize("num_replicas", REPLICAS)
@pytest.mark.parametrize("num_rows, batch_size", [(12, 4), (10, 4), (9, 3), (5, 1), (3, 8), (0, 4)])
def test_each_global_batch_is_split_and_the_last_one_may_be_partial(num_rows, batch_size, num_replicas):
    dataset = DistributedDataset(tf.data.Dataset.range(num_rows).batch(batch_size), cpus(num_replicas))
    expected = [split(batch, num_replicas) for batch in batches(num_rows, batch_size)]
    assert [parts_of(batch) for batch in dataset] == expected
    assert len(dataset) == int(dataset.cardinality()) == len(expected)


def test_maps_of_the_user_see_the_global_batch():
    dataset = tf.data.Dataset.range(12).batch(12).map(lambda b: b - b[0] + tf.size(b, tf.int64))
    (batch,) = DistributedDataset(dataset, cpus(4))
    assert parts_of(batch) == [[12, 13, 14], [15, 16, 17], [18, 19, 20], [21, 22, 23]]


@pytest.mark.parametrize("num_replicas", REPLICAS)
def test_drop_remainder_drops_rows_of_the_dataset_only(num_replicas):
    dataset = DistributedDataset(tf.data.Dataset.range(10).batch(4, drop_remainder=True), cpus(num_replicas))
    assert [parts_of(batch) for batch in dataset] == [split(b, num_replicas) for b in ([0, 1, 2, 3], [4, 5, 6, 7])]


@pytest.mark.parametrize("num_replicas", REPLICAS)
def test_nests_of_ragged_sparse_string_and_none_keep_their_structure(num_replicas):
    def element(rows):
        return {
            "pair": Pair(
                tf.RaggedTensor.from_row_lengths(tf.repeat(rows, rows), rows), (tf.strings.as_string(rows),)),
            "sparse": tf.sparse.from_dense(rows[:, tf.newaxis] + 1),
            "none": None}

    dataset = DistributedDataset(tf.data.Dataset.range(5).batch(3).map(element), cpus(num_replicas))
    for batch, rows in zip(dataset, batches(5, 3), strict=True):
        parts = split(rows, num_replicas)
        assert isinstance(batch["pair"], Pair)
        assert parts_of(batch["pair"].left) == [[[row] * row for row in part] for part in parts]
        assert parts_of(batch["pair"].right[0]) == [[str(row).encode() for row in part] for part in parts]
        sparse = batch["sparse"].values if num_replicas > 1 else [batch["sparse"]]
        dense = [tf.sparse.to_dense(part).numpy().tolist() for part in sparse]
        assert dense == [[[row + 1] for row in part] for part in parts]
        assert batch["none"] is None


def test_a_tuple_of_one_stays_a_tuple():
    for num_replicas in (1, 2):
        dataset = tf.data.Dataset.range(2).batch(2).map(lambda rows: (rows,))
        (batch,) = DistributedDataset(dataset, cpus(num_replicas))
        assert isinstance(batch, tuple) and parts_of(batch[0]) == split([0, 1], num_replicas)


def test_generators_are_split():
    dataset = tf.data.Dataset.from_generator(lambda: iter(range(5)), output_signature=tf.TensorSpec([], tf.int64))
    distributed = DistributedDataset(dataset.batch(4), cpus(2))
    for _ in range(2):
        assert [parts_of(batch) for batch in distributed] == [[[0, 1], [2, 3]], [[4], []]]


def test_infinite_datasets_go_on():
    dataset = DistributedDataset(tf.data.Dataset.range(3).repeat().batch(2), cpus(2))
    iterator = iter(dataset)
    assert [parts_of(next(iterator)) for _ in range(4)] == [[[0], [1]], [[2], [0]], [[1], [2]], [[0], [1]]]
    assert int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY


def test_len_of_an_unknown_or_infinite_dataset_is_refused_and_the_dataset_is_true():
    rows = tf.data.Dataset.range(4)
    for dataset, kind in ((rows.repeat(), "infinite"), (rows.filter(lambda row: row > 1), "unknown")):
        distributed = DistributedDataset(dataset.batch(2), cpus(2))
        with pytest.raises(TypeError, match=f"the number of steps is {kind}"):
            len(distributed)
        assert distributed


@pytest.mark.parametrize("num_replicas", REPLICAS)
def test_unknown_rank_is_split_and_a_scalar_refused_when_it_is_reached(num_replicas):
    def generate():
        yield [0, 1, 2]
        yield 5

    dataset = tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec(None, tf.int64))
    iterator = iter(DistributedDataset(dataset, cpus(num_replicas)))
    assert parts_of(next(iterator)) == split([0, 1, 2], num_replicas)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"an element holds a scalar.*\.batch"):
        next(iterator)


def test_row_counts_that_differ_are_refused_when_they_are_reached():
    dataset = tf.data.Dataset.range(4).batch(4).map(lambda rows: (rows, rows[rows > 0]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="different numbers of rows"):
        next(iter(DistributedDataset(dataset, cpus(2))))


def test_the_spec_is_that_of_the_elements():
    dataset = tf.data.Dataset.from_tensor_slices((tf.zeros([16, 3]), tf.zeros([16], tf.string)))
    static = DistributedDataset(dataset.batch(8, drop_remainder=True), cpus(4)).element_spec
    assert [spec.shape.as_list() for spec in static[0].value_specs] == [[2, 3]] * 4
    assert [spec.dtype for spec in static[1].value_specs] == [tf.string] * 4
    partial = DistributedDataset(dataset.batch(8), cpus(4))
    assert [spec.shape.as_list() for spec in partial.element_spec[0].value_specs] == [[None, 3]] * 4
    assert iter(partial).element_spec == partial.element_spec
    assert DistributedDataset(dataset.batch(8), cpus(1)).element_spec == dataset.batch(8).element_spec


def test_a_new_epoch_reshuffles():
    dataset = DistributedDataset(tf.data.Dataset.range(50).shuffle(50, seed=1).batch(50), cpus(2))
    epochs = [sum(parts_of(batch), []) for _ in range(2) for batch in dataset]
    assert epochs[0] != epochs[1] and sorted(epochs[0]) == sorted(epochs[1]) == list(range(50))


def total(batch):
    return tf.add_n([tf.reduce_sum(part) for part in batch.values])


def test_a_loop_inside_a_function_is_traced_once_and_sees_every_element():
    dataset = DistributedDataset(tf.data.Dataset.range(10).batch(3), cpus(2))
    traces = []

    @tf.function
    def loop():
        result = tf.constant(0, tf.int64)
        for batch in dataset:
            traces.append(1)
            result = 100 * result + total(batch)
        return result

    assert [int(loop()) for _ in range(2)] == [3122109] * 2
    assert len(traces) == 1


def test_a_loop_inside_a_function_can_break():
    dataset = DistributedDataset(tf.data.Dataset.range(3).repeat().batch(3), cpus(2))

    @tf.function
    def steps():
        count = tf.constant(0)
        for batch in dataset:
            if count == 7:
                break
            count += tf.size(batch.values[1])
        return count

    assert int(steps()) == 7


def test_enumerate_counts_in_python_and_inside_a_function():
    dataset = DistributedDataset(tf.data.Dataset.range(6).batch(2), cpus(2))
    assert [(step, parts_of(batch)) for step, batch in enumerate(dataset)] == [
        (step, [[2 * step], [2 * step + 1]]) for step in range(3)]

    @tf.function
    def loop():
        result = tf.constant(0, tf.int64)
        for step, batch in enumerate(dataset, 1):
            result += step * total(batch)
        return result

    assert int(loop()) == 1 * 1 + 2 * 5 + 3 * 9


def test_enumerate_of_an_iterator_inside_a_function_is_refused_instead_of_unrolled():
    dataset = DistributedDataset(tf.data.Dataset.range(6).batch(2), cpus(2))

    @tf.function
    def loop(iterator):
        for step, _ in enumerate(iterator):
            tf.print(step)

    with pytest.raises(NotImplementedError, match="Enumerate the distributed dataset"):
        loop(iter(dataset))


@pytest.mark.parametrize("compiled", [False, True])
def test_reduce_folds_the_elements_in_order(compiled):
    dataset = DistributedDataset(tf.data.Dataset.range(6).batch(2), cpus(2))

    def fold():
        return dataset.reduce(tf.constant(0, tf.int64), lambda state, batch: 10 * state + total(batch))

    assert int((tf.function(fold) if compiled else fold)()) == 159


def test_maps_are_traced_once_for_any_number_of_epochs_and_no_function_is_left_behind():
    from tensorflow.python.eager import context

    traces = []

    def note(rows):
        traces.append(1)
        return rows

    dataset = DistributedDataset(tf.data.Dataset.range(4).batch(2).map(note), cpus(2))
    traced = len(traces)
    functions = []
    for _ in range(200):
        assert len([parts_of(batch) for batch in dataset]) == 2
        functions.append(len(context.context().list_function_names()))
    assert len(traces) == traced
    assert len(set(functions)) == 1


@pytest.mark.parametrize("make, message", [
    (lambda: np.zeros([4, 2]), r"numpy.ndarray.*from_tensor_slices"),
    (lambda: [1, 2], r"builtins.list.*from_tensor_slices"),
    (lambda: (row for row in range(4)), r"builtins.generator.*from_generator"),
    (lambda: iter(tf.data.Dataset.range(4).batch(2)), r"not an iterator over it"),
    (lambda: lambda context: None, r"distribute_datasets_from_function"),
    (lambda: DistributedDataset(tf.data.Dataset.range(4).batch(2), cpus(2)), r"distributed already"),
])
def test_what_is_no_dataset_is_refused_with_the_fix(make, message):
    with pytest.raises(TypeError, match=message):
        DistributedDataset(make(), cpus(2))


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_an_unbatched_dataset_is_refused_with_the_fix(num_replicas):
    with pytest.raises(ValueError, match=r"holds a scalar.*\.batch\(global_batch_size\)"):
        DistributedDataset(tf.data.Dataset.range(4), cpus(num_replicas))


def test_datasets_inside_a_dataset_are_refused():
    with pytest.raises(TypeError, match="DatasetSpec"):
        DistributedDataset(tf.data.Dataset.range(4).window(2), cpus(2))


def test_no_device_is_refused():
    with pytest.raises(ValueError, match="`devices` is empty"):
        DistributedDataset(tf.data.Dataset.range(4).batch(2), [])


@pytest.mark.parametrize("options, error, message", [
    (tf.distribute.InputOptions(experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA),
     NotImplementedError, "PER_REPLICA"),
    (tf.distribute.InputOptions(experimental_place_dataset_on_device=True),
     NotImplementedError, "experimental_place_dataset_on_device"),
    (tf.distribute.InputOptions(experimental_per_replica_buffer_size=-1),
     ValueError, "`experimental_per_replica_buffer_size` is -1"),
    ({"experimental_fetch_to_device": True}, TypeError, "Expected a `tf.distribute.InputOptions`"),
])
def test_options_that_are_not_supported_are_refused_by_name(options, error, message):
    with pytest.raises(error, match=message):
        DistributedDataset(tf.data.Dataset.range(4).batch(2), cpus(2), options)


@pytest.mark.parametrize("buffer_size", [0, 1, 5])
def test_any_number_of_steps_can_be_prepared_ahead(buffer_size):
    options = tf.distribute.InputOptions(experimental_per_replica_buffer_size=buffer_size)
    dataset = DistributedDataset(tf.data.Dataset.range(6).batch(2), cpus(2), options)
    assert [parts_of(batch) for batch in dataset] == [[[0], [1]], [[2], [3]], [[4], [5]]]


@pytest.mark.parametrize("num_replicas", REPLICAS)
@pytest.mark.parametrize("num_batches", [0, 1, 4, 6, 7])
def test_consecutive_per_replica_batches_make_one_step(num_batches, num_replicas):
    dataset = DistributedDataset.from_function(
        lambda context: tf.data.Dataset.range(2 * num_batches).batch(2), cpus(num_replicas))
    elements = [[2 * index, 2 * index + 1] for index in range(num_batches)]
    expected = [elements[first:first + num_replicas] for first in range(0, num_batches, num_replicas)]
    expected = [step + [[]] * (num_replicas - len(step)) for step in expected]
    assert [parts_of(batch) for batch in dataset] == expected
    assert len(dataset) == len(expected)


def test_per_replica_batches_may_be_of_any_size_and_nest():
    def make(context):
        rows = tf.data.Dataset.range(4).map(lambda count: tf.range(count))
        return rows.map(lambda row: {"ragged": tf.RaggedTensor.from_row_lengths(row, tf.ones_like(row)), "none": None,
                                     "sparse": tf.sparse.from_dense(row[:, tf.newaxis]), "text": tf.as_string(row)})

    steps = list(DistributedDataset.from_function(make, cpus(3)))
    assert [parts_of(step["ragged"]) for step in steps] == [[[], [[0]], [[0], [1]]], [[[0], [1], [2]], [], []]]
    assert [part.dense_shape.numpy().tolist() for part in steps[1]["sparse"].values] == [[3, 1], [0, 1], [0, 1]]
    assert parts_of(steps[1]["text"]) == [[b"0", b"1", b"2"], [], []]
    assert steps[0]["none"] is None


def test_per_replica_batches_keep_static_rows_where_no_replica_can_go_without():
    rows = tf.data.Dataset.range(8).batch(2, drop_remainder=True)
    unknown = rows.filter(lambda row: True)
    for dataset, expected in ((rows, 2), (rows.repeat(), 2), (rows.take(3), None), (unknown, None)):
        spec = DistributedDataset.from_function(lambda context: dataset, cpus(2)).element_spec
        assert [part.shape.as_list() for part in spec.value_specs] == [[expected]] * 2


def test_scalars_make_steps_and_an_end_that_leaves_a_replica_without_one_is_refused():
    iterator = iter(DistributedDataset.from_function(lambda context: tf.data.Dataset.range(3), cpus(2)))
    assert parts_of(next(iterator)) == [0, 1]
    with pytest.raises(tf.errors.InvalidArgumentError, match="ended in the middle of a step"):
        next(iterator)


def test_the_function_is_called_once_with_the_input_context():
    contexts = []

    def make(context):
        contexts.append(context)
        return tf.data.Dataset.range(8).batch(context.get_per_replica_batch_size(4))

    dataset = DistributedDataset.from_function(make, cpus(2))
    assert [parts_of(batch) for batch in dataset] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    (context,) = contexts
    assert (context.num_input_pipelines, context.input_pipeline_id, context.num_replicas_in_sync) == (1, 0, 2)


@pytest.mark.parametrize("dataset_fn, message", [
    (tf.data.Dataset.range(4), "`dataset_fn` is an object of type"),
    (lambda context: np.zeros([4]), r"numpy.ndarray.*Expected a `tf.data.Dataset`"),
])
def test_what_is_no_function_of_a_dataset_is_refused(dataset_fn, message):
    with pytest.raises(TypeError, match=message):
        DistributedDataset.from_function(dataset_fn, cpus(2))
