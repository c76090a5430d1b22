"""What people write in steps of their own: each gives one device's numbers, traced and in Python."""

import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import lockstep
from testing.replicas import mirrored, own, replica_context, split_rows, values_of

SIZES = pytest.mark.parametrize("num_replicas", [1, 2, 4])
TRACED = pytest.mark.parametrize("traced", [True, False], ids=["traced", "python"])


def run(strategy, traced, step, *args):
    return strategy.run(tf.function(step) if traced else step, args=args)


def number():
    return tf.cast(replica_context().replica_id_in_sync_group, tf.float32)


def test_gradient_accumulation_under_a_condition_reduces_once_for_two_micro_steps():
    strategy = mirrored(2)
    with strategy.scope():
        w = tf.Variable(1.0)
        total = tf.Variable(0.0, trainable=False, synchronization=tf.VariableSynchronization.ON_READ,
                            aggregation=tf.VariableAggregation.SUM)
        micro = tf.Variable(0, trainable=False, dtype=tf.int64)
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build([w])

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w * x) / 4  # The mean over the four rows of two micro-steps.
        total.assign_add(tape.gradient(loss, w))
        micro.assign_add(1)
        if micro % 2 == 0:
            optimizer.apply_gradients([(total.read_value(), w)])
            total.assign(0.0)

    @tf.function
    def train(x):
        strategy.run(step, args=(x,))

    assert len(strategy.plan(step, (own([1.0], [2.0]),)).exchanges) == 1
    train(own([1.0], [2.0]))
    assert values_of(strategy, w) == [1.0, 1.0]
    train(own([3.0], [4.0]))
    assert values_of(strategy, w) == [0.75, 0.75]
    assert int(optimizer.iterations.numpy()) == 1


def test_functions_run_eagerly_and_a_breakpoint_stops_in_every_replica(monkeypatch):
    strategy = mirrored(2)
    seen = []

    def step(x):
        doubled = 2 * x
        breakpoint()
        return replica_context().all_reduce("SUM", doubled)

    def stop():
        seen.append(float(sys._getframe(1).f_locals["doubled"]))

    monkeypatch.setattr(sys, "breakpointhook", stop)
    tf.config.run_functions_eagerly(True)
    try:
        total = strategy.run(tf.function(step), args=(own(1.0, 5.0),))
    finally:
        tf.config.run_functions_eagerly(False)
    assert seen == [2.0, 10.0]
    assert values_of(strategy, total) == [12.0, 12.0]


class Line(tf.Module):
    def __init__(self):
        super().__init__()
        self.w, self.b = tf.Variable(1.0), tf.Variable(0.0)

    def __call__(self, x):
        return self.w * x + self.b


class OwnMomentum(tf.Module):
    """An optimizer as Sonnet writes them: it makes its variables on the first call, and users reduce."""

    def __init__(self):
        super().__init__()
        self.momenta = []

    def apply(self, gradients, variables):
        if not self.momenta:
            self.momenta = [tf.Variable(tf.zeros_like(variable), trainable=False) for variable in variables]
        for gradient, variable, momentum in zip(gradients, variables, self.momenta):
            momentum.assign(0.9 * momentum + gradient)
            variable.assign_sub(0.01 * momentum)


