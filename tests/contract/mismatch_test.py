"""Replicas whose exchanges do not fit together, or stand where none can be: one error that says what each has brought.

The class and the text are the same for a traced step, one that is traced once per replica, and one in Python.
"""

import keras
import pytest
import tensorflow as tf

import lockstep
from testing.replicas import assert_works, mirrored, own, replica_context, values_of

TRACED = pytest.mark.parametrize("traced", [True, False], ids=["traced", "python"])


def is_first():
    return replica_context().replica_id_in_sync_group == 0


def reduced(x):
    return replica_context().all_reduce("SUM", x)


@TRACED
def test_replicas_that_gather_along_different_axes_are_told_apart(traced):
    strategy = mirrored(2)

    def step(x):
        if is_first():
            return replica_context().all_gather(x[None, None], axis=0)
        return replica_context().all_gather(x[None, None], axis=1)

    with pytest.raises(lockstep.CollectiveMismatchError, match=(
            "replica 0: all-gather axis 0 of .*replica 1: all-gather axis 1 of ")):
        strategy.run(tf.function(step) if traced else step, args=(own(1.0, 2.0),))
    assert_works(strategy)


@TRACED
def test_the_value_whose_shapes_differ_is_named(traced):
    strategy = mirrored(2)
    x = (own(1.0, 2.0), own([[1.0, 2.0]], [[1.0]]))

    def step(*values):
        return reduced(list(values))

    with pytest.raises(tf.errors.InvalidArgumentError, match=r"^`all_reduce` of value 1 of 2: the replicas' shapes "
                                                             r"differ. By rank: \[1 2\], \[1 1\]"):
        strategy.run(tf.function(step) if traced else step, args=x)
    assert_works(strategy)


@TRACED
@pytest.mark.parametrize("parts, shapes", [(([[1.0]], [[1.0, 2.0]]), (r"\[1 2\]", r"\[1 1\]")),
                                           (([1.0], [[1.0]]), (r"\[1 1\]", r"\[1\]"))])
def test_shapes_that_do_not_fit_together_are_named(parts, shapes, traced):
    strategy = mirrored(2)

    def step(x):
        return replica_context().all_gather(x, axis=0)

    with pytest.raises(tf.errors.InvalidArgumentError, match=(
            f"^`all_gather`: replica 1 has shape {shapes[0]}, replica 0 has {shapes[1]}. Only the sizes along axis 0")):
        strategy.run(tf.function(step) if traced else step, args=(own(*parts),))
    assert_works(strategy)


@TRACED
def test_a_write_whose_values_differ_tells_the_values(traced):
    strategy = mirrored(2)
    with strategy.scope():
        v = tf.Variable(5.0, name="weight")
    step = (lambda x: v.assign(x))
    with pytest.raises(tf.errors.InvalidArgumentError, match=(
            "^Variable 'weight:0' with aggregation NONE: `assign` in a replica: the replicas' values differ. "
            "By rank: 1, 2. Give the variable an aggregation")):
        strategy.run(tf.function(step) if traced else step, args=(own(1.0, 2.0),))
    assert values_of(strategy, v) == [5.0, 5.0]


PARTING = {
    "one calls": (lambda x, is_one: reduced(x) if is_one else x, "1 float32 tensor; replica 1: end of the step"),
    "dtypes": (lambda x, is_one: reduced(x if is_one else tf.cast(x, tf.int32)), "1 float32 .*replica 1: .*1 int32"),
    "counts": (lambda x, is_one: reduced([x] if is_one else [x, x]), "1 float32 .*replica 1: .*2 float32 tensors"),
}


@TRACED
@pytest.mark.parametrize("case", PARTING)
def test_python_arguments_that_part_the_replicas_are_a_mismatch(case, traced):
    strategy = mirrored(2)
    step, match = PARTING[case]
    with pytest.raises(lockstep.CollectiveMismatchError, match=f"^`strategy.run`: .*0: all-reduce SUM of {match}"):
        strategy.run(tf.function(step) if traced else step,
                     args=(own(1.0, 2.0), lockstep.PerReplica([True, False])))
    assert_works(strategy)


