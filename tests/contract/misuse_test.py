"""Misuse: one clear error with the object, the rule and the fix; nothing hangs, and the next step is right.

On tf.distribute most of these are an AssertionError, AttributeError or IndexError without text, a hang, or silence.
"""

import keras
import pytest
import tensorflow as tf

import lockstep
from testing.replicas import assert_works, mirrored, own, replica_context, values_of

TRACED = pytest.mark.parametrize("traced", [True, False], ids=["traced", "python"])
ON_READ, SUM = tf.VariableSynchronization.ON_READ, tf.VariableAggregation.SUM


def is_first():
    return replica_context().replica_id_in_sync_group == 0


def reduced(x):
    return replica_context().all_reduce("SUM", x)


def one_more_on_the_first_replica(x):
    total = reduced(x)
    if is_first():
        total = reduced(total)
    return total


def only_on_the_first_replica(x):
    if is_first():
        x = reduced(x)
    return x


def loops_of_different_lengths(x):
    for _ in tf.range(replica_context().replica_id_in_sync_group + 1):
        x = reduced(x)
    return x


def other_ops(x):
    if is_first():
        return reduced(x)
    return replica_context().all_reduce("MAX", x)


def other_kinds(x):
    if is_first():
        return reduced(x)
    return tf.reduce_sum(replica_context().all_gather(x[None], axis=0))


@pytest.mark.parametrize("step", [one_more_on_the_first_replica, only_on_the_first_replica, loops_of_different_lengths,
                                  other_ops, other_kinds])
@TRACED
def test_replicas_that_do_not_meet_are_told_apart(step, traced):
    strategy = mirrored(2)
    with pytest.raises(lockstep.CollectiveMismatchError, match="replica 0: .*replica 1|end of the step"):
        strategy.run(tf.function(step) if traced else step, args=(own(1.0, 2.0),))
    assert_works(strategy)


@TRACED
def test_shapes_that_differ_are_named(traced):
    strategy = mirrored(2)
    step = tf.function(reduced) if traced else reduced
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"^`all_reduce`: the replicas' shapes differ. By rank: "
                                                             r"\[2\], \[1\]. Every replica must pass one shape"):
        strategy.run(step, args=(own([1.0, 2.0], [1.0]),))
    assert_works(strategy)


@TRACED
def test_a_gradient_that_is_none_is_refused(traced):
    strategy = mirrored(2)
    with strategy.scope():
        used, unused = tf.Variable(1.0), tf.Variable(1.0)

    def step(x):
        with tf.GradientTape() as tape:
            loss = used * x
        return replica_context().all_reduce("SUM", tape.gradient(loss, [used, unused]))

    with pytest.raises(ValueError, match="(?s)`all_reduce`.*None.*leave variables without a gradient out"):
        strategy.run(tf.function(step) if traced else step, args=(own(1.0, 2.0),))
    assert_works(strategy)


@TRACED
def test_no_gradients_at_all_name_the_variables(traced):
    strategy = mirrored(2)
    with strategy.scope():
        v = keras.Variable(1.0, name="lonely")
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build([v])

    def step(x):
        with tf.GradientTape() as tape:
            loss = 2 * x
        optimizer.apply_gradients(zip(tape.gradient(loss, [v.value]), [v]))

    with pytest.raises(ValueError, match="No gradients provided for any variable"):
        strategy.run(tf.function(step) if traced else step, args=(own(1.0, 2.0),))
    assert_works(strategy)


@TRACED
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("num_replicas", [2, 4])
def test_a_replica_that_raises_is_named_with_its_cause(num_replicas, traced, when, failing):
    strategy = mirrored(num_replicas)

    def check(x):
        with tf.control_dependencies([tf.debugging.Assert(x >= 0.0, ["too small"])]):
            return tf.identity(x)

    def step(x):
        if when == "before":
            return reduced(check(x))
        with tf.control_dependencies([reduced(x)]):
            return check(x)

    x = own(*[-1.0 if index == failing else 1.0 for index in range(num_replicas)])
    with pytest.raises(tf.errors.InvalidArgumentError, match="too small") as raised:
        strategy.run(tf.function(step) if traced else step, args=(x,))
    told = str(raised.value) + "".join(getattr(raised.value, "__notes__", []))
    assert f"replica {failing} " in told
    assert_works(strategy)


