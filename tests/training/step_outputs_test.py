"""Tests of `lockstep.training.step_outputs`: the laws of summing and averaging, on plain tensors."""

import pytest
import tensorflow as tf

from lockstep.training.step_outputs import StepOutputs, num_rows


def summed(outputs, *parts):
    """The sum over replicas, one for each (what the step returned, its batch)."""
    return tf.nest.map_structure(lambda *values: tf.add_n(values), *[outputs.on_replica(*part) for part in parts])


def averages(*steps):
    outputs = StepOutputs("train_step")
    return outputs.averages(sum(outputs.totals(summed(outputs, *parts)) for parts in steps).numpy())


def test_shares_are_summed_over_replicas():
    first, second = tf.constant([1.0, 2.0]), tf.constant([4.0])
    assert averages([({"loss": 1.0}, first), ({"loss": 1.5}, second)]) == {"loss": 2.5}


def test_vectors_are_averaged_over_the_rows_of_all_replicas():
    first, second = tf.constant([1.0, 2.0]), tf.constant([6.0])
    assert averages([({"x": first}, first), ({"x": second}, second)]) == {"x": 3.0}


def test_shares_and_vectors_weigh_steps_by_their_rows():
    first, second = tf.constant([1.0, 2.0, 3.0, 4.0]), tf.constant([10.0])
    steps = [[({"share": tf.reduce_mean(rows), "vector": rows}, rows)] for rows in (first, second)]
    assert averages(*steps) == {"share": 4.0, "vector": 4.0}


def test_a_replica_without_rows_changes_nothing():
    rows, none = tf.constant([1.0, 2.0]), tf.constant([])
    parts = [({"share": 1.5, "vector": rows}, rows), ({"share": 0.0, "vector": none}, none)]
    assert averages(parts) == {"share": 1.5, "vector": 1.5}


def test_no_rows_at_all_give_zero():
    none = tf.constant([])
    assert averages([({"share": 0.0, "vector": none}, none)]) == {"share": 0.0, "vector": 0.0}


def test_no_outputs_give_no_averages():
    assert averages([({}, tf.constant([1.0]))]) == {}


@pytest.mark.parametrize("dtype", [tf.bool, tf.int32, tf.uint8, tf.float16, tf.bfloat16, tf.float64])
def test_all_kinds_of_numbers_are_averaged(dtype):
    assert averages([({"hits": tf.cast([1, 0, 1, 1], dtype)}, tf.zeros([4]))]) == {"hits": 0.75}


def test_python_numbers_are_shares():
    assert averages([({"one": 1, "half": 0.5}, tf.zeros([4]))]) == {"one": 1.0, "half": 0.5}


def test_sums_run_in_float64():
    large = tf.constant([2.0**24] + [1.0] * 3)
    assert averages([({"x": large}, large)]) == {"x": (2.0**24 + 3) / 4}


def test_keys_keep_the_order_of_the_step():
    assert list(averages([({"loss": 1.0, "accuracy": 1.0, "b": 1.0}, tf.zeros([1]))])) == ["loss", "accuracy", "b"]


@pytest.mark.parametrize("returned", [None, 1.0, [1.0], ("loss", 1.0)])
def test_a_step_that_returns_no_dict_is_refused(returned):
    with pytest.raises(TypeError, match=f"`eval_step`: returned {type(returned).__name__}.*Expected a dict"):
        StepOutputs("eval_step").on_replica(returned, tf.zeros([1]))


@pytest.mark.parametrize("value", [tf.zeros([2, 1]), tf.zeros([0, 3]), tf.zeros([1, 1, 1])])
def test_more_dimensions_are_refused_by_key(value):
    with pytest.raises(ValueError, match=r"`train_step`: the output 'logits' has shape"):
        StepOutputs("train_step").on_replica({"loss": 1.0, "logits": value}, tf.zeros([2]))


def test_an_unknown_rank_is_refused_by_key():
    @tf.function(input_signature=[tf.TensorSpec(None)])
    def step(value):
        return StepOutputs("train_step").on_replica({"odd": value}, tf.zeros([2]))

    with pytest.raises(ValueError, match="the output 'odd' has shape <unknown>.*ensure_shape"):
        step(1.0)


@pytest.mark.parametrize(
    "value", ["text", tf.constant("text"), tf.constant(1j), None, object(), tf.ragged.constant([[1.0]])]
)
def test_values_that_are_no_numbers_are_refused_by_key(value):
    with pytest.raises(TypeError, match="`train_step`: the output 'bad' is"):
        StepOutputs("train_step").on_replica({"bad": value}, tf.zeros([2]))


def test_keys_that_are_no_strings_are_refused():
    with pytest.raises(TypeError, match="the output 3 has a key of type int"):
        StepOutputs("train_step").on_replica({3: 1.0}, tf.zeros([2]))


@pytest.mark.parametrize("second", [{"loss": 1.0, "new": 1.0}, {}, {"other": 1.0}, {"loss": tf.zeros([2])}])
def test_keys_and_kinds_that_change_are_refused(second):
    with pytest.raises(ValueError, match=r"returned \{.*\} after \{scalar 'loss'\}"):
        averages([({"loss": 1.0}, tf.zeros([2]))], [(second, tf.zeros([2]))])


def test_a_vector_of_something_else_than_rows_is_refused_with_both_numbers():
    with pytest.raises(ValueError, match="the vector 'per_class' has 10 values, the batches have 4 rows"):
        averages([({"per_class": tf.zeros([10])}, tf.zeros([4]))])


@pytest.mark.parametrize(
    "batch, rows",
    [
        (tf.zeros([3, 2]), 3),
        ({"a": tf.zeros([5]), "b": tf.zeros([5, 2])}, 5),
        ((tf.zeros([0, 2]), tf.zeros([0])), 0),
        ((tf.constant(0.1), tf.zeros([2])), 2),
        (tf.ragged.constant([[1], [], [2, 3]]), 3),
        (tf.sparse.from_dense([[1, 0], [0, 0], [0, 2], [0, 0]]), 4),
        (tf.constant(["a", "b"]), 2),
    ],
)
def test_rows_are_the_leading_dimension(batch, rows):
    assert int(num_rows(batch, "train_step")) == rows


@pytest.mark.parametrize("batch", [tf.constant(1.0), (tf.constant(1), tf.constant(2)), ()])
def test_a_batch_without_rows_is_refused(batch):
    with pytest.raises(ValueError, match="`train_step`: its batch has no rows"):
        num_rows(batch, "train_step")
