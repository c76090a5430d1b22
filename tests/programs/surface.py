"""What a strategy of four replicas gives, by case: the same for every way to spread them over workers.

`cases(strategy)` is called here by every worker, and by the test for a `MirroredStrategy` of four.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Callable, Sequence

import numpy as np
import tensorflow as tf

import lockstep

CASES: dict[str, Callable[[lockstep.Strategy], Any]] = {}


def case(function: Callable[[lockstep.Strategy], Any]) -> Callable[[lockstep.Strategy], Any]:
    CASES[function.__name__] = function
    return function


def plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, (tf.Tensor, tf.Variable)):
        value = value.numpy()
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, complex):
        return [value.real, value.imag]
    if isinstance(value, list):
        return [plain(one) for one in value]
    return value.decode() if isinstance(value, bytes) else value


def context() -> Any:
    return tf.distribute.get_replica_context()


def own(strategy: lockstep.Strategy, make: Callable[[int], Any]) -> Any:
    """A value of its own for each replica, by its number."""
    def value(where: Any) -> Any:
        made = make(where.replica_id_in_sync_group)
        return tf.constant(made) if isinstance(made, float) else made

    return strategy.experimental_distribute_values_from_function(value)


def everybodys(strategy: lockstep.Strategy, value: Any) -> Any:
    """All replicas' components of a value of tensors, by replica; padded tensors of equal shape."""
    return strategy.gather(tf.nest.map_structure(
        lambda leaf: lockstep.PerReplica([part[None] for part in strategy.experimental_local_results(leaf)]), value), 0)


def launched(strategy: lockstep.Strategy, step: Callable[..., Any], *args: Any) -> Any:
    return everybodys(strategy, strategy.run(tf.function(step), args=args))


def dense_sum(slices: Any) -> Any:
    """Sparse rows as a dense tensor."""
    return tf.math.unsorted_segment_sum(slices.values, slices.indices, slices.dense_shape[0])


@case
def all_reduce_of_every_op_and_dtype(strategy: lockstep.Strategy) -> Any:
    def step(x: Any) -> Any:
        found = {}
        for op in ("SUM", "MEAN", "MIN", "MAX", "PROD"):
            for dtype in (tf.float32, tf.float64, tf.int32, tf.int64, tf.float16, tf.bfloat16, tf.uint8):
                found[f"{op} {dtype.name}"] = tf.cast(context().all_reduce(op, tf.cast(x, dtype)), tf.float64)
        found["MIN bool"], found["MAX bool"] = (context().all_reduce(op, x > 2) for op in ("MIN", "MAX"))
        found["SUM complex64"] = tf.math.imag(context().all_reduce("SUM", tf.complex(tf.cast(x, tf.float32), 2.0)))
        return found

    return launched(strategy, step, own(strategy, lambda replica: tf.constant([replica + 1, 3 - replica])))


@case
def all_reduce_of_a_nest(strategy: lockstep.Strategy) -> Any:
    def step(x: Any) -> Any:
        return context().all_reduce("SUM", {"scalar": x, "matrix": tf.fill([2, 3], x), "none": tf.zeros([0, 2]),
                                            "whole": [tf.cast(x, tf.int64)]})

    return launched(strategy, step, own(strategy, float))


@case
def all_reduce_of_unknown_dimensions(strategy: lockstep.Strategy) -> Any:
    def step(x: Any) -> Any:
        same = tf.range(tf.cast(context().all_reduce("MAX", x), tf.int32))
        return context().all_reduce("SUM", tf.cast(same, tf.float32) * x)

    return launched(strategy, step, own(strategy, lambda replica: tf.constant(replica + 1.0)))


@case
def all_gather_of_unequal_rows(strategy: lockstep.Strategy) -> Any:
    def step(x: Any) -> Any:
        return context().all_gather(x, 0), context().all_gather(tf.strings.as_string(x[:, None]), 0)

    return launched(strategy, step, own(strategy, lambda replica: tf.range(10 * replica, 11 * replica)))


@case
def all_reduce_of_lookups(strategy: lockstep.Strategy) -> Any:
    with strategy.scope():
        table = tf.Variable(tf.ones([4, 1]))

    def step(ids: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, ids)) / 5
        gradient = context().all_reduce("SUM", tape.gradient(loss, table))
        table.scatter_sub(gradient)

    strategy.run(tf.function(step), args=(own(strategy, lambda replica: tf.range(replica) % 3),))
    return table


