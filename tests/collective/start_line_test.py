"""The start line: nobody passes before all have come, and what a cancelled launch left is removed."""

import concurrent.futures

import pytest
import tensorflow as tf

from lockstep.collective.start_line import StartLine


@pytest.mark.parametrize("size", [2, 3, 5])
def test_nobody_passes_before_all_have_come(size):
    line = StartLine(f"line_of_{size}", size)
    come = tf.Variable(0)

    def passer(rank):
        @tf.function
        def come_and_pass():
            with tf.control_dependencies([come.assign_add(1)]):
                passed = line.wait(rank)
            with tf.control_dependencies([passed]):
                return come.read_value()
        return come_and_pass

    passers = [passer(rank) for rank in range(size)]
    with concurrent.futures.ThreadPoolExecutor(size) as pool:
        for attempt in range(1, 4):
            seen = [pool.submit(passer) for passer in passers]
            assert [int(number.result(timeout=60)) for number in seen] == [size * attempt] * size


def test_what_was_left_is_removed():
    line = StartLine("line_with_rests", 3)
    for queue, count in ((line._arrivals, 2), (line._permits, 1)):
        tf.raw_ops.QueueEnqueueManyV2(handle=queue, components=[tf.zeros([count], tf.int32)])
    drain = tf.function(lambda: [tf.group(line.drain()), 0][1])
    for _ in range(2):
        drain()
        assert [int(tf.raw_ops.QueueSizeV2(handle=queue)) for queue in (line._arrivals, line._permits)] == [0, 0]