@TRACED
@SIZES
def test_a_module_and_an_optimizer_of_ones_own_train_as_on_one_device(num_replicas, traced):
    def trained(strategy):
        with strategy.scope():
            model, optimizer = Line(), OwnMomentum()

        def step(x):
            with tf.GradientTape() as tape:
                loss = lockstep.average_loss((model(x) - 3 * x - 1) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            reduced = replica_context().all_reduce("SUM", gradients)
            clipped, _ = tf.clip_by_global_norm(reduced, 5.0)
            optimizer.apply(clipped, model.trainable_variables)

        step = tf.function(step) if traced else step
        for count in (4, 3, 1, 4):
            strategy.run(step, args=(split_rows(strategy, np.arange(1.0, 1.0 + count)),))
        return [float(variable) for variable in model.variables]

    assert trained(mirrored(num_replicas)) == pytest.approx(trained(mirrored(1)), rel=1e-5)


@TRACED
@SIZES
def test_metrics_in_the_step_count_every_row_once(num_replicas, traced):
    strategy = mirrored(num_replicas)
    with strategy.scope():
        metrics = [keras.metrics.Mean(), keras.metrics.BinaryAccuracy(), keras.metrics.AUC(num_thresholds=20)]
    alone = [keras.metrics.Mean(), keras.metrics.BinaryAccuracy(), keras.metrics.AUC(num_thresholds=20)]

    def step(labels, scores):
        metrics[0].update_state(scores)
        for metric in metrics[1:]:
            metric.update_state(labels, scores)

    step = tf.function(step) if traced else step
    for count in (8, 5, 2):
        scores = np.linspace(0.1, 0.9, count).astype(np.float32)[:, None]
        labels = (np.arange(count) % 3 > 0).astype(np.float32)[:, None]
        strategy.run(step, args=(split_rows(strategy, labels), split_rows(strategy, scores)))
        alone[0].update_state(scores)
        for metric in alone[1:]:
            metric.update_state(labels, scores)
    assert [float(metric.result()) for metric in metrics] == pytest.approx([float(one.result()) for one in alone])


def written(folder):
    files = tf.io.gfile.glob(f"{folder}/*")
    events = [event for file in files for event in tf.compat.v1.train.summary_iterator(file)]
    return [(event.step, value.tag, float(tf.make_ndarray(value.tensor)))
            for event in events for value in event.summary.value]


@pytest.mark.parametrize("with_collective", [False, True], ids=["alone", "beside a collective"])
@TRACED
def test_a_summary_is_written_once_by_replica_zero(tmp_path, traced, with_collective):
    strategy = mirrored(2)
    writer = tf.summary.create_file_writer(str(tmp_path))

    def step(x):
        if with_collective:
            x = replica_context().all_reduce("SUM", x)
        tf.summary.write("x", x + number())

    with writer.as_default(step=7):
        run(strategy, traced, step, own(1.0, 2.0))
    writer.close()
    assert written(tmp_path) == [(7, "x", 3.0 if with_collective else 1.0)]


@TRACED
def test_print_and_checks_work_in_a_step(capfd, traced):
    strategy = mirrored(2)

    def step(x):
        tf.debugging.assert_positive(x)
        tf.debugging.check_numerics(x, "x")
        tf.print("value", x, output_stream=sys.stderr)
        return x

    assert values_of(strategy, run(strategy, traced, step, own(1.0, 2.0))) == [1.0, 2.0]
    assert sorted(line for line in capfd.readouterr().err.splitlines() if line.startswith("value")) == \
        ["value 1", "value 2"]
    with pytest.raises(tf.errors.InvalidArgumentError):
        run(strategy, traced, step, own(1.0, -2.0))
    assert values_of(strategy, run(strategy, traced, step, own(3.0, 4.0))) == [3.0, 4.0]


@pytest.mark.parametrize("kind", ["py_function", "numpy_function"])
@TRACED
@SIZES
def test_a_python_function_reads_its_own_replicas_copies(num_replicas, traced, kind):
    strategy = mirrored(num_replicas)
    with strategy.scope():
        mirrored_variable = tf.Variable(10.0)
        of_each = tf.Variable(0.0, trainable=False, synchronization=tf.VariableSynchronization.ON_READ,
                              aggregation=tf.VariableAggregation.SUM)

    def read(x):
        return np.float32(x + mirrored_variable.numpy() + of_each.read_value().numpy())

    def step(x):
        of_each.assign(number() + 1.0)
        with tf.control_dependencies([of_each.read_value()]):
            result = getattr(tf, kind)(read, [x], tf.float32)
        return tf.ensure_shape(result, [])

    x = own(*[0.5] * num_replicas) if num_replicas > 1 else tf.constant(0.5)
    assert values_of(strategy, run(strategy, traced, step, x)) == [11.5 + index for index in range(num_replicas)]


def test_a_python_function_that_would_synchronise_is_refused_by_name():
    strategy = mirrored(2)
    with strategy.scope():
        v = tf.Variable(0.0, aggregation=tf.VariableAggregation.MEAN, name="weight")

    def step(x):
        return tf.py_function(lambda x: v.assign(x).read_value(), [x], tf.float32)

    with pytest.raises(tf.errors.OpError, match="`all-reduce`.*in a `tf.py_function`"):
        run(strategy, True, step, own(1.0, 2.0))


@TRACED
def test_a_lookup_table_is_read_by_every_replica(traced):
    strategy = mirrored(2)
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.constant(["a", "b"]), tf.constant([1, 2], tf.int64)), -1)
    ids = run(strategy, traced, lambda words: table.lookup(words), own(["a", "c"], ["b"]))
    assert values_of(strategy, ids) == [[1, -1], [2]]


