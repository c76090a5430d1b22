"""Steps: flat tuples of tensors, whose iterators keep nothing back that depends on the replicas."""

import pytest
import tensorflow as tf

from lockstep.strategy.step_pipeline import flat_components, grouped_steps, pack, split_steps


def test_a_step_is_the_components_leaf_by_leaf_replica_by_replica():
    dataset = tf.data.Dataset.range(4).batch(4).map(lambda rows: (rows, None, 10 * rows))
    steps, spec = split_steps(dataset, 2, 1)
    (step,) = steps
    assert [component.numpy().tolist() for component in step] == [[0, 1], [2, 3], [0, 10], [20, 30]]
    first, nothing, third = pack(spec, step)
    assert nothing is None
    assert [part.numpy().tolist() for part in (*first.values, *third.values)] == [[0, 1], [2, 3], [0, 10], [20, 30]]


def test_flat_components_and_pack_are_inverse():
    element = {"ragged": tf.ragged.constant([[1], []]), "none": None, "dense": tf.constant([1])}
    spec = tf.nest.map_structure(tf.type_spec_from_value, element)
    again = pack(spec, flat_components(element))
    assert again["ragged"].to_list() == [[1], []]
    assert again["none"] is None and again["dense"] is element["dense"]


@pytest.mark.parametrize("buffer_size", [0, 1, 3])
def test_the_state_of_an_iterator_is_the_same_for_any_number_of_replicas(buffer_size, tmp_path):
    def steps(num_replicas):
        return split_steps(tf.data.Dataset.range(40).batch(2), num_replicas, buffer_size)[0]

    iterator = iter(steps(4))
    for _ in range(5):
        next(iterator)
    path = tf.train.Checkpoint(steps=iterator).save(tmp_path / "checkpoint")
    for num_replicas in (1, 2, 4):
        again = iter(steps(num_replicas))
        tf.train.Checkpoint(steps=again).restore(path).assert_consumed()
        left = [tf.concat(step, axis=0).numpy().tolist() for step in again]
        assert left == [[2 * batch, 2 * batch + 1] for batch in range(5, 20)]


@pytest.mark.parametrize("num_replicas", [1, 2, 3])
def test_groups_are_consecutive_elements(num_replicas):
    steps, _ = grouped_steps(tf.data.Dataset.range(6).batch(1), num_replicas, 1)
    rows = [[int(component[0]) for component in step] for step in steps]
    assert rows == [list(range(first, first + num_replicas)) for first in range(0, 6, num_replicas)]
