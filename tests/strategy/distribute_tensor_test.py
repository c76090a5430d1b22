"""`distribute_tensor` and `relayout`: values lie on the devices of a mesh as their layouts say."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import lockstep
from testing.replicas import mirrored

MESH = lockstep.DeviceMesh((3,), ["batch"], ["cpu:1", "cpu:0", "cpu:4"])
GRID = lockstep.DeviceMesh((2, 2), ["rows", "other"], [f"cpu:{index}" for index in range(4)])
SPLIT, WHOLE = lockstep.TensorLayout(["batch"], MESH), lockstep.TensorLayout([None], MESH)


def parts(value):
    return [(part.device[-5:], part.numpy().tolist()) for part in value.values]


@pytest.mark.parametrize("value", [
    [1, 2, 3, 4], np.array([1, 2, 3, 4]), tf.constant([1, 2, 3, 4]), tf.Variable([1, 2, 3, 4]),
    keras.Variable([1, 2, 3, 4], dtype="int32"),
])
def test_rows_are_split_over_the_first_axis(value):
    placed = lockstep.distribute_tensor(value, SPLIT)
    assert isinstance(placed, lockstep.PerReplica)
    assert parts(placed) == [("CPU:1", [1, 2]), ("CPU:0", [3]), ("CPU:4", [4])]


def test_fewer_rows_than_devices_leave_some_without():
    assert [part for _, part in parts(lockstep.distribute_tensor([5], SPLIT))] == [[5], [], []]


def test_a_whole_value_is_on_every_device():
    placed = lockstep.distribute_tensor([[1.5], [2.5]], lockstep.TensorLayout([None, None], MESH))
    assert parts(placed) == [(device, [[1.5], [2.5]]) for device in ("CPU:1", "CPU:0", "CPU:4")]
    assert parts(lockstep.distribute_tensor(7, lockstep.TensorLayout([], MESH)))[2] == ("CPU:4", 7)


@pytest.mark.parametrize("axis, expected", [
    ("rows", [[0, 1], [0, 1], [2], [2]]), ("other", [[0, 1], [2], [0, 1], [2]]),
])
def test_devices_along_another_axis_of_the_mesh_hold_the_same_rows(axis, expected):
    layout = lockstep.TensorLayout([axis], GRID)
    placed = lockstep.distribute_tensor([0, 1, 2], layout)
    assert parts(placed) == [(f"CPU:{index}", rows) for index, rows in enumerate(expected)]
    assert parts(lockstep.relayout(placed, WHOLE)) == parts(lockstep.distribute_tensor([0, 1, 2], WHOLE))


def test_a_placed_value_is_moved_into_another_layout():
    split, whole = lockstep.distribute_tensor([1, 2, 3, 4], SPLIT), lockstep.distribute_tensor([1, 2, 3, 4], WHOLE)
    for value in (split, whole):
        assert parts(lockstep.relayout(value, SPLIT)) == parts(split)
        assert parts(lockstep.relayout(value, WHOLE)) == parts(whole)
        assert parts(lockstep.distribute_tensor(value, WHOLE)) == parts(whole)


def test_the_rows_of_a_batch_count_as_split():
    strategy = mirrored(2)
    batch, = strategy.experimental_distribute_dataset(tf.data.Dataset.range(5).batch(5))
    assert parts(lockstep.relayout(batch, WHOLE)) == [(name, [0, 1, 2, 3, 4]) for name in ("CPU:1", "CPU:0", "CPU:4")]


def test_the_replicas_of_the_mesh_take_a_placed_value():
    strategy = lockstep.DataParallel(MESH).strategy
    placed = lockstep.distribute_tensor([1, 2, 3, 4], SPLIT)
    assert int(strategy.reduce("SUM", strategy.run(tf.function(tf.reduce_sum), args=(placed,)))) == 10


def test_inside_a_function_values_are_placed_too():
    @tf.function
    def sums(value):
        return [tf.reduce_sum(part) for part in lockstep.distribute_tensor(value, SPLIT).values]

    assert [int(value) for value in sums(tf.range(1, 5))] == [3, 3, 4]


def test_on_one_device_a_value_is_a_tensor_there():
    mesh = lockstep.DeviceMesh((1,), ["batch"], ["cpu:5"])
    placed = lockstep.distribute_tensor([1, 2], lockstep.TensorLayout(["batch"], mesh))
    assert placed.device[-5:] == "CPU:5" and placed.numpy().tolist() == [1, 2]


def test_a_symbolic_tensor_is_left_alone():
    symbol = keras.KerasTensor([None, 2])
    assert lockstep.distribute_tensor(symbol, WHOLE) is symbol


@pytest.mark.parametrize("function", [lockstep.distribute_tensor, lockstep.relayout])
@pytest.mark.parametrize("layout, error, match", [
    (lockstep.TensorLayout([None, "batch"], MESH), ValueError, "Expected None everywhere .*, or an axis of the mesh"),
    (lockstep.TensorLayout(["batch"]), ValueError, "has no device mesh"),
    (WHOLE, ValueError, r"`layout` has 1 axes, \(None,\), and the value has shape \(2, 2\)"),
    (("batch", None), TypeError, "Expected a lockstep.TensorLayout"),
    (lockstep.TensorLayout([None, None], lockstep.DeviceMesh((1,), ["x"], ["cpu:9"])), ValueError, "no device 'cpu:9'"),
])
def test_other_layouts_raise_and_say_what_is_supported(function, layout, error, match):
    with pytest.raises(error, match=match):
        function([[1, 2], [3, 4]], layout)


def test_inside_a_step_it_is_refused():
    with pytest.raises(RuntimeError, match="`distribute_tensor`: called inside `strategy.run`"):
        mirrored(2).run(lambda: lockstep.distribute_tensor([1], WHOLE))
