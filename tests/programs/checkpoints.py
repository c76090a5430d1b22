"""Two workers of two replicas save and restore; `worker_checkpoints_test.py` says what should come of it.

    checkpoints.py folder save            every kind of saving, and what restoring gives back
    checkpoints.py folder restore         what another number of workers reads
    checkpoints.py folder chief_only      the chief saves, the others do not
"""

from __future__ import annotations

import os
import sys
from typing import Any, Callable

import tensorflow as tf

import lockstep
from testing.workers import report

SUM, MEAN = tf.VariableAggregation.SUM, tf.VariableAggregation.MEAN
ON_READ = tf.VariableSynchronization.ON_READ


class State:
    """All that a checkpoint of a training holds, and a step that changes it."""

    def __init__(self, strategy: lockstep.Strategy):
        self.strategy = strategy
        with strategy.scope():
            self.weights = tf.Variable([1.0, 2.0])
            self.momentum = tf.Variable([0.0, 0.0])
            self.count = tf.Variable(0, synchronization=ON_READ, aggregation=SUM)
            self.mean = tf.Variable(0.0, synchronization=ON_READ, aggregation=MEAN)
        # Powers of two: all numbers are exact, however many replicas share the rows.
        dataset = tf.data.Dataset.range(64).shuffle(64, seed=2).batch(16)
        self.iterator = iter(strategy.experimental_distribute_dataset(dataset))
        self.checkpoint = tf.train.Checkpoint(
            weights=self.weights, momentum=self.momentum, count=self.count, mean=self.mean, iterator=self.iterator,
            random_streams=strategy.random_streams)
        self._step = tf.function(self._replica_step)

    def _replica_step(self, rows: Any) -> Any:
        gradient = tf.fill([2], lockstep.average_loss(tf.cast(rows, tf.float32))) / 64
        gradient = tf.distribute.get_replica_context().all_reduce("SUM", gradient)
        self.momentum.assign(0.5 * self.momentum + gradient)
        self.weights.assign_sub(self.momentum)
        self.count.assign_add(tf.size(rows))
        self.mean.assign(tf.reduce_sum(tf.cast(rows, tf.float32)))
        return tf.random.uniform([])

    def step(self) -> list[Any]:
        """Makes a step; returns the rows that all replicas had, and the random numbers that they drew."""
        rows = next(self.iterator)
        drawn = self.strategy.run(self._step, args=(rows,))
        own = [part[None] for part in self.strategy.experimental_local_results(drawn)]
        everybodys = self.strategy.gather(lockstep.PerReplica(own) if len(own) > 1 else own[0], 0)
        return [self.strategy.gather(rows, 0).numpy().tolist(), everybodys.numpy().tolist()]

    def values(self) -> list[Any]:
        return [self.weights.numpy().tolist(), self.momentum.numpy().tolist(), int(self.count.read_value()),
                float(self.mean.read_value())]


def files(folder: str) -> list[str]:
    """All that is in a folder, with what is in its folders."""
    return sorted(os.path.relpath(os.path.join(root, name), folder)
                  for root, folders, names in os.walk(folder) for name in [*folders, *names])


def told(function: Callable[[], Any]) -> list[str]:
    """What a function raises."""
    try:
        function()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return []


def save(strategy: lockstep.Strategy, folder: str) -> None:
    state = State(strategy)
    for _ in range(2):
        state.step()
    report("saved", state.values())
    report("paths", [state.checkpoint.save(os.path.join(folder, "plain", "ckpt")) for _ in range(2)]
           + [state.checkpoint.write(os.path.join(folder, "plain", "written"))])
    report("next step", state.step())
    report("after it", state.values())
    state.checkpoint.restore(os.path.join(folder, "plain", "ckpt-1")).assert_consumed()
    report("restored", [state.values(), state.step(), state.values()])
    state.checkpoint.read(os.path.join(folder, "plain", "written")).assert_consumed()
    report("read", state.values())

    manager = tf.train.CheckpointManager(state.checkpoint, os.path.join(folder, "managed"), max_to_keep=2)
    report("managed", [manager.save() for _ in range(4)] + [manager.checkpoints, manager.latest_checkpoint])
    # As after a restart: the manager knows of checkpoints that this process has not written.
    manager = tf.train.CheckpointManager(state.checkpoint, os.path.join(folder, "managed"), max_to_keep=1)
    report("managed again", [manager.save(), manager.checkpoints])

    own = os.path.join(folder, f"own_{strategy.extended.workers.rank}")
    manager = tf.train.CheckpointManager(state.checkpoint, own, max_to_keep=1)
    report("own", [[manager.save() for _ in range(2)], tf.train.latest_checkpoint(own)])

    open(os.path.join(folder, "file"), "w", encoding="utf-8").close()
    report("in the way", told(lambda: state.checkpoint.write(os.path.join(folder, "file", "ckpt"))))
    if strategy.is_chief:
        os.makedirs(os.path.join(folder, "blocked.index"))
    report("blocked", told(lambda: state.checkpoint.write(os.path.join(folder, "blocked"))))
    report("another path", state.checkpoint.write(os.path.join(folder, "free")))
    strategy.barrier("all have saved")
    report("files", {name: files(os.path.join(folder, name)) for name in ("plain", "managed", "own_0", "own_1", "")})


def restore(strategy: lockstep.Strategy, folder: str) -> None:
    state = State(strategy)
    state.checkpoint.read(os.path.join(folder, "plain", "written")).assert_existing_objects_matched()
    report("restored", [state.values(), state.step(), state.values()])


def chief_only(strategy: lockstep.Strategy, folder: str) -> None:
    state = State(strategy)
    if strategy.is_chief:
        state.checkpoint.save(os.path.join(folder, "alone"))
    state.step()


def main(folder: str, what: str) -> None:
    from testing.logical_devices import ask_for_logical_cpus

    ask_for_logical_cpus(int(os.environ["LOCKSTEP_TEST_REPLICAS"]))
    strategy = lockstep.MultiWorkerMirroredStrategy(
        options=lockstep.CollectiveOptions(timeout_seconds=10 if what == "chief_only" else 60))
    {"save": save, "restore": restore, "chief_only": chief_only}[what](strategy, folder)
    strategy.barrier("end")


if __name__ == "__main__":
    main(*sys.argv[1:])
