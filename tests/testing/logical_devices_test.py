"""Tests of `testing.logical_devices`."""

import pytest
import tensorflow as tf

from testing.logical_devices import ask_for_logical_cpus


def test_the_session_has_eight_logical_cpus():
    assert len(tf.config.list_logical_devices("CPU")) == 8


def test_asking_again_for_the_same_number_does_nothing():
    tf.constant(0)
    ask_for_logical_cpus(8)
    assert len(tf.config.list_logical_devices("CPU")) == 8


def test_asking_late_for_another_number_tells_both_numbers():
    tf.constant(0)
    with pytest.raises(RuntimeError, match="asked 3, have 8, the runtime has already started"):
        ask_for_logical_cpus(3)


@pytest.mark.parametrize("count", [0, -1])
def test_asking_for_no_device_is_refused(count):
    with pytest.raises(ValueError, match=f"`count` is {count}"):
        ask_for_logical_cpus(count)


def test_each_logical_cpu_computes():
    for device in tf.config.list_logical_devices("CPU"):
        with tf.device(device.name):
            assert int(tf.add(1, 2)) == 3
