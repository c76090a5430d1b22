"""State that exists once: changed in the order of the replicas, the same on every run, or refused by name."""

import pytest
import tensorflow as tf

import lockstep
from testing.replicas import mirrored, replica_context, values_of


def number():
    return tf.cast(replica_context().replica_id_in_sync_group, tf.float32)


@pytest.mark.parametrize("num_replicas", [1, 2, 4])
def test_plain_variable_is_written_by_each_replica_in_turn_100_times(num_replicas):
    strategy = mirrored(num_replicas)
    plain = tf.Variable(0.0)

    @tf.function
    def step():
        plain.assign(plain + 1.0)

    for _ in range(100):
        plain.assign(0.0)
        strategy.run(step)
        assert float(plain) == float(num_replicas)


@pytest.mark.parametrize("synchronises", [False, True])
def test_values_are_seen_in_replica_order(synchronises):
    strategy = mirrored(4)
    plain = tf.Variable(1.0)

    @tf.function
    def step():
        plain.assign(plain * 2.0 + number())
        seen = plain.read_value()
        total = replica_context().all_reduce("SUM", number()) if synchronises else 6.0
        return seen, total

    for _ in range(20):
        plain.assign(1.0)
        seen, total = strategy.run(step)
        # 1 -> 2*1+0 -> 2*2+1 -> 2*5+2 -> 2*12+3
        assert values_of(strategy, seen) == [2.0, 5.0, 12.0, 27.0]
        assert values_of(strategy, total) == [6.0] * 4 if synchronises else True


def test_training_step_may_count_in_a_plain_variable():
    strategy = mirrored(4)
    count = tf.Variable(0, dtype=tf.int64)
    with strategy.scope():
        weight = tf.Variable(0.0)

    def step():
        count.assign_add(1)
        weight.assign_add(replica_context().all_reduce("SUM", number()))

    @tf.function
    def loop(steps):
        for _ in tf.range(steps):
            strategy.run(step)

    loop(tf.constant(5))
    assert int(count) == 20
    assert values_of(strategy, weight) == [30.0] * 4


@pytest.mark.parametrize("where", ["between", "branch"])
def test_state_that_waits_for_other_replicas_is_refused_by_name(where):
    strategy = mirrored(2)
    plain = tf.Variable(0.0, name="shared_total")

    @tf.function
    def step():
        if where == "between":
            plain.assign(replica_context().all_reduce("SUM", plain.read_value() + 1.0))
        elif number() < 5.0:
            plain.assign_add(replica_context().all_reduce("SUM", 1.0))

    with pytest.raises(RuntimeError, match="shared_total.*strategy.scope"):
        strategy.run(step)


def test_iterator_made_outside_is_drawn_from_in_replica_order():
    strategy = mirrored(4)
    iterator = iter(tf.data.Dataset.range(100))

    @tf.function
    def step():
        return next(iterator), replica_context().all_reduce("SUM", 1)

    for launch in range(10):
        assert values_of(strategy, strategy.run(step)[0]) == [4 * launch + replica for replica in range(4)]


def test_mutable_table_is_filled_by_all_replicas():
    strategy = mirrored(4)
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, default_value=-1)

    @tf.function
    def step():
        key = tf.cast(replica_context().replica_id_in_sync_group, tf.int64)
        table.insert(key, table.size())

    strategy.run(step)
    assert table.lookup(tf.range(4, dtype=tf.int64)).numpy().tolist() == [0, 1, 2, 3]


def test_generator_made_outside_gives_replicas_different_numbers_the_same_on_every_run():
    def draw():
        strategy = mirrored(4)
        generator = tf.random.Generator.from_seed(7)
        step = tf.function(lambda: generator.uniform([]))
        return [values_of(strategy, strategy.run(step)) for _ in range(3)]

    first = draw()
    assert first == draw()
    assert len({value for launch in first for value in launch}) == 12


def test_value_read_from_shared_state_cannot_make_a_mirrored_variable_diverge():
    strategy = mirrored(2)
    plain = tf.Variable(0.0)
    with strategy.scope():
        weight = tf.Variable(0.0, name="weight")

    @tf.function
    def step():
        plain.assign_add(1.0)
        weight.assign(plain.read_value())

    with pytest.raises((tf.errors.InvalidArgumentError, RuntimeError), match="weight|plain|Variable"):
        strategy.run(step)
    assert values_of(strategy, weight) == [0.0, 0.0]


def test_reading_shared_state_needs_no_order():
    strategy = mirrored(2)
    rate = tf.Variable(0.5)
    with strategy.scope():
        weight = tf.Variable(1.0)
    strategy.run(tf.function(lambda: weight.assign_sub(rate * replica_context().all_reduce("SUM", 1.0))))
    assert values_of(strategy, weight) == [0.0, 0.0]


def test_plain_python_step_changes_state_in_order():
    strategy = mirrored(4)
    plain = tf.Variable(1.0)

    def step():
        plain.assign(plain * 2.0 + number())
        return plain.read_value()

    assert values_of(strategy, strategy.run(step)) == [2.0, 5.0, 12.0, 27.0]
    assert isinstance(strategy, lockstep.Strategy)
