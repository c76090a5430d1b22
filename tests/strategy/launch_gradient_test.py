"""Gradients through `strategy.run`: a tape around it gives what one device gives."""

import pytest
import tensorflow as tf

import lockstep
from testing.replicas import mirrored, replica_context, split_rows, values_of

SIZES = pytest.mark.parametrize("num_replicas", [1, 2, 4])
# Where the tape is: in Python around `run` of a plain function or of a tf.function, in a tf.function around `run`, or
# around such a tf.function.
WHERE = pytest.mark.parametrize("where", ["plain", "eager", "in a function", "around a function"])


def made(where, step):
    return step if where == "plain" else tf.function(step)


def total(strategy, step, *args):
    """A function of nothing: the sum of what the step gives on all replicas."""
    return lambda: strategy.reduce("SUM", strategy.run(step, args=args), axis=None)


def gradients(where, run, sources):
    """The gradients of what `run()` returns, with respect to `sources`."""
    def taped(run):
        with tf.GradientTape() as tape:
            for source in tf.nest.flatten(sources, expand_composites=True):
                if not isinstance(source, tf.Variable):
                    tape.watch(source)
            target = run()
        return tape.gradient(target, sources)

    if where == "in a function":
        return tf.function(lambda: taped(run))()
    return taped(tf.function(run) if where == "around a function" else run)


def scaled_square(w, x):
    """Σ (w·x)² over all rows of all replicas, each replica's part."""
    return tf.reduce_sum((w * x) ** 2)


@WHERE
@SIZES
@pytest.mark.parametrize("count", [8, 5, 1])
def test_gradient_of_the_total_with_respect_to_a_mirrored_variable(num_replicas, where, count):
    strategy = mirrored(num_replicas)
    with strategy.scope():
        w = tf.Variable(2.0)
    rows = split_rows(strategy, [float(row) for row in range(1, count + 1)])
    step = made(where, lambda x: scaled_square(w, x))

    def run():
        parts = strategy.run(step, args=(rows,))
        return strategy.reduce("SUM", parts, axis=None)

    squares = sum(row ** 2 for row in range(1, count + 1))
    assert float(gradients(where, run, w)) == pytest.approx(2 * 2.0 * squares)


@WHERE
@SIZES
def test_gradient_with_respect_to_the_inputs_and_a_shared_argument(num_replicas, where):
    strategy = mirrored(num_replicas)
    rows = [float(row) for row in range(1, 6)]
    parts = split_rows(strategy, rows)
    scale = tf.constant(3.0)
    step = made(where, lambda x, scale: tf.reduce_sum(scale * x ** 2))

    run = total(strategy, step, parts, scale)
    by_input, by_scale = gradients(where, run, [list(strategy.experimental_local_results(parts)), scale])
    assert [value for part in by_input for value in part.numpy().tolist()] == [6.0 * row for row in rows]
    assert float(by_scale) == sum(row ** 2 for row in rows)


@WHERE
@SIZES
def test_gradient_passes_through_the_collectives_of_the_step(num_replicas, where):
    # Each replica returns (Σ_all w·x)², so that the total is N (w Σx)² with gradient 2 N w (Σx)².
    strategy = mirrored(num_replicas)
    with strategy.scope():
        w = tf.Variable(2.0)
    rows = split_rows(strategy, [1.0, 2.0, 3.0, 4.0, 5.0])

    def step(x):
        return replica_context().all_reduce("SUM", tf.reduce_sum(w * x)) ** 2

    run = total(strategy, made(where, step), rows)
    assert float(gradients(where, run, w)) == 2 * num_replicas * 2.0 * 15.0 ** 2


@WHERE
@SIZES
def test_gradient_passes_through_all_gather(num_replicas, where):
    strategy = mirrored(num_replicas)
    rows = [1.0, 2.0, 3.0, 4.0, 5.0]
    parts = split_rows(strategy, rows)
    step = made(where, lambda x: tf.reduce_sum(replica_context().all_gather(x, axis=0) ** 2))

    run = total(strategy, step, parts)
    by_input, = gradients(where, run, [list(strategy.experimental_local_results(parts))])
    assert [value for part in by_input for value in part.numpy().tolist()] == [2 * num_replicas * row for row in rows]


@WHERE
@SIZES
def test_gradient_of_a_lookup_stays_sparse_and_counts_every_replica(num_replicas, where):
    strategy = mirrored(num_replicas)
    with strategy.scope():
        table = tf.Variable(tf.ones([4, 1]))
    ids = split_rows(strategy, [0, 0, 1, 1, 3], tf.int32)
    step = made(where, lambda ids: tf.reduce_sum(tf.nn.embedding_lookup(table, ids)))

    run = total(strategy, step, ids)
    gradient = gradients(where, run, table)
    assert isinstance(gradient, tf.IndexedSlices)
    assert tf.convert_to_tensor(gradient).numpy().tolist() == [[2.0], [2.0], [0.0], [1.0]]


@WHERE
@SIZES
def test_gradient_through_branches_and_loops_of_the_step(num_replicas, where):
    strategy = mirrored(num_replicas)
    with strategy.scope():
        w = tf.Variable(2.0)
    rows = split_rows(strategy, [1.0, 2.0, 3.0, 4.0])

    def step(x):
        total = tf.reduce_sum(w * x)
        for _ in tf.range(2):
            total = replica_context().all_reduce("SUM", total)
        if total > 0.0:
            total = total * w
        return total

    run = total(strategy, made(where, step), rows)
    # Each replica: N · 10 w²  (the first sum is 10 w, the second N times that); N replicas: N² · 10 w².
    assert float(gradients(where, run, w)) == num_replicas ** 2 * 10.0 * 2 * 2.0


