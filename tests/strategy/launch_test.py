"""Launches: always run, on every replica, in order; synchronisation in branches and loops; clean after failures."""

import threading

import pytest
import tensorflow as tf

import lockstep
from testing.replicas import mirrored, replica_context, split_rows, values_of

SIZES = (2, 4)


def replica_number():
    return tf.cast(replica_context().replica_id_in_sync_group, tf.float32)


def own_counter(strategy):
    """A variable that each replica counts for itself."""
    with strategy.scope():
        return tf.Variable(0.0, synchronization=tf.VariableSynchronization.ON_READ,
                           aggregation=tf.VariableAggregation.SUM)


@pytest.mark.parametrize("num_replicas", SIZES)
def test_step_whose_result_is_unused_runs_on_all_replicas(num_replicas):
    strategy = mirrored(num_replicas)
    counter = own_counter(strategy)

    @tf.function
    def outer():
        strategy.run(lambda: counter.assign_add(1.0))
        strategy.run(lambda: None if counter.assign_add(1.0) is None else None)

    outer()
    assert values_of(strategy, counter) == [2.0] * num_replicas


@pytest.mark.parametrize("num_replicas", SIZES)
def test_step_of_which_one_replicas_result_is_used_runs_on_all(num_replicas):
    strategy = mirrored(num_replicas)
    counter = own_counter(strategy)

    @tf.function
    def outer():
        result = strategy.run(lambda: counter.assign_add(1.0) + 0.0)
        return strategy.experimental_local_results(result)[0]

    assert float(outer()) == 1.0
    assert values_of(strategy, counter) == [1.0] * num_replicas


@pytest.mark.parametrize("num_replicas", SIZES)
def test_reads_after_a_launch_see_it_and_launches_keep_their_order(num_replicas):
    strategy = mirrored(num_replicas)
    with strategy.scope():
        weight = tf.Variable(1.0)

    @tf.function
    def outer():
        strategy.run(lambda: weight.assign_add(1.0))
        after_first = weight.read_value()
        strategy.run(lambda: weight.assign(weight * 10.0))
        return after_first, weight.read_value()

    assert [float(value) for value in outer()] == [2.0, 20.0]


@pytest.mark.parametrize("num_replicas", SIZES)
def test_loop_of_twenty_steps_in_one_function(num_replicas):
    strategy = mirrored(num_replicas)
    with strategy.scope():
        weight = tf.Variable(0.0)

    def step():
        weight.assign_add(replica_context().all_reduce("SUM", replica_number() + 1.0))

    @tf.function
    def outer(steps):
        for _ in tf.range(steps):
            strategy.run(step)

    outer(tf.constant(20))
    assert values_of(strategy, weight) == [20.0 * num_replicas * (num_replicas + 1) / 2] * num_replicas


@pytest.mark.parametrize("num_replicas", SIZES)
@pytest.mark.parametrize("where", ["cond", "while", "autograph", "nested function"])
def test_all_reduce_inside_control_flow(num_replicas, where):
    strategy = mirrored(num_replicas)

    def total(x):
        return replica_context().all_reduce("SUM", x)

    @tf.function
    def nested(x):
        return total(x)

    @tf.function
    def step(x, go):
        if where == "cond":
            return tf.cond(go, lambda: total(x), lambda: x)
        if where == "while":
            return tf.while_loop(lambda i, _: i < 3, lambda i, v: (i + 1, total(v)), (0, x))[1]
        if where == "nested function":
            return nested(nested(x))
        if go:
            for _ in tf.range(2):
                x = total(x)
        return x

    start = lockstep.PerReplica([tf.constant(float(index + 1)) for index in range(num_replicas)])
    ranks = num_replicas * (num_replicas + 1) / 2
    factor = {"cond": 1, "while": num_replicas ** 2, "autograph": num_replicas, "nested function": num_replicas}
    for _ in range(2):
        result = strategy.run(step, args=(start, tf.constant(True)))
        assert values_of(strategy, result) == [ranks * factor[where]] * num_replicas
    if where in ("cond", "autograph"):
        skipped = strategy.run(step, args=(start, tf.constant(False)))
        assert values_of(strategy, skipped) == [index + 1.0 for index in range(num_replicas)]