@TRACED
def test_shapes_that_python_arguments_make_differ_are_named(traced):
    strategy = mirrored(2)

    def step(x, is_one):
        return reduced(x if is_one else x[:1])

    with pytest.raises(tf.errors.InvalidArgumentError, match=(
            r"^`all_reduce`: the replicas' shapes differ. By rank: \[2\], \[1\]. Every replica must pass one shape")):
        strategy.run(tf.function(step) if traced else step,
                     args=(own([1.0, 2.0], [3.0, 4.0]), lockstep.PerReplica([True, False])))
    assert_works(strategy)


@pytest.mark.parametrize("nested", [False, True], ids=["step", "nested"])
@pytest.mark.parametrize("implementation", ["local", "ring"])
def test_an_exchange_in_a_function_that_xla_compiles_is_refused(implementation, nested):
    strategy = mirrored(2, implementation=implementation)
    compiled = tf.function(lambda x: replica_context().all_reduce("SUM", x), jit_compile=True)
    step = tf.function(lambda x: compiled(x)) if nested else compiled
    with pytest.raises(ValueError, match=("(?s)`jit_compile=True` under a strategy with several replicas: all-reduce "
                                          "SUM of float32 .*XLA cannot compile the exchange.*Leave")):
        strategy.run(step, args=(own(1.0, 2.0),))
    assert_works(strategy)
    doubled = strategy.run(tf.function(lambda x: 2 * x, jit_compile=True), args=(own(1.0, 2.0),))
    assert values_of(strategy, doubled) == [2.0, 4.0]


@TRACED
@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_keras_loops_in_a_step_are_refused(method, traced):
    strategy = mirrored(2)
    with strategy.scope():
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)], name="network")
        model.compile("sgd", "mse")
    data = [tf.ones([2, 1])] * (1 if method == "predict" else 2)

    def step():
        getattr(model, method)(*data, verbose=0)

    with pytest.raises(RuntimeError, match="(?s)Keras model 'network': `fit`, .*called inside `strategy.run`.*outside"):
        strategy.run(tf.function(step) if traced else step)
    assert_works(strategy)


@TRACED
def test_merge_call_of_what_cannot_be_called_is_refused(traced):
    strategy = mirrored(2)
    for step, error, match in (
            (lambda: replica_context().merge_call(3), TypeError, "`merge_call`: `merge_fn` is 3. Expected a function"),
            (lambda: replica_context().merge_call(reduced, args=1.0), ValueError, "`merge_call`: `args` is 1.0.")):
        with pytest.raises(error, match=match):
            strategy.run(tf.function(step) if traced else step)
    assert_works(strategy)


@TRACED
@pytest.mark.parametrize("lacking", [0, 1])
@pytest.mark.parametrize("settings", [{}, {"clipnorm": 100.0}], ids=["plain", "clipped"])
def test_a_gradient_that_one_replica_lacks_names_replica_and_variable(settings, lacking, traced):
    strategy = mirrored(2)
    with strategy.scope():
        variables = [keras.Variable(1.0, name=name) for name in ("used", "unused")]
        optimizer = keras.optimizers.SGD(0.1, name="sgd", **settings)
        optimizer.build(variables)

    def step(x, lacks):
        optimizer.apply([x, None if lacks else x], variables)

    match = f"replica {lacking} has no gradient of 'unused:0', of which replica {1 - lacking} has one. Every replica"
    if settings:
        match = f"replica {lacking} has gradients of 1 variables, replica {1 - lacking} of 2. Every replica"
    with pytest.raises(lockstep.CollectiveMismatchError, match=f"^Keras optimizer 'sgd': {match}"):
        strategy.run(tf.function(step) if traced else step,
                     args=(own(1.0, 2.0), lockstep.PerReplica([lacking == 0, lacking == 1])))
    assert [float(variable) for variable in variables] == [1.0, 1.0]
    assert_works(strategy)