@case
def synchronisation_in_control_flow(strategy: lockstep.Strategy) -> Any:
    def step(x: Any, flag: Any) -> Any:
        if flag:
            x = context().all_reduce("SUM", x)
        for _ in tf.range(3):
            x = context().all_reduce("MEAN", x) + 1.0
        return x

    return [launched(strategy, step, own(strategy, float), tf.constant(flag)) for flag in (True, False)]


@case
def eager_steps(strategy: lockstep.Strategy) -> Any:
    def step(x: Any) -> Any:
        total = context().all_reduce("SUM", x)
        merged = context().merge_call(lambda s, y: s.reduce("MAX", y), args=(x,))
        return total + 100 * merged, context().all_gather(x[None], 0)

    return everybodys(strategy, strategy.run(step, args=(own(strategy, lambda replica: tf.constant(1.0 + replica)),)))


@case
def merge_call_in_a_launch(strategy: lockstep.Strategy) -> Any:
    def step(x: Any) -> Any:
        return context().merge_call(
            lambda s, y: (s.extended.reduce_to("SUM", y, y), s.gather(y[None], 0), s.reduce("MEAN", y)), args=(x,))

    return launched(strategy, step, own(strategy, float))


@case
def reductions_outside_of_replicas(strategy: lockstep.Strategy) -> Any:
    numbers = own(strategy, lambda replica: tf.constant([1.0 + replica, 4.0]))
    rows = own(strategy, lambda replica: tf.range(replica, dtype=tf.float32))
    shape = tf.constant([4, 2])
    sparse = own(strategy, lambda replica: tf.IndexedSlices(tf.ones([replica, 2]), tf.range(replica), shape))
    squares = own(strategy, lambda replica: tf.ones([replica + 1, 2]) * replica)
    return {
        **{op: strategy.reduce(op, numbers) for op in ("SUM", "MEAN", "MIN", "MAX", "PROD")},
        "rows": [strategy.reduce(op, rows, axis=0) for op in ("SUM", "MEAN")],
        "axes": strategy.reduce("MEAN", squares, axis=[0, 1]),
        "sparse": dense_sum(strategy.reduce("MEAN", sparse)),
        "plain": strategy.reduce("MEAN", tf.constant(5.0)),
        "nest": strategy.reduce("SUM", {"a": numbers, "b": [rows]}, axis=0),
        "gather": strategy.gather(rows, 0),
        "strings": strategy.gather(own(strategy, lambda replica: tf.constant([["a" * replica, "b"]])), 0),
    }


@case
def outer_functions(strategy: lockstep.Strategy) -> Any:
    with strategy.scope():
        total = tf.Variable(0.0)

    def step(x: Any) -> Any:
        total.assign_add(context().all_reduce("SUM", tf.reduce_sum(x)))
        return x * total

    @tf.function
    def outer(x: Any) -> Any:
        loss = 0.0
        for _ in tf.range(3):
            loss += strategy.reduce("SUM", strategy.run(step, args=(x,)), axis=0)
        return loss, strategy.gather(x, 0)

    return outer(own(strategy, lambda replica: tf.constant([1.0 + replica]))), total


@case
def variables(strategy: lockstep.Strategy) -> Any:
    synchronization, aggregation = tf.VariableSynchronization.ON_READ, tf.VariableAggregation
    with strategy.scope():
        mean = tf.Variable(1.0, aggregation=aggregation.MEAN)
        first = tf.Variable(1.0, aggregation=aggregation.ONLY_FIRST_REPLICA)
        count = tf.Variable(0, synchronization=synchronization, aggregation=aggregation.SUM)
        average = tf.Variable(0.0, synchronization=synchronization, aggregation=aggregation.MEAN)
        leader = tf.Variable(0.0, synchronization=synchronization, aggregation=aggregation.ONLY_FIRST_REPLICA)

    def step(x: Any) -> None:
        mean.assign(x)
        first.assign_add(x + 5.0)
        count.assign_add(tf.cast(x, tf.int32) + 1)
        average.assign(x)
        leader.assign(x + 7.0)

    strategy.run(tf.function(step), args=(own(strategy, float),))
    found = [mean, first, count.read_value(), average.read_value(), leader.read_value()]
    count.assign(11)
    return plain(found) + [count.read_value()]


