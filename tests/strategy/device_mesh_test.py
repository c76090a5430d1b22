"""`DeviceMesh`, `TensorLayout` and `list_devices`: descriptions in Keras's words, checked."""

import keras
import pytest
import tensorflow as tf

import lockstep

PREFIX = "/job:localhost/replica:0/task:0/device:CPU:"


def test_they_are_classes_of_keras():
    mesh = lockstep.DeviceMesh((2,), ["x"], ["cpu:0", "cpu:1"])
    assert isinstance(mesh, keras.distribution.DeviceMesh)
    assert isinstance(lockstep.TensorLayout(["x"], mesh), keras.distribution.TensorLayout)


def test_without_devices_a_mesh_takes_all():
    mesh = lockstep.DeviceMesh((4, 2), ["x", "y"])
    assert mesh.devices.tolist() == [[f"cpu:{i}", f"cpu:{i + 1}"] for i in (0, 2, 4, 6)]
    with pytest.raises(ValueError, match="Shape does not match the number of devices"):
        lockstep.DeviceMesh((3,), ["x"])


@pytest.mark.parametrize("devices", [["cpu:2", "cpu:1"], ["/CPU:2", "CPU:1"], ["/device:CPU:2", PREFIX + "1"]])
def test_all_spellings_of_a_device_mean_the_same(devices):
    assert lockstep.DeviceMesh((2, 1), ["x", "y"], devices).backend_mesh.tolist() == [[PREFIX + "2"], [PREFIX + "1"]]


@pytest.mark.parametrize("axes, devices, match", [
    (["x", "x"], ["cpu:0", "cpu:1"], "`axis_names` names 'x' twice"),
    (["x", "y"], ["cpu:0", "cpu:0"], "`devices` names 'cpu:0' twice"),
])
def test_a_name_that_stands_twice_raises(axes, devices, match):
    with pytest.raises(ValueError, match=match):
        lockstep.DeviceMesh((2, 1), axes, devices)


def test_a_device_that_does_not_exist_raises_when_it_is_asked_for():
    with pytest.raises(ValueError, match="DeviceMesh: no device 'gpu:3'"):
        lockstep.DeviceMesh((1,), ["x"], ["gpu:3"]).backend_mesh


def test_a_layout_says_which_part_is_on_which_device():
    mesh = lockstep.DeviceMesh((2, 2), ["x", "y"], [f"cpu:{index}" for index in range(4)])
    assert lockstep.TensorLayout(["y", None], mesh).backend_layout.parts == (0, 1, 0, 1)
    assert lockstep.TensorLayout(["x"], mesh).backend_layout.devices == tuple(f"{PREFIX}{index}" for index in range(4))
    whole = lockstep.TensorLayout([None], mesh).backend_layout
    assert (whole.parts, whole.num_parts) == ((0, 0, 0, 0), 1)


@pytest.mark.parametrize("kind", [None, "cpu", "CPU"])
def test_devices_are_listed_as_keras_lists_them(kind):
    assert lockstep.list_devices(kind) == keras.distribution.list_devices(kind) == [f"cpu:{i}" for i in range(8)]


def test_a_kind_without_devices_lists_none():
    assert lockstep.list_devices("tpu") == []
    assert len(lockstep.list_devices("gpu")) == len(tf.config.list_logical_devices("GPU"))


@pytest.mark.parametrize("kind, error", [("xpu", ValueError), ("", ValueError), (1, TypeError)])
def test_a_kind_that_does_not_exist_raises(kind, error):
    with pytest.raises(error, match="`list_devices`: `device_type` is .* Expected 'cpu', 'gpu'"):
        lockstep.list_devices(kind)
