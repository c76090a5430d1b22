"""`MirroredStrategy`: its devices are checked when it is made; several live in one process; it can be copied."""

import copy
import gc
import weakref

import pytest
import tensorflow as tf

import lockstep
from testing.replicas import mirrored, replica_context, values_of

THERE = "CPU:0, CPU:1, CPU:2, CPU:3, CPU:4, CPU:5, CPU:6, CPU:7"


@pytest.mark.parametrize("devices, match", [
    (["CPU:8"], "no device 'CPU:8'"),
    (["CPU:0", "CPU:99"], "no device 'CPU:99'"),
    (["XPU:0"], "no device 'XPU:0'"),
    (["GPU:0"], "no device 'GPU:0'"),
    (["CPU:x"], "no device 'CPU:x'"),
    (["nonsense"], "no device 'nonsense'"),
    ([""], "no device ''"),
    (["/job:worker/task:3/device:CPU:0"], "no device '/job:worker/task:3/device:CPU:0'"),
    (["CPU:0", "CPU:1", "CPU:0"], "'CPU:0' is listed twice"),
    (["CPU:0", "/device:CPU:0"], "'/device:CPU:0' is listed twice"),
    (["CPU:1", "/job:localhost/replica:0/task:0/device:CPU:1"], "is listed twice"),
    ([], "is empty"),
    ((), "is empty"),
])
def test_devices_that_cannot_be_used_raise_and_say_which_there_are(devices, match):
    with pytest.raises(ValueError, match=f"(?s){match}.*Devices here: {THERE}"):
        lockstep.MirroredStrategy(devices)


@pytest.mark.parametrize("devices", ["CPU:0", 2, [0, 1], [None], {"CPU:0"}, {"CPU:0": 1}, b"CPU:0", ["CPU:0", 1]])
def test_devices_of_a_wrong_type_raise(devices):
    with pytest.raises(TypeError, match="Expected a list of device names"):
        lockstep.MirroredStrategy(devices)


@pytest.mark.parametrize("options", [{}, "ring", tf.distribute.experimental.CommunicationOptions()])
def test_options_of_a_wrong_type_raise(options):
    with pytest.raises(TypeError, match="MirroredStrategy: `options` is .* Expected a lockstep.CollectiveOptions"):
        lockstep.MirroredStrategy(["CPU:0"], options)


def test_without_devices_all_logical_cpus_are_taken():
    strategy = lockstep.MirroredStrategy()
    assert strategy.num_replicas_in_sync == 8
    assert strategy.extended.worker_devices == tuple(
        f"/job:localhost/replica:0/task:0/device:CPU:{index}" for index in range(8))
    assert strategy.extended.parameter_devices == strategy.extended.worker_devices


@pytest.mark.parametrize("names", [["CPU:2", "CPU:1"], ("cpu:2", "cpu:1"), ["/CPU:2", "/cpu:1"],
                                   ["/device:CPU:2", "/job:localhost/replica:0/task:0/device:CPU:1"]])
def test_all_spellings_of_a_device_mean_the_same_and_their_order_is_kept(names):
    strategy = lockstep.MirroredStrategy(names)
    assert [device[-5:] for device in strategy.extended.worker_devices] == ["CPU:2", "CPU:1"]

    def place():
        return tf.constant(0.0).device[-5:]

    assert values_of(strategy, strategy.run(place)) == ["CPU:2", "CPU:1"]


def test_options_are_kept():
    options = lockstep.CollectiveOptions(bucket_bytes=1 << 20)
    assert lockstep.MirroredStrategy(["CPU:0"], options).options is options
    assert lockstep.MirroredStrategy(["CPU:0"]).options == lockstep.CollectiveOptions()


def test_it_is_a_tensorflow_strategy_of_its_own_kind():
    strategy = mirrored(2)
    assert isinstance(strategy, lockstep.Strategy) and isinstance(strategy, tf.distribute.Strategy)
    assert not isinstance(strategy, tf.distribute.MirroredStrategy)
    assert strategy.cluster_resolver is None


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_deepcopy_is_a_strategy_of_its_own(num_replicas):
    strategy = mirrored(num_replicas)
    other = copy.deepcopy(strategy)
    assert other is not strategy and other.extended is not strategy.extended
    assert other.extended.worker_devices == strategy.extended.worker_devices
    assert other.options == strategy.options
    for one in (strategy, other, strategy):
        with one.scope():
            v = tf.Variable(1.0)
            assert tf.distribute.get_strategy() is one
        assert one.extended.variable_created_in_scope(v)
        total = one.run(tf.function(lambda: replica_context().all_reduce("SUM", v)))
        assert values_of(one, total) == [float(num_replicas)] * num_replicas
    assert not strategy.extended.variable_created_in_scope(tf.Variable(1.0))


def test_shallow_copy_is_refused():
    with pytest.raises(RuntimeError, match="(?i)deepcopy"):
        copy.copy(mirrored(2))


def test_strategies_of_the_same_and_of_other_sizes_do_not_meet():
    strategies = [mirrored(2), mirrored(4), mirrored(2), mirrored(1)]
    variables = []
    for number, strategy in enumerate(strategies):
        with strategy.scope():
            variables.append(tf.Variable(float(number)))

    def make_step(v):
        def step():
            return v.assign_add(replica_context().all_reduce("SUM", tf.constant(1.0)))
        return tf.function(step)

    steps = [make_step(v) for v in variables]
    for _ in range(3):
        for strategy, step in zip(strategies, steps):
            strategy.run(step)
    assert [float(v) for v in variables] == [0 + 6.0, 1 + 12.0, 2 + 6.0, 3 + 3.0]


def test_strategies_side_by_side_in_one_function():
    two, four = mirrored(2), mirrored(4)

    def step(x):
        return replica_context().all_reduce("SUM", x)

    @tf.function
    def both(x):
        return two.reduce("MEAN", two.run(step, (x,))), four.reduce("MEAN", four.run(step, (x,)))

    for _ in range(3):
        assert [float(total) for total in both(tf.constant(1.0))] == [2.0, 4.0]


def used_and_dropped():
    strategy = mirrored(2)
    with strategy.scope():
        weight = tf.Variable(1.0)
    strategy.run(tf.function(lambda: weight + 1.0))
    return weakref.ref(strategy)


def test_strategy_that_is_no_longer_used_is_freed():
    gone = used_and_dropped()
    gc.collect()
    assert gone() is None
