"""Variables behind a launch: what stands around it is ordered with it, for every replica's copy."""

import pytest
import tensorflow as tf

from testing.replicas import mirrored, values_of

NUM_REPLICAS = 3


def counted():
    """A strategy, a variable of each replica's own, and a step that adds one to it, slowly."""
    strategy = mirrored(NUM_REPLICAS)
    with strategy.scope():
        counter = tf.Variable(0.0, synchronization=tf.VariableSynchronization.ON_READ,
                              aggregation=tf.VariableAggregation.SUM)

    def step():
        product = tf.eye(300)
        for _ in range(10):
            product = tf.matmul(product, product)
        counter.assign_add(product[0, 0])

    return strategy, counter, step


def copies(strategy, counter):
    return strategy.experimental_local_results(counter)


def test_a_copy_of_any_replica_is_read_after_a_launch_and_before_the_next():
    strategy, counter, step = counted()

    @tf.function
    def outer():
        strategy.run(step)
        first = [copy.read_value() for copy in copies(strategy, counter)]
        strategy.run(step)
        return first, [copy.read_value() for copy in copies(strategy, counter)]

    for round_number in range(5):
        first, second = tf.nest.map_structure(float, outer())
        assert first == [2.0 * round_number + 1.0] * NUM_REPLICAS
        assert second == [2.0 * round_number + 2.0] * NUM_REPLICAS


def test_a_copy_is_written_after_a_launch_and_before_the_next():
    strategy, counter, step = counted()

    @tf.function
    def outer():
        strategy.run(step)
        for copy in copies(strategy, counter):
            copy.assign(copy * 10.0)
        strategy.run(step)

    outer()
    assert values_of(strategy, counter) == [11.0] * NUM_REPLICAS


@pytest.mark.parametrize("around", ["loop", "branch", "function", "loop in a function"])
def test_what_holds_a_launch_is_ordered_as_the_launch(around):
    strategy, counter, step = counted()

    def launch():
        strategy.run(step)

    def loop():
        for _ in tf.range(2):
            strategy.run(step)

    held = {"loop": loop, "branch": launch, "function": tf.function(launch), "loop in a function": tf.function(loop)}

    @tf.function
    def outer(is_taken):
        for copy in copies(strategy, counter):
            copy.assign(5.0)
        if around == "branch":
            if is_taken:
                launch()
        else:
            held[around]()
        return [copy.read_value() for copy in copies(strategy, counter)]

    if around == "loop":
        held[around] = tf.autograph.experimental.do_not_convert(
            lambda: tf.while_loop(lambda i: i < 2, lambda i: (launch(), i + 1)[1:], [0]))
    for _ in range(5):
        results = outer(tf.constant(True))
        assert [float(result) for result in results] == [7.0 if "loop" in around else 6.0] * NUM_REPLICAS


def test_reads_inside_a_loop_see_the_launches_of_the_rounds_before():
    strategy, counter, step = counted()

    @tf.function
    def outer():
        seen = tf.TensorArray(tf.float32, size=4, element_shape=[NUM_REPLICAS])
        for round_number in tf.range(4):
            strategy.run(step)
            seen = seen.write(round_number, tf.stack([copy.read_value() for copy in copies(strategy, counter)]))
        return seen.stack()

    assert outer().numpy().tolist() == [[round_number + 1.0] * NUM_REPLICAS for round_number in range(4)]