CASES = {
    "duplicate devices": (lambda: lockstep.MirroredStrategy(["CPU:0", "CPU:0"]), ValueError, "CPU:0.*twice|duplicate"),
    "unknown device": (lambda: lockstep.MirroredStrategy(["CPU:99"]), ValueError, "CPU:99"),
    "no device": (lambda: lockstep.MirroredStrategy([]), ValueError, "device"),
    "sum of a single number": (lambda: mirrored(2).reduce("SUM", 1.0, axis=None), ValueError,
                               "SUM of the single value"),
    "unknown reduce op": (lambda: mirrored(2).reduce("MEDIAN", own(1.0, 2.0), axis=None), ValueError, "MEDIAN"),
    "scalar along an axis": (lambda: mirrored(2).reduce("SUM", own(1.0, 2.0), axis=0), ValueError, "scalar"),
    "shapes that differ": (lambda: mirrored(2).reduce("SUM", own([1.0], [1.0, 2.0]), axis=None), ValueError, "shape"),
    "axis that is none": (lambda: mirrored(2).reduce("SUM", own([1.0], [1.0]), axis="rows"), TypeError, "`axis`"),
    "gather along none": (lambda: mirrored(2).gather(own([1.0], [1.0]), axis=None), TypeError, "`axis`"),
    "gather of scalars": (lambda: mirrored(2).gather(own(1.0, 1.0), axis=0), ValueError, "scalar"),
    "args that are no list": (lambda: mirrored(2).run(reduced, args=own(1.0, 2.0)), ValueError, "`args`"),
    "too few components": (lambda: mirrored(4).run(reduced, args=(own(1.0, 2.0),)), ValueError, "2 components for 4"),
    "unbatched dataset": (lambda: mirrored(2).experimental_distribute_dataset(tf.data.Dataset.range(4)), ValueError,
                          "[Bb]atch"),
    "no dataset": (lambda: mirrored(2).experimental_distribute_dataset([1, 2]), TypeError, "tf.data.Dataset"),
    "list as destination": (lambda: mirrored(2).extended.reduce_to("SUM", own(1.0, 2.0), ["CPU:0"]), TypeError,
                            "`destinations`"),
    "dtypes that differ": (lambda: mirrored(2).reduce("SUM", own(1.0, 2), axis=None), TypeError,
                           "`reduce`: replica 1 has dtype int32, replica 0 has float32"),
    "dtypes that differ, along an axis": (lambda: mirrored(2).reduce("SUM", own([1.0], [2]), axis=0), TypeError,
                                          "replica 1 has dtype int32, replica 0 has float32"),
    "gather of dtypes that differ": (lambda: mirrored(2).gather(own([1.0], [2]), axis=0), TypeError,
                                     "`gather`: replica 1 has dtype int32, replica 0 has float32"),
    "sum of nothing": (lambda: mirrored(2).reduce("SUM", None, axis=None), ValueError,
                       "`reduce`: the value is None. A step that returns nothing returns None"),
    "mean of nothing from all": (lambda: mirrored(2).reduce("MEAN", lockstep.PerReplica([None, None]), axis=None),
                                 ValueError, "`reduce`: replica 0's value is None"),
    "gather of nothing": (lambda: mirrored(2).gather(None, axis=0), ValueError, "`gather`: the value is None"),
    "too few components to reduce": (lambda: mirrored(4).reduce("SUM", own(1.0, 2.0), axis=None), ValueError,
                                     "`reduce`: the value has 2 components for 4 replicas"),
    "too few components to gather": (lambda: mirrored(4).gather(own([1.0], [2.0]), axis=0), ValueError,
                                     "`gather`: the value has 2 components for 4 replicas"),
    "too few components to take apart": (lambda: mirrored(4).experimental_local_results(own(1.0, 2.0)), ValueError,
                                         "`experimental_local_results`: the value has 2 components for 4 replicas"),
    "destination that does not exist": (lambda: mirrored(2).extended.reduce_to("SUM", own(1.0, 2.0), "CPU:77"),
                                        ValueError, "`destinations`: no device 'CPU:77'. Devices here: CPU:0, CPU:1"),
    "mesh of a device that does not exist": (lambda: lockstep.DataParallel(devices=["cpu:0", "cpu:99"]), ValueError,
                                             "no device 'cpu:99'. Devices here: CPU:0, CPU:1"),
    "run of no function": (lambda: mirrored(2).run(3), TypeError, "`strategy.run`: `fn` is 3. Expected a function"),
    "plan of no function": (lambda: mirrored(2).plan(3), TypeError, "`strategy.plan`: `fn` is 3. Expected a function"),
    "kwargs that are no dictionary": (lambda: mirrored(2).run(reduced, kwargs=[1]), ValueError,
                                      r"`strategy.run`: `kwargs` is \[1\]. Expected a dictionary"),
    "update by no function": (lambda: mirrored(2).extended.update(None, 3), TypeError,
                              "`extended.update`: `fn` is 3. Expected a function"),
    "update with args that are no list": (lambda: mirrored(2).extended.update(None, reduced, args=1.0), ValueError,
                                          "`extended.update`: `args` is 1.0. Expected a list or tuple"),
    "batch of no pairs": (lambda: mirrored(2).extended.batch_reduce_to("SUM", [own(1.0, 2.0)]), ValueError,
                          "(?s)`value_destination_pairs` is .*Expected a list of .value, destinations. pairs"),
    "options of another kind": (lambda: lockstep.MirroredStrategy(["CPU:0"], options={}), TypeError,
                                "CollectiveOptions"),
}