@case
def losses_of_every_number_of_rows(strategy: lockstep.Strategy) -> Any:
    found = []
    for rows in range(1, 9):
        with strategy.scope():
            weight = tf.Variable(1.0)

        @tf.function
        def step(x: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = lockstep.average_loss((weight * x) ** 2)
            weight.assign_sub(0.1 * context().all_reduce("SUM", tape.gradient(loss, weight)))
            return loss

        dataset = tf.data.Dataset.range(1, rows + 1).map(lambda x: tf.cast(x, tf.float32)).batch(8)
        for batch in strategy.experimental_distribute_dataset(dataset):
            found.append([strategy.reduce("SUM", strategy.run(step, args=(batch,))), plain(weight)])
    return found


@case
def a_partial_last_batch_in_an_outer_loop(strategy: lockstep.Strategy) -> Any:
    dataset = tf.data.Dataset.range(1, 11).batch(4)

    @tf.function
    def epoch(batches: Any) -> Any:
        total = 0.0
        for batch in batches:
            total += strategy.reduce("SUM", strategy.run(
                lambda x: lockstep.average_loss(tf.cast(x, tf.float32)), args=(batch,)))
        return total

    return epoch(strategy.experimental_distribute_dataset(dataset))


@case
def gradients_through_run(strategy: lockstep.Strategy) -> Any:
    with strategy.scope():
        weight = tf.Variable(2.0)

    @tf.function
    def step(x: Any) -> Any:
        return weight * x * context().all_reduce("SUM", weight * x)

    x = own(strategy, lambda replica: tf.constant(1.0 + replica))
    with tf.GradientTape() as tape:
        loss = strategy.reduce("SUM", strategy.run(step, args=(x,))) if strategy.num_workers == 1 \
            else tf.add_n(strategy.experimental_local_results(strategy.run(step, args=(x,))))
    return tape.gradient(loss, weight)


@case
def random_streams(strategy: lockstep.Strategy) -> Any:
    tf.random.set_seed(3)
    step = tf.function(lambda: (tf.random.uniform([2]), tf.nn.dropout(tf.ones([8]), 0.5)))
    return [everybodys(strategy, strategy.run(step)) for _ in range(2)]


@case
def the_driver(strategy: lockstep.Strategy) -> Any:
    with strategy.scope():
        weight = tf.Variable(1.0)

    def train_step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = lockstep.average_loss(weight * x)
        weight.assign_sub(0.25 * context().all_reduce("SUM", tape.gradient(loss, weight)))
        return {"loss": loss, "x": x}

    data = tf.data.Dataset.from_tensor_slices([1.0, 2.0, 3.0, 4.0, 10.0]).batch(4)

    def stop_after_six(step: int, outputs: Any) -> bool:
        """The last worker alone asks; all must stop."""
        return step == 6 and strategy.worker_index == strategy.num_workers - 1

    trainer = lockstep.training.Trainer(strategy, train_step, data, steps_per_loop=3, progress="none",
                                        actions=[stop_after_six])
    trained = [trainer.train(epochs=1), trainer.train(steps=8)]
    return trained, trainer.evaluate(lambda x: {"loss": lockstep.average_loss(x), "x": x}, data), trainer.step, weight


@case
def broadcast(strategy: lockstep.Strategy) -> Any:
    return strategy.broadcast({"seed": 7, "name": ["run"]})


def main(names: Sequence[str]) -> None:
    from testing.logical_devices import ask_for_logical_cpus
    from testing.workers import report

    ask_for_logical_cpus(int(os.environ["LOCKSTEP_TEST_REPLICAS"]))
    options = lockstep.CollectiveOptions(os.environ.get("LOCKSTEP_TEST_IMPLEMENTATION", "auto"), timeout_seconds=60)
    strategy = lockstep.MultiWorkerMirroredStrategy(options=options)
    report("worker", [strategy.num_replicas_in_sync, strategy.num_workers, strategy.is_chief])
    for name in names or CASES:
        report(name, plain(CASES[name](strategy)))
    strategy.barrier("end")


if __name__ == "__main__":
    main(sys.argv[1:])