def test_replicas_that_take_different_branches_raise_and_the_next_launch_is_right():
    strategy = mirrored(2)

    @tf.function
    def step(who):
        number = replica_number()
        if number < who:
            number = replica_context().all_reduce("SUM", number + 1.0)
        return number

    assert values_of(strategy, strategy.run(step, args=(tf.constant(2.0),))) == [3.0, 3.0]
    for _ in range(2):
        with pytest.raises(lockstep.CollectiveMismatchError, match="end of the step"):
            strategy.run(step, args=(tf.constant(1.0),))
        assert values_of(strategy, strategy.run(step, args=(tf.constant(2.0),))) == [3.0, 3.0]


@pytest.mark.parametrize("when", ["before", "after"])
def test_replica_that_raises_is_named_and_the_next_launch_is_right(when):
    strategy = mirrored(4)

    @tf.function
    def step(x, bad):
        if when == "before":
            tf.debugging.assert_less(x, bad, "too large")
        total = replica_context().all_reduce("SUM", x)
        if when == "after":
            with tf.control_dependencies([total]):
                tf.debugging.assert_less(x, bad, "too large")
        return total

    x = lockstep.PerReplica([tf.constant(float(index)) for index in range(4)])
    for attempt in range(3):
        with pytest.raises(tf.errors.InvalidArgumentError, match="(?s)replica 3 .*too large"):
            strategy.run(step, args=(x, tf.constant(3.0)))
        scaled = lockstep.PerReplica([tf.constant(float(index) * attempt) for index in range(4)])
        assert values_of(strategy, strategy.run(step, args=(scaled, tf.constant(99.0)))) == [6.0 * attempt] * 4


@pytest.mark.parametrize("where", ["loop", "branch", "data", "data in a loop", "collective in a branch"])
@pytest.mark.parametrize("num_replicas", SIZES)
def test_replica_that_raises_within_a_users_function_is_named_and_the_next_launch_is_right(num_replicas, where):
    strategy = mirrored(num_replicas)
    with strategy.scope():
        total = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)
    x = lockstep.PerReplica([tf.constant(float(index)) for index in range(num_replicas)])
    rows = tf.data.Dataset.range(num_replicas).repeat().batch(num_replicas)
    batches = iter(strategy.experimental_distribute_dataset(rows.map(lambda row: tf.cast(row, tf.float32))))

    def step(x, bad):
        total.assign_add(replica_context().all_reduce("SUM", tf.reduce_sum(x)) / num_replicas)
        tf.debugging.assert_none_equal(x, bad, message="unlucky")

    def step_with_a_branch(x, bad):
        if bad > -2.0:
            total.assign_add(replica_context().all_reduce("SUM", x) / num_replicas)
        tf.debugging.assert_none_equal(x, bad, message="unlucky")

    @tf.function
    def train(bad):
        if where == "loop":
            for _ in tf.range(3):
                strategy.run(step, args=(x, bad))
        elif where == "branch":
            if bad > -2.0:
                strategy.run(step, args=(x, bad))
        elif where == "data":
            strategy.run(step, args=(next(batches), bad))
        elif where == "data in a loop":
            for _ in tf.range(3):
                strategy.run(step, args=(next(batches), bad))
        else:
            strategy.run(step_with_a_branch, args=(x, bad))

    steps = 3 if "loop" in where else 1
    for failing in [*range(num_replicas)] * 2:
        total.assign(0.0)
        train(tf.constant(-1.0))
        assert values_of(strategy, total) == [float(steps * sum(range(num_replicas)))] * num_replicas
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s)unlucky.*replica_{failing}/"):
            train(tf.constant(float(failing)))


def test_plain_function_whose_replica_raises_is_named():
    strategy = mirrored(2)

    def step():
        if int(replica_context().replica_id_in_sync_group) == 1:
            raise KeyError("lost")
        return replica_context().all_reduce("SUM", 1.0)

    with pytest.raises(KeyError) as caught:
        strategy.run(step)
    assert any("replica 1" in note for note in caught.value.__notes__)
    assert values_of(strategy, strategy.run(lambda: replica_context().all_reduce("SUM", 1.0))) == [2.0, 2.0]


def test_plain_function_whose_replicas_call_different_collectives_raises():
    strategy = mirrored(2)

    def step():
        if int(replica_context().replica_id_in_sync_group) == 1:
            return replica_context().all_reduce("SUM", 1.0)
        return tf.constant(0.0)

    with pytest.raises(lockstep.CollectiveMismatchError, match="replica 0: end of the step; replica 1: all-reduce"):
        strategy.run(step)


