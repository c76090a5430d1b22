"""Random numbers differ between replicas, repeat under a seed, and never silently coincide."""

import numpy as np
import pytest
import tensorflow as tf

from testing.replicas import mirrored, values_of

DRAWS = {
    "uniform": lambda: tf.random.uniform([5]),
    "normal": lambda: tf.random.normal([5]),
    "truncated normal": lambda: tf.random.truncated_normal([5]),
    "integers": lambda: tf.random.uniform([5], 0, 1 << 30, tf.int32),
    "shuffle": lambda: tf.random.shuffle(tf.range(50)),
    "dropout": lambda: tf.nn.dropout(tf.ones([50]), 0.5),
}


def run_three_steps(draw, num_replicas=4, seed=1):
    tf.random.set_seed(seed)
    strategy = mirrored(num_replicas)
    step = tf.function(draw)
    return np.array([values_of(strategy, strategy.run(step)) for _ in range(3)])


@pytest.mark.parametrize("name", DRAWS)
def test_replicas_and_steps_draw_different_numbers_the_same_on_every_run(name):
    first = run_three_steps(DRAWS[name])
    assert np.array_equal(first, run_three_steps(DRAWS[name]))
    assert not np.array_equal(first, run_three_steps(DRAWS[name], seed=2))
    streams = first.reshape(12, -1)
    assert len({tuple(stream) for stream in streams.tolist()}) == 12


def test_draws_have_the_distribution_they_ask_for():
    values = run_three_steps(lambda: tf.random.uniform([10000], 2.0, 4.0))
    assert values.min() >= 2.0 and values.max() < 4.0
    assert abs(values.mean() - 3.0) < 0.02
    normal = run_three_steps(lambda: tf.random.normal([10000], 1.0, 2.0))
    assert abs(normal.mean() - 1.0) < 0.05 and abs(normal.std() - 2.0) < 0.05
    kept = run_three_steps(lambda: tf.nn.dropout(tf.ones([10000]), 0.25))
    assert np.unique(kept).round(5).tolist() == [0.0, 1.33333]


def test_op_seeds_repeat_and_two_ops_of_one_step_differ():
    def draw():
        return tf.stack([tf.random.uniform([4], seed=3), tf.random.uniform([4], seed=4), tf.random.uniform([4])])

    first = run_three_steps(draw)
    assert np.array_equal(first, run_three_steps(draw))
    assert len(np.unique(first)) == first.size


def test_draws_in_loops_and_nested_functions_advance():
    @tf.function
    def nested():
        return tf.random.uniform([])

    def draw():
        drawn = tf.TensorArray(tf.float32, 4)
        for index in tf.range(4):
            drawn = drawn.write(index, nested())
        return drawn.stack()

    values = run_three_steps(draw)
    assert len(np.unique(values)) == values.size


def test_unseeded_draws_differ_between_strategies():
    tf.random.set_seed(None)
    step = tf.function(lambda: tf.random.uniform([5]))
    draws = []
    for _ in range(2):
        strategy = mirrored(2)
        draws += values_of(strategy, strategy.run(step))
    assert len({tuple(draw) for draw in draws}) == 4


def test_stateless_draws_are_left_alone():
    values = run_three_steps(lambda: tf.random.stateless_uniform([5], seed=[1, 2]))
    assert len({tuple(stream) for stream in values.reshape(12, -1).tolist()}) == 1


def test_op_that_has_no_stateless_form_raises_by_name():
    strategy = mirrored(2)
    with pytest.raises(NotImplementedError, match="RandomPoisson"):
        strategy.run(tf.function(lambda: tf.random.poisson([3], 2.0)))


def test_dropout_of_one_replica_is_tensorflows_own():
    tf.random.set_seed(5)
    strategy = mirrored(1)
    ours = values_of(strategy, strategy.run(tf.function(lambda: tf.random.uniform([5], seed=3))))
    tf.random.set_seed(5)
    assert ours == [tf.function(lambda: tf.random.uniform([5], seed=3))().numpy().tolist()]


@pytest.mark.parametrize("draw", [
    lambda: tf.random.uniform([4], seed=3),
    lambda: tf.random.normal([4], seed=3),
    lambda: tf.random.shuffle(tf.range(20), seed=3),
    lambda: tf.cast(tf.random.uniform([4], 0, 10 ** 6, tf.int32, seed=3), tf.float32),
    tf.function(lambda: tf.nn.dropout(tf.ones([64]), 0.5)),
], ids=["uniform", "normal", "shuffle", "integers", "dropout in a function"])
def test_replicas_that_run_in_python_draw_streams_of_their_own(draw):
    def drawn():
        tf.random.set_seed(4)
        strategy = mirrored(2)
        return values_of(strategy, strategy.run(lambda: draw()))

    first, second = drawn()
    assert first != second
    assert isinstance(draw, tf.types.experimental.PolymorphicFunction) or drawn() == [first, second]


def draws_and_checkpoint(num_replicas=4, seed=1):
    tf.random.set_seed(seed)
    strategy = mirrored(num_replicas)
    step = tf.function(lambda: (tf.random.uniform([3]), tf.nn.dropout(tf.ones([8]), 0.5)))

    def draw():
        return [values_of(strategy, value) for value in strategy.run(step)]

    return draw, tf.train.Checkpoint(streams=strategy.random_streams)


@pytest.mark.parametrize("is_traced_before", [True, False])
def test_streams_that_are_restored_go_on_where_they_stood_whether_traced_before_or_after(tmp_path, is_traced_before):
    draw, checkpoint = draws_and_checkpoint()
    for _ in range(3):
        draw()
    path = checkpoint.write(tmp_path / "checkpoint")
    expected = [draw() for _ in range(2)]
    # Another seed: the keys come from the checkpoint too.
    again, other = draws_and_checkpoint(seed=9)
    if is_traced_before:
        again()
    other.read(path)
    assert [again() for _ in range(2)] == expected


def test_streams_restored_on_another_number_of_replicas_keep_counters_and_draw_apart(tmp_path):
    draw, checkpoint = draws_and_checkpoint(2)
    first = draw()
    path = checkpoint.write(tmp_path / "checkpoint")
    second = draw()
    again, other = draws_and_checkpoint(4)
    other.read(path)
    found = again()
    # The first two replicas have the same keys under the same seed, and the counters are those of the checkpoint.
    assert [values[:2] for values in found] == second != first
    assert len({tuple(values) for values in found[0]}) == 4