@pytest.mark.parametrize("case", CASES)
def test_wrong_input_has_one_clear_error(case):
    call, error, match = CASES[case]
    with pytest.raises(error, match=match):
        call()


@TRACED
def test_results_of_different_structure_are_told_apart(traced):
    strategy = mirrored(2)

    def step(name):
        return {name: tf.constant(1.0)}

    with pytest.raises(ValueError, match="replica 1 returned another structure than replica 0"):
        strategy.run(tf.function(step) if traced else step, args=(lockstep.PerReplica(["a", "b"]),))


@pytest.mark.parametrize("write", [
    lambda v: v.assign(own(1.0, 2.0)),
    lambda v: v.assign_add(own(1.0, 2.0)),
], ids=["assign", "assign_add"])
def test_a_per_replica_value_assigned_from_outside_is_refused_by_name(write):
    strategy = mirrored(2)
    with strategy.scope():
        v = tf.Variable(5.0, name="weight")
    with pytest.raises(ValueError, match="'weight:0'.*per-replica value.*strategy.reduce"):
        write(v)
    assert values_of(strategy, v) == [5.0, 5.0]


@pytest.mark.parametrize("aggregation", [tf.VariableAggregation.NONE, tf.VariableAggregation.ONLY_FIRST_REPLICA,
                                         tf.VariableAggregation.MEAN, SUM])
@TRACED
def test_copies_never_diverge(traced, aggregation):
    strategy = mirrored(2)
    with strategy.scope():
        v = tf.Variable(5.0, name="weight", aggregation=aggregation)
    step = (lambda x: v.assign(x))
    try:
        strategy.run(tf.function(step) if traced else step, args=(own(1.0, 2.0),))
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        assert aggregation == tf.VariableAggregation.NONE and "'weight:0'" in str(error)
    first, second = values_of(strategy, v)
    assert first == second


def test_literal_zero_is_taken_where_a_number_means_something():
    strategy = mirrored(2)
    with strategy.scope():
        counter = tf.Variable(5.0, synchronization=ON_READ, aggregation=SUM)
        mean = tf.Variable(5.0, aggregation=tf.VariableAggregation.MEAN)
    counter.assign(0)
    strategy.run(tf.function(lambda: mean.assign(0.0)))
    assert float(counter.read_value()) == 0.0 and values_of(strategy, mean) == [0.0, 0.0]
    assert float(strategy.reduce("SUM", 0, axis=None)) == 0.0


def test_a_variable_made_outside_of_the_scope_is_written_in_the_order_of_the_replicas_or_refused_by_name():
    strategy = mirrored(2)
    plain = tf.Variable(0.0, name="plain")

    def between(x):
        plain.assign(reduced(plain + x))

    with pytest.raises(RuntimeError, match="'plain:0'.*strategy.scope\\(\\)"):
        strategy.run(tf.function(between), args=(own(1.0, 2.0),))
    strategy.run(tf.function(lambda x: plain.assign(2 * plain + x)), args=(own(1.0, 2.0),))
    assert float(plain) == 4.0
    assert_works(strategy)