def test_two_threads_on_one_step_are_right_600_times():
    strategy = mirrored(2)
    step = tf.function(lambda x: replica_context().all_reduce("SUM", x))
    outer = tf.function(lambda x: strategy.run(step, args=(x,)))
    wrong = []

    def work(offset, run):
        for count in range(300):
            base = float(offset + count)
            value = lockstep.PerReplica((tf.constant(base), tf.constant(2.0 * base)))
            if values_of(strategy, run(value)) != [3.0 * base] * 2:
                wrong.append(base)

    runs = (lambda value: strategy.run(step, args=(value,)), outer)
    threads = [threading.Thread(target=work, args=(1000 * index, run), daemon=True) for index, run in enumerate(runs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


def test_device_of_a_variable_in_a_step_pins_no_replica():
    strategy = mirrored(2)
    with strategy.scope():
        weight = tf.Variable(1.0)
    seen = []

    @tf.function
    def step():
        with tf.device(weight.device):
            first = weight * 2.0
        with tf.device("CPU:0"):
            second = first + 1.0
        seen.extend([first.op.device, second.op.device])
        return second

    assert values_of(strategy, strategy.run(step)) == [3.0, 3.0]
    assert seen == ["", ""]


def test_model_of_many_tensors_reduces_them_all_without_a_thread_for_each():
    strategy = mirrored(2)

    @tf.function
    def step(scale):
        tensors = [tf.fill([index % 7 + 1], scale * index) for index in range(600)]
        return replica_context().all_reduce("SUM", tensors)

    scales = lockstep.PerReplica((tf.constant(1.0), tf.constant(2.0)))
    strategy.run(step, args=(scales,))
    before = number_of_threads()
    for _ in range(5):
        results = strategy.run(step, args=(scales,))
    assert number_of_threads() <= before + 4
    for index, result in enumerate(results):
        assert values_of(strategy, result) == [[3.0 * index] * (index % 7 + 1)] * 2


def number_of_threads():
    with open("/proc/self/status", encoding="ascii") as status:
        return int(next(line.split()[1] for line in status if line.startswith("Threads:")))


def test_step_with_partial_batches_in_a_distributed_loop():
    strategy = mirrored(4)
    with strategy.scope():
        total = tf.Variable(0.0)

    @tf.function
    def step(x):
        total.assign_add(replica_context().all_reduce("SUM", tf.reduce_sum(x)))

    for rows in range(1, 9):
        strategy.run(step, args=(split_rows(strategy, range(rows)),))
    assert values_of(strategy, total) == [float(sum(n * (n - 1) / 2 for n in range(1, 9)))] * 4


def test_what_failed_in_a_users_function_is_not_told_of_a_later_step():
    strategy = mirrored(2)

    @tf.function
    def step(who, index):
        number = replica_number()
        if number < who:
            number = replica_context().all_reduce("SUM", number)
        return tf.gather([1.0, 2.0], index)

    with pytest.raises(tf.errors.InvalidArgumentError, match="Replicas met in different collectives"):
        tf.function(lambda: strategy.run(step, args=(tf.constant(1.0), tf.constant(0))))()
    with pytest.raises(tf.errors.InvalidArgumentError, match="(?s)^((?!different collectives).)*indices = 7"):
        strategy.run(step, args=(tf.constant(2.0), tf.constant(7)))


@pytest.mark.parametrize("missing", [0, 1])
def test_replica_that_does_not_come_to_an_exchange_is_named_and_the_next_launch_is_right(missing, caplog):
    strategy = mirrored(2, warn_seconds=0.1, timeout_seconds=0.5)

    @tf.function
    def step(x, goes_on):
        count = 0.0
        while goes_on and replica_number() == float(missing):
            count += 1.0
        return replica_context().all_reduce("SUM", x + count)

    late = f"replica {missing} has not come to all-reduce SUM of float32 .* while others wait there"
    for _ in range(2):
        caplog.clear()
        with pytest.raises(lockstep.CollectiveError, match=f"`strategy.run`: {late}.*timeout_seconds"):
            strategy.run(step, args=(tf.constant(1.0), tf.constant(True)))
        assert sum("has not come" in record.message for record in caplog.records) == 2
        assert values_of(strategy, strategy.run(step, args=(tf.constant(1.0), tf.constant(False)))) == [2.0, 2.0]
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s){late}"):
        tf.function(lambda: strategy.run(step, args=(tf.constant(1.0), tf.constant(True))))()