@TRACED
def test_a_generator_made_under_the_scope_draws_a_stream_for_each_replica(traced):
    def drawn():
        strategy = mirrored(2)
        with strategy.scope():
            generator = tf.random.Generator.from_seed(5)
        step = (lambda: generator.normal([4]))
        step = tf.function(step) if traced else step
        return [values_of(strategy, strategy.run(step)) for _ in range(2)]

    first, second = drawn()
    assert first[0] != first[1] and first[0] != second[0]
    assert drawn() == [first, second]


@TRACED
@SIZES
def test_a_custom_gradient_is_taken(num_replicas, traced):
    strategy = mirrored(num_replicas)

    @tf.custom_gradient
    def clipped(x):
        return x, lambda upstream: tf.clip_by_value(upstream, -1.0, 1.0)

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = 5.0 * clipped(x)
        return replica_context().all_reduce("SUM", tape.gradient(y, x))

    x = own(*[2.0] * num_replicas) if num_replicas > 1 else tf.constant(2.0)
    assert values_of(strategy, run(strategy, traced, step, x)) == [1.0 * num_replicas] * num_replicas


@pytest.mark.parametrize("collective, expected", [
    (lambda context, x: context.all_reduce("SUM", x), lambda n: [2.0 * n * (n + 1) / 2 * n] * n),
    (lambda context, x: context.all_gather(x[None], axis=0), lambda n: [2.0 * n * (r + 1) for r in range(n)]),
], ids=["all_reduce", "all_gather"])
@TRACED
@SIZES
def test_gradients_pass_through_collectives_in_the_step(num_replicas, traced, collective, expected):
    # Every replica's loss is the sum of squares of what it gets; each x is in the loss of all replicas.
    strategy = mirrored(num_replicas)

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(collective(replica_context(), x) ** 2)
        return tape.gradient(loss, x)

    x = own(*np.arange(1.0, 1.0 + num_replicas, dtype=np.float32)) if num_replicas > 1 else tf.constant(1.0)
    assert values_of(strategy, run(strategy, traced, step, x)) == expected(num_replicas)


@TRACED
def test_a_pin_to_a_variables_device_stays_on_the_replicas_device(traced):
    strategy = mirrored(2)
    with strategy.scope():
        v = tf.Variable(1.0)
    devices = []

    def step():
        with tf.device(v.device):
            y = v + 1.0
        devices.append(y.device)
        return y

    results = strategy.experimental_local_results(run(strategy, traced, step))
    if traced:
        assert devices == [""]  # None of the replicas': each runs the op on its own.
    else:
        assert [device[-5:] for device in devices] == ["CPU:0", "CPU:1"]
    assert [float(result) for result in results] == [2.0, 2.0]


@SIZES
def test_a_learning_rate_schedule_steps_once_per_update(num_replicas):
    strategy = mirrored(num_replicas)
    with strategy.scope():
        w = tf.Variable(0.0)
        optimizer = keras.optimizers.SGD(keras.optimizers.schedules.PiecewiseConstantDecay([1, 2], [1.0, 0.1, 0.01]))
        optimizer.build([w])
    step = tf.function(lambda g: optimizer.apply_gradients([(g / num_replicas, w)]))
    gradient = own(*[1.0] * num_replicas) if num_replicas > 1 else tf.constant(1.0)
    reached = []
    for _ in range(4):
        strategy.run(step, args=(gradient,))
        reached.append(float(w))
    assert reached == pytest.approx([-1.0, -2.0, -2.1, -2.11])
    assert int(optimizer.iterations.numpy()) == 4
