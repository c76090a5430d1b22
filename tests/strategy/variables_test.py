"""Replicated variables: the whole table of synchronization x aggregation, on two replicas."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import lockstep
from testing.replicas import mirrored, own, replica_context, values_of

Sync, Agg = tf.VariableSynchronization, tf.VariableAggregation
KINDS = [(sync, agg) for sync in (Sync.AUTO, Sync.ON_WRITE, Sync.ON_READ) for agg in Agg]


def make(sync, agg, value=0.0, num_replicas=2, **kwargs):
    strategy = mirrored(num_replicas)
    with strategy.scope():
        return strategy, tf.Variable(value, synchronization=sync, aggregation=agg, name="v", **kwargs)


def run(strategy, traced, function, *args):
    return strategy.run(tf.function(function) if traced else function, args=args)


TRACED = pytest.mark.parametrize("traced", [True, False], ids=["traced", "python"])


@TRACED
@pytest.mark.parametrize("sync, agg, expected", [
    (Sync.ON_WRITE, Agg.SUM, [30.0, 30.0]),
    (Sync.ON_WRITE, Agg.MEAN, [15.0, 15.0]),
    (Sync.ON_WRITE, Agg.ONLY_FIRST_REPLICA, [10.0, 10.0]),
    (Sync.AUTO, Agg.SUM, [30.0, 30.0]),
    (Sync.ON_READ, Agg.NONE, [10.0, 20.0]),
    (Sync.ON_READ, Agg.SUM, [10.0, 20.0]),
    (Sync.ON_READ, Agg.MEAN, [10.0, 20.0]),
    (Sync.ON_READ, Agg.ONLY_FIRST_REPLICA, [10.0, 20.0]),
])
def test_assign_of_different_values_in_replicas_follows_the_table(sync, agg, expected, traced):
    strategy, v = make(sync, agg)
    run(strategy, traced, lambda x: v.assign(x), own(10.0, 20.0))
    assert values_of(strategy, v) == expected


@TRACED
def test_assign_of_different_values_without_aggregation_raises_instead_of_diverging(traced):
    strategy, v = make(Sync.AUTO, Agg.NONE)
    with pytest.raises(tf.errors.InvalidArgumentError, match="(?s)'v:0' with aggregation NONE.*aggregation when it is"):
        run(strategy, traced, lambda x: v.assign(x), own(10.0, 20.0))
    assert values_of(strategy, v) == [0.0, 0.0]
    run(strategy, traced, lambda x: v.assign(x), own(7.0, 7.0))
    assert values_of(strategy, v) == [7.0, 7.0]


@TRACED
@pytest.mark.parametrize("sync, agg", [kind for kind in KINDS if kind[0] is Sync.ON_READ or kind[1] is not Agg.SUM])
def test_assign_add_of_a_python_number_adds_it_once(sync, agg, traced):
    strategy, v = make(sync, agg)
    run(strategy, traced, lambda: v.assign_add(1.0))
    assert values_of(strategy, v) == [1.0, 1.0]


@TRACED
@pytest.mark.parametrize("number", [1.0, 0, 0.0])
def test_python_number_cannot_be_summed_over_replicas(number, traced):
    strategy, v = make(Sync.ON_WRITE, Agg.SUM)
    with pytest.raises(ValueError, match="'v:0'.*tf.constant"):
        run(strategy, traced, lambda: v.assign_add(number))


@TRACED
@pytest.mark.parametrize("sync, agg", KINDS)
def test_assign_add_of_a_tensor_adds_as_the_table_says(sync, agg, traced):
    strategy, v = make(sync, agg)
    run(strategy, traced, lambda: v.assign_add(tf.constant(1.0)))
    assert values_of(strategy, v) == ([2.0, 2.0] if sync is not Sync.ON_READ and agg is Agg.SUM else [1.0, 1.0])


@pytest.mark.parametrize("sync, agg, expected", [
    (Sync.ON_WRITE, Agg.NONE, [8.0, 8.0]),
    (Sync.ON_WRITE, Agg.SUM, [8.0, 8.0]),
    (Sync.ON_WRITE, Agg.MEAN, [8.0, 8.0]),
    (Sync.ON_WRITE, Agg.ONLY_FIRST_REPLICA, [8.0, 8.0]),
    (Sync.ON_READ, Agg.SUM, [4.0, 4.0]),
    (Sync.ON_READ, Agg.MEAN, [8.0, 8.0]),
    (Sync.ON_READ, Agg.ONLY_FIRST_REPLICA, [8.0, 8.0]),
])
@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "function"])
def test_assign_from_outside_follows_the_table(sync, agg, expected, in_graph):
    strategy, v = make(sync, agg)

    def assign():
        v.assign(8.0)

    (tf.function(assign) if in_graph else assign)()
    assert values_of(strategy, v) == expected
    assert float(v.read_value()) == 8.0


@pytest.mark.parametrize("agg", Agg)
def test_assign_add_from_outside_changes_all_copies_of_a_mirrored_variable(agg):
    strategy, v = make(Sync.AUTO, agg, 8.0)
    v.assign_add(1.0)
    assert values_of(strategy, v) == [9.0, 9.0]
    v.assign_sub(2.0)
    assert values_of(strategy, v) == [7.0, 7.0]


@pytest.mark.parametrize("agg, match", [(Agg.NONE, "'v:0'.*aggregation NONE"), (Agg.SUM, "'v:0'.*aggregation SUM")])
def test_assign_add_from_outside_to_a_sum_or_to_nobodys_value_raises(agg, match):
    _, v = make(Sync.ON_READ, agg)
    with pytest.raises(ValueError, match=match):
        v.assign_add(1.0)


@pytest.mark.parametrize("sync, agg, expected", [
    (Sync.ON_READ, Agg.SUM, 8.0), (Sync.ON_READ, Agg.MEAN, 4.0), (Sync.ON_READ, Agg.ONLY_FIRST_REPLICA, 3.0)])
def test_read_from_outside_combines_the_copies(sync, agg, expected):
    strategy, v = make(sync, agg)
    strategy.run(tf.function(lambda x: v.assign(x)), args=(own(3.0, 5.0),))
    assert float(v.read_value()) == float(v) == v.numpy() == expected
    assert float(tf.function(lambda: v + 0.0)()) == expected


def test_read_of_nobodys_value_from_outside_raises_by_name():
    _, v = make(Sync.ON_READ, Agg.NONE)
    with pytest.raises(ValueError, match="'v:0'.*experimental_local_results"):
        v.read_value()


@pytest.mark.parametrize("sync, agg", [kind for kind in KINDS if kind != (Sync.ON_READ, Agg.NONE)])
def test_per_replica_value_from_outside_is_refused_by_name(sync, agg):
    strategy, v = make(sync, agg)
    with pytest.raises(ValueError, match="'v:0'.*per-replica value"):
        v.assign(own(1.0, 2.0))
    assert values_of(strategy, v) == [0.0, 0.0]


@pytest.mark.parametrize("agg", Agg)
def test_synchronization_none_is_refused_when_the_variable_is_made(agg):
    with pytest.raises(ValueError, match="'v'.*synchronization"):
        make(Sync.NONE, agg)


@pytest.mark.parametrize("sync", [Sync.AUTO, Sync.ON_READ])
def test_mean_of_integers_is_refused_when_the_variable_is_made(sync):
    with pytest.raises(ValueError, match="'v.*MEAN with dtype int32"):
        make(sync, Agg.MEAN, 1)


@TRACED
def test_scatter_add_sums_the_replicas_rows(traced):
    strategy, v = make(Sync.ON_WRITE, Agg.SUM, tf.zeros([3]))
    rows = own([1.0], [2.0])
    run(strategy, traced, lambda x: v.scatter_add(tf.IndexedSlices(x, tf.constant([1]))), rows)
    assert values_of(strategy, v) == [[0.0, 3.0, 0.0]] * 2


@pytest.mark.parametrize("method, expected", [("scatter_min", 2.0), ("scatter_max", 5.0), ("scatter_update", 2.0)])
def test_scatters_of_equal_rows_work_without_aggregation(method, expected):
    strategy, v = make(Sync.AUTO, Agg.NONE, tf.fill([3], 5.0))
    strategy.run(tf.function(lambda: getattr(v, method)(tf.IndexedSlices(tf.constant([2.0]), tf.constant([1])))))
    assert values_of(strategy, v) == [[5.0, expected, 5.0]] * 2


@pytest.mark.parametrize("method", ["scatter_min", "scatter_max", "scatter_update"])
def test_scatters_that_cannot_be_combined_raise(method):
    strategy, v = make(Sync.AUTO, Agg.SUM, tf.zeros([3]))
    with pytest.raises(NotImplementedError, match="'v:0'.*scatter_add"):
        strategy.run(tf.function(lambda: getattr(v, method)(tf.IndexedSlices(tf.constant([2.0]), tf.constant([1])))))


def test_scatter_on_a_replicas_own_variable_raises():
    strategy, v = make(Sync.ON_READ, Agg.SUM, tf.zeros([3]))
    with pytest.raises(NotImplementedError, match="'v:0'.*ON_READ"):
        strategy.run(tf.function(lambda: v.scatter_add(tf.IndexedSlices(tf.constant([2.0]), tf.constant([1])))))


@pytest.mark.parametrize("num_replicas", [1, 2, 4, 8])
def test_copies_start_equal_also_with_a_random_initializer(num_replicas):
    strategy = mirrored(num_replicas)
    with strategy.scope():
        v = tf.Variable(lambda: tf.random.normal([5]))
    copies = [copy.numpy() for copy in v.values]
    assert len(copies) == num_replicas
    assert [copy.device[-5:] for copy in v.values] == [f"CPU:{index}" for index in range(num_replicas)]
    assert all(np.array_equal(copy, copies[0]) for copy in copies)


def test_all_reduce_of_a_mirrored_variable_leaves_it_alone():
    for traced in (True, False):
        strategy, v = make(Sync.AUTO, Agg.NONE, tf.ones([5]), num_replicas=4)
        total = run(strategy, traced, lambda: replica_context().all_reduce("SUM", v))
        assert values_of(strategy, total) == [[4.0] * 5] * 4
        assert values_of(strategy, v) == [[1.0] * 5] * 4


def test_gradient_tape_and_module_see_the_variable():
    strategy = mirrored(2)

    class Model(tf.Module):
        def __init__(self):
            super().__init__()
            self.w = tf.Variable(3.0)
            self.state = tf.Variable(0.0, trainable=False)

    with strategy.scope():
        model = Model()
    assert [v.name for v in model.variables] == [model.state.name, model.w.name]
    assert model.trainable_variables == (model.w,)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = model.w * model.w * x
        assert len(tape.watched_variables()) == 1
        return tape.gradient(loss, model.trainable_variables)[0]

    assert values_of(strategy, strategy.run(step, args=(own(1.0, 2.0),))) == [6.0, 12.0]


@pytest.mark.parametrize("saved", [1, 2, 4])
@pytest.mark.parametrize("restored", [0, 1, 2, 4])
def test_checkpoint_moves_between_numbers_of_replicas_exactly(tmp_path, saved, restored):
    strategy = mirrored(saved)
    with strategy.scope():
        weight = tf.Variable([0.1, 0.2])
        count = tf.Variable(0, dtype=tf.int64, synchronization=Sync.ON_READ, aggregation=Agg.SUM)
        mean = tf.Variable(0.0, synchronization=Sync.ON_READ, aggregation=Agg.MEAN)
    strategy.run(tf.function(lambda: (count.assign_add(7), mean.assign(0.1))))
    count.assign(count.read_value() + 2)
    path = tf.train.Checkpoint(weight=weight, count=count, mean=mean).save(str(tmp_path / "ckpt"))

    with mirrored(restored).scope() if restored else tf.name_scope("none"):
        weight2 = tf.Variable([0.0, 0.0])
        count2 = tf.Variable(0, dtype=tf.int64, synchronization=Sync.ON_READ, aggregation=Agg.SUM)
        mean2 = tf.Variable(0.0, synchronization=Sync.ON_READ, aggregation=Agg.MEAN)
    tf.train.Checkpoint(weight=weight2, count=count2, mean=mean2).restore(path).assert_consumed()
    assert np.array_equal(weight2.numpy(), weight.numpy())
    assert int(count2.read_value()) == 7 * saved + 2
    assert float(mean2.read_value()) == pytest.approx(0.1, abs=1e-8)


def test_deferred_restore_fills_variables_made_later(tmp_path):
    path = tf.train.Checkpoint(v=tf.Variable(5.0)).save(str(tmp_path / "ckpt"))
    checkpoint = tf.train.Checkpoint()
    status = checkpoint.restore(path)
    strategy = mirrored(2)
    with strategy.scope():
        checkpoint.v = tf.Variable(0.0)
    status.assert_consumed()
    assert values_of(strategy, checkpoint.v) == [5.0, 5.0]


def test_written_value_is_seen_by_equal_reads_in_the_same_step():
    strategy, v = make(Sync.AUTO, Agg.NONE, 1.0)

    @tf.function
    def step():
        v.assign(v * 2.0)
        if v > 3.0:
            v.assign(v + 10.0)
        return v.read_value()

    assert values_of(strategy, strategy.run(step)) == [2.0, 2.0]
    assert values_of(strategy, strategy.run(step)) == [14.0, 14.0]


@pytest.mark.parametrize("traced", [True, False], ids=["traced", "python"])
def test_scatter_nd_writes_all_copies(traced):
    strategy = mirrored(2)
    with strategy.scope():
        v = tf.Variable([1.0, 2.0, 3.0])
    v.scatter_nd_add([[0]], [10.0])
    step = (lambda: v.scatter_nd_update([[1]], [7.0]))
    strategy.run(tf.function(step) if traced else step)
    v.scatter_nd_sub([[2]], [3.0])
    assert values_of(strategy, v) == [[11.0, 7.0, 0.0]] * 2


@pytest.mark.parametrize("aggregation", [Agg.SUM, Agg.NONE])
@pytest.mark.parametrize("given", [tf.constant, float], ids=["tensors", "numbers"])
@TRACED
def test_a_step_that_returns_an_on_read_variable_returns_the_variable(traced, given, aggregation):
    strategy, v = make(Sync.ON_READ, aggregation, 0.0)

    def step(x):
        return {"v": v.assign(x), "twice": 2 * x, "text": "same", "nothing": None}

    result = run(strategy, traced, step, lockstep.PerReplica([given(1.0), given(2.0)]))
    assert result["v"] is v and values_of(strategy, v) == [1.0, 2.0]
    assert values_of(strategy, result["twice"]) == [2.0, 4.0]
    assert result["text"] == "same" and result["nothing"] is None
    assert not traced or all(tf.is_tensor(part) for part in result["twice"].values)


def test_the_handle_of_an_on_read_variable_is_each_replicas_own():
    unused_strategy, v = make(Sync.ON_READ, Agg.SUM, 1.0)
    with pytest.raises(ValueError, match="'v:0': its handle was asked for outside of .*`read_value\\(\\)`"):
        v.handle
    assert make(Sync.ON_READ, Agg.SUM, 1.0, num_replicas=1)[1].handle.dtype == tf.resource


def test_copies_that_belong_to_the_replicas_are_not_written_from_outside():
    strategy, v = make(Sync.ON_READ, Agg.NONE, 5.0)
    for value in (8, 8.0, own(1.0, 2.0)):
        with pytest.raises(ValueError, match="'v:0': `assign` outside of `strategy.run` .* aggregation NONE.*inside"):
            v.assign(value)
    assert values_of(strategy, v) == [5.0, 5.0]


def test_an_eager_step_of_another_strategy_may_not_write_a_variable():
    strategy = mirrored(2)
    with strategy.scope():
        v = tf.Variable(1.0, name="theirs")
    with pytest.raises(ValueError, match="'theirs:0'.*another strategy"):
        mirrored(1).run(lambda: v.assign_add(1.0))
    assert values_of(strategy, v) == [1.0, 1.0]


@pytest.mark.parametrize("then", [1, 2, 4])
def test_gradients_that_keras_has_accumulated_survive_a_checkpoint(tmp_path, then):
    def made(num_replicas):
        strategy = mirrored(num_replicas)
        with strategy.scope():
            v = keras.Variable([1.0, 1.0])
            optimizer = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
            optimizer.build([v])
        return strategy, v, optimizer, tf.function(lambda g: optimizer.apply([g], [v]))

    strategy, v, optimizer, step = made(2)
    strategy.run(step, args=(lockstep.PerReplica([tf.constant([1.0, 0.0]), tf.constant([0.0, 5.0])]),))
    path = tf.train.Checkpoint(v=v, optimizer=optimizer).save(str(tmp_path / "checkpoint"))
    strategy, v, optimizer, step = made(then)
    tf.train.Checkpoint(v=v, optimizer=optimizer).restore(path)
    parts = [tf.constant([1.0 if index == 0 else 0.0, 0.0]) for index in range(then)]
    strategy.run(step, args=(parts[0] if then == 1 else lockstep.PerReplica(parts),))
    np.testing.assert_allclose(v.numpy(), [1 - (1 + 1) / 2, 1 - 5 / 2])
