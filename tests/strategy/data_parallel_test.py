"""`DataParallel`: Keras's interface, on every device of the mesh, with one device's numbers."""

import os
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.distribution import set_distribution  # By name, before any DataParallel has been made.

import lockstep
from testing.workers import PROGRAMS

X = np.arange(21, dtype=np.float32).reshape(7, 3) / 10
Y = X.sum(axis=1, keepdims=True) + 1
FOUR = [f"cpu:{index}" for index in range(4)]
# float32 sums in another order.
TOLERANCE = 1e-6


@pytest.fixture(autouse=True)
def no_distribution_left():
    yield
    assert keras.distribution.distribution() is None
    assert not tf.distribute.has_strategy()


def trained(batch_size=5, as_dataset=False):
    """What a user sees of a training of two epochs."""
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", metrics=["mae"])
    if as_dataset:
        data, options = (tf.data.Dataset.from_tensor_slices((X, Y)).batch(batch_size),), {}
    else:
        data, options = (X, Y), {"batch_size": batch_size}
    history = model.fit(*data, epochs=2, verbose=0, shuffle=False, **options).history
    seen = [*history["loss"], *history["mae"], *model.evaluate(*data, verbose=0, **options),
            *model.predict(data[0], verbose=0, **options).ravel(), *model.get_weights()[0].ravel()]
    return model, np.array(seen)


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning")
@pytest.mark.parametrize("batch_size, as_dataset", [(7, False), (5, False), (5, True), (1, True)])
def test_training_under_scope_gives_the_numbers_of_one_device(batch_size, as_dataset):
    _, expected = trained(batch_size, as_dataset)
    data_parallel = lockstep.DataParallel(devices=FOUR)
    with data_parallel.scope():
        model, seen = trained(batch_size, as_dataset)
    np.testing.assert_allclose(seen, expected, rtol=TOLERANCE, atol=TOLERANCE)
    assert model.distribute_strategy is data_parallel.strategy
    assert [copy.device[-5:] for copy in model.layers[0].kernel.value.values] == ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]


def test_models_made_after_set_distribution_train_on_all_devices():
    _, expected = trained()
    data_parallel = lockstep.DataParallel(devices=FOUR)
    set_distribution(data_parallel)
    try:
        assert keras.distribution.distribution() is data_parallel
        model, seen = trained()
    finally:
        set_distribution(None)
    np.testing.assert_allclose(seen, expected, rtol=TOLERANCE, atol=TOLERANCE)
    assert model.distribute_strategy is data_parallel.strategy


