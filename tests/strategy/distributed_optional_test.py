"""The next element or nothing, as a value."""

import pytest
import tensorflow as tf

from lockstep.strategy.distributed_dataset import DistributedDataset


def iterator_over(num_rows):
    return iter(DistributedDataset(tf.data.Dataset.range(num_rows).batch(2), ["CPU:0", "CPU:1"]))


def test_an_optional_gives_its_element_any_number_of_times():
    element = iterator_over(2).get_next_as_optional()
    assert isinstance(element, tf.experimental.Optional)
    for _ in range(2):
        assert [part.numpy().tolist() for part in element.get_value().values] == [[0], [1]]


def test_an_empty_optional_has_no_value_to_get():
    element = iterator_over(0).get_next_as_optional()
    assert not bool(element.has_value())
    with pytest.raises(tf.errors.InvalidArgumentError):
        element.get_value()


def test_both_branches_of_a_conditional_may_return_one():
    @tf.function
    def second_row(iterator, skip):
        element = iterator.get_next_as_optional()
        element = tf.cond(skip, iterator.get_next_as_optional, lambda: element)
        return element.get_value().values[1]

    assert second_row(iterator_over(4), tf.constant(False)).numpy().tolist() == [1]
    assert second_row(iterator_over(4), tf.constant(True)).numpy().tolist() == [3]


def test_specs_of_one_dataset_are_equal_and_of_others_not():
    one, same, other = (iterator_over(rows).get_next_as_optional() for rows in (2, 4, 4))
    assert tf.type_spec_from_value(one) == tf.type_spec_from_value(same)
    plain = iter(DistributedDataset(tf.data.Dataset.range(4).batch(2), ["CPU:0"])).get_next_as_optional()
    assert tf.type_spec_from_value(other) != tf.type_spec_from_value(plain)