@pytest.mark.parametrize("where", ["plain", "eager"])
@SIZES
def test_a_step_that_writes_state_runs_once_under_a_tape(num_replicas, where):
    strategy = mirrored(num_replicas)
    with strategy.scope():
        w = tf.Variable(2.0)
        count = tf.Variable(0.0, trainable=False)
    plain = tf.Variable(0.0, trainable=False)

    def step(x):
        count.assign_add(1.0)
        plain.assign_add(1.0)
        return w * x

    step = made(where, step)
    for _ in range(2):  # The second time nothing is traced.
        with tf.GradientTape() as tape:
            total = strategy.reduce("SUM", strategy.run(step, args=(own(num_replicas),)), axis=None)
        assert float(tape.gradient(total, w)) == num_replicas
    assert values_of(strategy, count) == [2.0] * num_replicas
    assert float(plain) == 2.0 * num_replicas


def own(num_replicas):
    parts = [tf.constant(1.0)] * num_replicas
    return parts[0] if num_replicas == 1 else lockstep.PerReplica(parts)


@pytest.mark.parametrize("where", ["plain", "eager"])
@SIZES
def test_outputs_that_are_not_used_and_integers_have_no_gradient(num_replicas, where):
    strategy = mirrored(num_replicas)
    with strategy.scope():
        w = tf.Variable(2.0)
    step = made(where, lambda x: {"a": w * x, "count": tf.size(x), "unused": w ** 3})
    with tf.GradientTape() as tape:
        result = strategy.run(step, args=(own(num_replicas),))
        total = strategy.reduce("SUM", result["a"], axis=None)
    assert float(tape.gradient(total, w)) == num_replicas
    assert values_of(strategy, result["count"]) == [1] * num_replicas


@pytest.mark.parametrize("where", ["plain", "eager"])
@SIZES
def test_training_with_the_tape_around_run_is_training_on_one_device(num_replicas, where):
    strategy = mirrored(num_replicas)
    with strategy.scope():
        w = tf.Variable(1.0)
    step = made(where, lambda x: lockstep.average_loss((w * x) ** 2))
    expected = 1.0
    for count in (4, 3, 1):
        rows = [float(row) for row in range(1, count + 1)]
        with tf.GradientTape() as tape:
            loss = strategy.reduce("SUM", strategy.run(step, args=(split_rows(strategy, rows),)), axis=None)
        w.assign_sub(0.01 * tape.gradient(loss, w))
        expected -= 0.01 * 2 * expected * sum(row ** 2 for row in rows) / count
    assert values_of(strategy, w) == pytest.approx([expected] * num_replicas)


@pytest.mark.parametrize("where", ["plain", "eager"])
def test_second_order_gradient_through_run_is_refused_by_name(where):
    strategy = mirrored(2)
    with strategy.scope():
        w = tf.Variable(2.0)
    step = made(where, lambda x: w ** 3 * x)
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            total = strategy.reduce("SUM", strategy.run(step, args=(own(2),)), axis=None)
        first = inner.gradient(total, w)
    assert float(first) == 2 * 3 * 4.0
    with pytest.raises(LookupError, match="`strategy.run`.*Second-order gradients work inside the step only"):
        outer.gradient(first, w)


@SIZES
def test_second_order_gradient_inside_the_step(num_replicas):
    strategy = mirrored(num_replicas)
    with strategy.scope():
        w = tf.Variable(2.0)

    @tf.function
    def step(x):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                y = replica_context().all_reduce("SUM", w ** 3 * x)
            first = inner.gradient(y, w)
        return first, outer.gradient(first, w)

    first, second = strategy.run(step, args=(own(num_replicas),))
    # Everybody's y depends on everybody's w: the gradient of a sum over N replicas arrives N times.
    assert values_of(strategy, first) == [12.0 * num_replicas] * num_replicas
    assert values_of(strategy, second) == [12.0 * num_replicas] * num_replicas


def test_a_function_traced_without_a_tape_says_that_it_cannot_be_differentiated():
    strategy = mirrored(2)
    with strategy.scope():
        w = tf.Variable(2.0)
    total = tf.function(lambda: strategy.reduce("SUM", strategy.run(tf.function(lambda x: w * x), args=(own(2),)),
                                                axis=None))
    assert float(total()) == 4.0
    with tf.GradientTape() as tape, pytest.raises(LookupError, match="no tf.GradientTape was open when it was traced"):
        tape.gradient(total(), w)


@WHERE
@SIZES
def test_gradient_reaches_a_tensor_and_a_per_replica_value_in_the_closure(num_replicas, where):
    strategy = mirrored(num_replicas)
    scale, parts = tf.constant(3.0), split_rows(strategy, [1.0, 2.0, 3.0, 4.0, 5.0])

    def run():
        results = strategy.run(made(where, lambda: tf.reduce_sum(scale * parts ** 2)))
        return strategy.reduce("SUM", results, axis=None)

    by_scale, by_parts = gradients(where, run, [scale, list(strategy.experimental_local_results(parts))])
    assert float(by_scale) == 55.0
    assert [value for part in by_parts for value in part.numpy().tolist()] == [6.0, 12.0, 18.0, 24.0, 30.0]