@pytest.fixture(scope="module")
def devices_by_phase():
    """The devices on which the model's products were computed, as TensorFlow's executor tells, by phase."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "executor=1",
                   "PYTHONPATH": os.pathsep.join([str(PROGRAMS.parent), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, str(PROGRAMS / "data_parallel_ops.py")], env=environment,
                          capture_output=True, text=True, timeout=240, errors="replace")
    assert done.returncode == 0, done.stderr[-3000:]
    phase, found = "", {}
    for line in done.stderr.splitlines():
        if line.startswith("PHASE"):
            phase = line.removeprefix("PHASE").strip()
        elif "Process node" in line and "MatMul[" in line:
            found.setdefault(phase, set()).add(re.search(r"device: \S*device:(\S+)", line)[1])
    return found


@pytest.mark.parametrize("phase", ["fit", "evaluate", "predict", "loop", "set_distribution"])
def test_the_ops_of_the_replicas_run_on_every_device_of_the_mesh(devices_by_phase, phase):
    assert devices_by_phase[phase] == {"CPU:0", "CPU:1", "CPU:3"}


def test_a_loop_over_a_distributed_dataset_splits_batches_of_any_size():
    data_parallel = lockstep.DataParallel(devices=FOUR)
    with data_parallel.scope():
        weight = tf.Variable(1.0)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = lockstep.average_loss((weight * x - 1) ** 2)
        gradient = tape.gradient(loss, weight)
        return loss, tf.distribute.get_replica_context().all_reduce("SUM", gradient)

    seen = []
    strategy = data_parallel.strategy
    rows = tf.data.Dataset.from_tensor_slices(X[:, 0]).batch(5)
    for batch in data_parallel.distribute_dataset(rows):
        loss, gradient = strategy.run(step, args=(batch,))
        seen.append((len(strategy.experimental_local_results(batch)[0]), float(strategy.reduce("SUM", loss)),
                     float(strategy.reduce("MEAN", gradient))))
    expected = [(2, np.mean((part - 1) ** 2), np.mean(2 * (part - 1) * part)) for part in (X[:5, 0], X[5:, 0])]
    # Five rows are 2, 1, 1, 1; two are 1, 1, 0, 0.
    assert seen[0] == pytest.approx(expected[0])
    assert seen[1] == pytest.approx((1, *expected[1][1:]))


def test_a_dataset_without_rows_is_that_of_the_one_process():
    dataset = tf.data.Dataset.range(8)
    assert lockstep.DataParallel(devices=FOUR).distribute_dataset(dataset) is dataset


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning")
def test_a_distributed_dataset_stays_and_fit_takes_it():
    data_parallel = lockstep.DataParallel(devices=FOUR)
    with data_parallel.scope():
        dataset = data_parallel.distribute_dataset(tf.data.Dataset.from_tensor_slices((X, Y)).batch(5))
        assert data_parallel.distribute_dataset(dataset) is dataset
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1, kernel_initializer="zeros")])
        model.compile(keras.optimizers.SGD(0.0), "mse")
        assert model.fit(dataset, verbose=0).history["loss"] == pytest.approx([float(np.mean(Y ** 2))])


@pytest.mark.parametrize("dataset", [X, [1, 2], None, iter([X]), keras.utils.PyDataset])
def test_data_of_another_type_raise_and_say_how_to_wrap_them(dataset):
    with pytest.raises(ValueError, match="`distribute_dataset`: the dataset type .* Expected a `tf.data.Dataset`"):
        lockstep.DataParallel(devices=FOUR).distribute_dataset(dataset)


def test_the_distribution_before_comes_back_after_scopes_that_stand_in_each_other():
    one, other = lockstep.DataParallel(devices=FOUR), lockstep.DataParallel(devices=FOUR[:2])

    def current():
        return keras.distribution.distribution(), tf.distribute.get_strategy()

    with one.scope():
        assert current() == (one, one.strategy)
        with other.scope():
            assert current() == (other, other.strategy)
            with other.strategy.scope(), other.scope():
                assert current() == (other, other.strategy)
        assert current() == (one, one.strategy)
        with pytest.raises(ZeroDivisionError), other.scope():
            1 / 0
        assert current() == (one, one.strategy)


def test_keras_forgets_the_distribution_and_its_strategy_together():
    data_parallel = lockstep.DataParallel(devices=FOUR)
    set_distribution(data_parallel)
    keras.utils.clear_session()
    assert not tf.distribute.has_strategy()
    with data_parallel.scope():
        assert tf.distribute.get_strategy() is data_parallel.strategy


def test_inside_the_scope_of_another_strategy_it_is_refused_with_the_line_to_write():
    data_parallel = lockstep.DataParallel(devices=FOUR)
    with lockstep.MirroredStrategy(["CPU:0"]).scope():
        with pytest.raises(RuntimeError, match=r"in.* the scope of a strategy.* write `with data_parallel.scope\(\):`"):
            set_distribution(data_parallel)
        assert keras.distribution.distribution() is None


def test_a_distribution_of_keras_leaves_strategies_alone():
    lockstep.DataParallel(devices=FOUR)
    strategy = lockstep.MirroredStrategy(["CPU:0"])
    with strategy.scope(), keras.distribution.DataParallel(devices=FOUR).scope():
        assert tf.distribute.get_strategy() is strategy


def test_a_keras_that_keeps_the_distribution_elsewhere_is_refused(monkeypatch):
    monkeypatch.setattr(keras.distribution, "set_distribution", print)  # A function without Keras's state.
    with pytest.raises(RuntimeError, match="would be trained on one device. Install Keras 3.15"):
        lockstep.DataParallel(devices=FOUR)


def test_it_is_a_data_parallel_of_keras_with_its_attributes():
    data_parallel = lockstep.DataParallel(devices=FOUR)
    assert isinstance(data_parallel, keras.distribution.DataParallel)
    assert data_parallel.num_model_replicas == 4
    assert (data_parallel.num_processes, data_parallel.data_shard_id) == (1, 0)
    assert data_parallel.auto_shard_dataset is True
    assert data_parallel.batch_dim_name == "batch"
    assert data_parallel.device_mesh.devices.tolist() == FOUR
    assert repr(data_parallel) == "<DataParallel device_mesh=<DeviceMesh shape=(4,), axis_names=['batch']>>"


def test_without_arguments_the_mesh_has_all_devices():
    data_parallel = lockstep.DataParallel()
    assert isinstance(data_parallel.device_mesh, lockstep.DeviceMesh)
    assert data_parallel.device_mesh.devices.tolist() == lockstep.list_devices() == [f"cpu:{i}" for i in range(8)]


def test_of_a_mesh_with_several_axes_the_first_is_the_data_axis_and_all_devices_train():
    mesh = lockstep.DeviceMesh((2, 2), ["rows", "other"], FOUR)
    with pytest.warns(UserWarning, match="has 2 axes, .* The first, 'rows', is the data axis.* all 4 devices train"):
        data_parallel = lockstep.DataParallel(mesh)
    assert data_parallel.device_mesh is mesh
    assert data_parallel.get_data_layout([None, 3]).axes == ("rows", None)
    _, expected = trained()
    with data_parallel.scope():
        _, seen = trained()
    np.testing.assert_allclose(seen, expected, rtol=TOLERANCE, atol=TOLERANCE)
    assert data_parallel.strategy.num_replicas_in_sync == 4


def test_a_mesh_of_keras_is_taken():
    mesh = keras.distribution.DeviceMesh((2,), ["data"], FOUR[:2])
    data_parallel = lockstep.DataParallel(mesh)
    assert data_parallel.device_mesh is mesh
    assert [name[-5:] for name in data_parallel.strategy.extended.worker_devices] == ["CPU:0", "CPU:1"]


@pytest.mark.parametrize("arguments, match", [
    ({"device_mesh": keras.distribution.DeviceMesh((1,), ["x"], ["cpu:0"]), "devices": ["cpu:0"]}, "both .* Leave"),
    ({"device_mesh": ["cpu:0"]}, "Expected a lockstep.DeviceMesh"),
    ({"devices": "cpu:0"}, "Expected a list of names"),
    ({"devices": []}, "Expected a list of names"),
    ({"devices": ["cpu:0", "cpu:0"]}, "names 'cpu:0' twice"),
])
def test_arguments_that_make_no_mesh_raise(arguments, match):
    with pytest.raises(ValueError, match=match):
        lockstep.DataParallel(**arguments)


@pytest.mark.parametrize("devices, match", [
    (["cpu:0", "cpu:8"], "no device 'cpu:8'. Devices here: CPU:0"), (["cpu:0", "/CPU:0"], "is listed twice"),
])
def test_devices_that_do_not_exist_are_refused_at_once(devices, match):
    with pytest.raises(ValueError, match=match):
        lockstep.DataParallel(devices=devices)
    with pytest.raises(ValueError, match=match):
        lockstep.DataParallel(lockstep.DeviceMesh((2,), ["batch"], devices))


def test_options_reach_the_strategy():
    options = lockstep.CollectiveOptions("naive")
    assert lockstep.DataParallel(devices=FOUR, options=options).strategy.options is options
    with pytest.raises(TypeError, match="Expected a lockstep.CollectiveOptions"):
        lockstep.DataParallel(devices=FOUR, options="naive").strategy


@pytest.mark.parametrize("shape", [(None, 3), [None, None], (4, 3), tf.TensorShape([None, 3])])
def test_the_layout_of_data_splits_the_first_axis(shape):
    layout = lockstep.DataParallel(devices=FOUR).get_data_layout(shape)
    assert isinstance(layout, lockstep.TensorLayout) and layout.axes == ("batch", None)


@pytest.mark.parametrize("shape, error", [((), ValueError), ([], ValueError), (None, TypeError), (3, TypeError)])
def test_the_layout_of_no_data_raises(shape, error):
    with pytest.raises(error, match="`get_data_layout`: `data_shape`"):
        lockstep.DataParallel(devices=FOUR).get_data_layout(shape)


def test_variables_are_replicated_and_tensors_stay():
    data_parallel = lockstep.DataParallel(devices=FOUR)
    layout = data_parallel.get_variable_layout(keras.Variable(np.zeros([2, 3])))
    assert layout.axes == (None, None) and layout.device_mesh is data_parallel.device_mesh
    assert data_parallel.get_tensor_layout("any/path") is None
