"""Steps that wait on the replicas' devices. There need be no GPU: logical CPUs are made to count as accelerators."""

import numpy as np
import pytest
import tensorflow as tf

from lockstep.strategy import device_buffer
from lockstep.strategy.device_buffer import DeviceBuffer, component_devices, group_by_device, place
from lockstep.strategy.distributed_dataset import DistributedDataset
from lockstep.strategy.values import PerReplicaSpec

CAPACITIES = (1, 2, 3, 9)
DEVICES = [f"/job:localhost/replica:0/task:0/device:CPU:{index}" for index in range(4)]


@pytest.fixture
def cpus_count_as_accelerators(monkeypatch):
    monkeypatch.setattr(device_buffer, "_is_accelerator", bool)


def element(rows):
    return {"rows": rows, "ragged": tf.RaggedTensor.from_row_lengths(rows, tf.ones_like(rows)),
            "text": tf.strings.as_string(rows), "sparse": tf.sparse.from_dense(rows[:, tf.newaxis])}


def distributed(num_replicas=4, **options):
    dataset = tf.data.Dataset.range(10).batch(3).map(element)
    return DistributedDataset(dataset, DEVICES[:num_replicas], tf.distribute.InputOptions(**options))


def rows_of(batch):
    return np.concatenate([part.numpy() for part in batch["rows"].values]).tolist()


def devices_of(value):
    return [part.device for part in value.values]


BATCHES = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]


def test_components_for_gpus_are_placed_and_strings_and_cpus_stay_on_the_host():
    spec = (PerReplicaSpec(tf.TensorSpec([None]), tf.TensorSpec([None])),
            PerReplicaSpec(tf.RaggedTensorSpec([None, None]), tf.RaggedTensorSpec([None, None])),
            PerReplicaSpec(*[tf.TensorSpec([None], tf.string)] * 2), tf.type_spec_from_value(None))
    assert component_devices(spec, ["GPU:0", "/job:w/device:GPU:1"]) == (
        "GPU:0", "/job:w/device:GPU:1", "GPU:0", "GPU:0", "/job:w/device:GPU:1", "/job:w/device:GPU:1", "", "")
    assert component_devices(spec, ["CPU:0", "GPU:1"]) == ("", "GPU:1", "", "", "GPU:1", "GPU:1", "", "")
    assert component_devices(tf.TensorSpec([None]), ["GPU:0"]) == ("GPU:0",)


def test_components_are_grouped_by_device_in_order():
    assert group_by_device(["a", "b", "", "a"]) == {"a": [0, 3], "b": [1], "": [2]}


def test_place_copies_to_named_devices_only():
    host = tf.constant([1])
    stayed, moved = place([host, host], ["", DEVICES[1]])
    assert stayed is host and moved.device == DEVICES[1]


@pytest.mark.parametrize("capacity", (0, *CAPACITIES))
def test_parts_lie_on_their_replicas_devices_and_come_in_order(capacity, cpus_count_as_accelerators):
    batches = list(distributed(experimental_per_replica_buffer_size=capacity))
    assert [rows_of(batch) for batch in batches] == BATCHES
    for batch in batches:
        assert devices_of(batch["rows"]) == DEVICES
        assert [part.flat_values.device for part in batch["ragged"].values] == DEVICES
        assert devices_of(batch["text"]) == DEVICES[:1] * 4


def test_parts_stay_on_the_host_on_request(cpus_count_as_accelerators):
    (batch, *_) = distributed(experimental_fetch_to_device=False)
    assert devices_of(batch["rows"]) == DEVICES[:1] * 4


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_a_function_that_takes_steps_is_traced_once_and_raises_at_the_end(capacity, cpus_count_as_accelerators):
    dataset = distributed(experimental_per_replica_buffer_size=capacity)
    traces = []

    @tf.function
    def step(iterator):
        traces.append(1)
        return next(iterator)

    for _ in range(2):
        iterator = iter(dataset)
        assert [rows_of(step(iterator)) for _ in BATCHES] == BATCHES
        with pytest.raises(tf.errors.OutOfRangeError):
            step(iterator)
    assert len(traces) == 1


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_optionals_lie_on_the_devices_and_are_empty_at_the_end(capacity, cpus_count_as_accelerators):
    iterator = iter(distributed(experimental_per_replica_buffer_size=capacity))
    for rows in BATCHES:
        batch = iterator.get_next_as_optional().get_value()
        assert rows_of(batch) == rows and devices_of(batch["rows"]) == DEVICES
    assert not bool(iterator.get_next_as_optional().has_value())


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_loops_inside_a_function_take_every_step(capacity, cpus_count_as_accelerators):
    dataset = distributed(experimental_per_replica_buffer_size=capacity)

    @tf.function
    def total(iterable):
        result = tf.constant(0, tf.int64)
        for batch in iterable:
            result = 100 * result + tf.add_n([tf.reduce_sum(part) for part in batch["rows"].values])
        return result

    assert int(total(iter(dataset))) == int(total(dataset)) == 3122109


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("position", range(5))
def test_a_checkpoint_takes_the_waiting_steps_along(position, capacity, cpus_count_as_accelerators, tmp_path):
    iterator = iter(distributed(experimental_per_replica_buffer_size=capacity))
    for _ in range(position):
        next(iterator)
    path = tf.train.Checkpoint(iterator=iterator).save(tmp_path / "checkpoint")
    assert [rows_of(batch) for batch in iterator] == BATCHES[position:]

    again = iter(distributed(experimental_per_replica_buffer_size=capacity))
    next(again)
    tf.train.Checkpoint(iterator=again).restore(path).assert_consumed()
    assert [rows_of(batch) for batch in again] == BATCHES[position:]


def test_waiting_steps_of_another_number_of_replicas_are_refused(cpus_count_as_accelerators, tmp_path):
    iterator = iter(distributed(4))
    next(iterator)
    path = tf.train.Checkpoint(iterator=iterator).save(tmp_path / "checkpoint")
    with pytest.raises(ValueError, match="holds steps of 28 tensors, this iterator makes 14"):
        tf.train.Checkpoint(iterator=iter(distributed(2))).restore(path)
    with pytest.raises(ValueError, match="They would be lost"):
        tf.train.Checkpoint(iterator=iter(distributed(4, experimental_fetch_to_device=False))).restore(path)


def test_an_empty_buffer_saves_no_steps():
    buffer = DeviceBuffer.create([tf.TensorSpec([None])], [DEVICES[1]], capacity=1)
    assert buffer.save().shape == [0, 1]
