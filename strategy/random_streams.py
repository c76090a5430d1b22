"""Random numbers that differ between replicas and are the same on every run.

TensorFlow's stateful random ops carry their seed as an attribute. In a body that all replicas share, they would all
draw the same numbers, and where the stream stands could not be saved. So while a body is traced, each such op is
replaced by a stateless one, fed by a stream of its own: a small variable per replica, [counter, counter, key] as
`tf.random.Generator` keeps it (Philox; Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011). The key is
made of the seed, the op's number and the replica's number.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from typing import Any, Callable, Sequence

import tensorflow as tf

from . import over_workers, replica_scope
from .variable_creation import make_own_variable

PHILOX = 1

# Ops that draw from hidden state and have no stateless form that this file knows: refused by name.
_UNSUPPORTED = frozenset({
    "RandomPoisson", "RandomPoissonV2", "RandomGamma", "ParameterizedTruncatedNormal", "Multinomial",
    "AllCandidateSampler", "ComputeAccidentalHits", "FixedUnigramCandidateSampler", "LearnedUnigramCandidateSampler",
    "LogUniformCandidateSampler", "ThreadUnsafeUnigramCandidateSampler", "UniformCandidateSampler", "RandomCrop",
    "SampleDistortedBoundingBox", "SampleDistortedBoundingBoxV2", "RandomShuffleQueueV2",
})


def _uniform(inputs: Sequence[tf.Tensor], attrs: dict[str, Any], key: Any, counter: Any) -> tf.Tensor:
    return tf.raw_ops.StatelessRandomUniformV2(shape=inputs[0], key=key, counter=counter, alg=PHILOX,
                                               dtype=attrs["dtype"])


def _normal(inputs: Sequence[tf.Tensor], attrs: dict[str, Any], key: Any, counter: Any) -> tf.Tensor:
    return tf.raw_ops.StatelessRandomNormalV2(shape=inputs[0], key=key, counter=counter, alg=PHILOX,
                                              dtype=attrs["dtype"])


def _truncated(inputs: Sequence[tf.Tensor], attrs: dict[str, Any], key: Any, counter: Any) -> tf.Tensor:
    return tf.raw_ops.StatelessTruncatedNormalV2(shape=inputs[0], key=key, counter=counter, alg=PHILOX,
                                                 dtype=attrs["dtype"])


def _integers(inputs: Sequence[tf.Tensor], attrs: dict[str, Any], key: Any, counter: Any) -> tf.Tensor:
    return tf.raw_ops.StatelessRandomUniformIntV2(shape=inputs[0], minval=inputs[1], maxval=inputs[2], key=key,
                                                  counter=counter, alg=PHILOX)


def _shuffled(inputs: Sequence[tf.Tensor], attrs: dict[str, Any], key: Any, counter: Any) -> tf.Tensor:
    rows = tf.shape(inputs[0])[:1]
    order = tf.argsort(tf.raw_ops.StatelessRandomUniformFullIntV2(shape=rows, key=key, counter=counter, alg=PHILOX,
                                                                  dtype=tf.uint64))
    return tf.gather(inputs[0], order)


_STATELESS: dict[str, Callable[..., tf.Tensor]] = {
    "RandomUniform": _uniform,
    "RandomStandardNormal": _normal,
    "TruncatedNormal": _truncated,
    "RandomUniformInt": _integers,
    "RandomShuffle": _shuffled,
}


class RandomStreams(tf.train.experimental.PythonState):
    """The streams of one strategy, in the order in which random ops were traced.

    `tf.train.Checkpoint(random_streams=strategy.random_streams)` saves where all streams stand, and restores them: at
    once those that exist, the others when they are made. (The seeds of Keras's own layers are variables of the model;
    `tf.train.Checkpoint(model=model)` leaves them out, since Keras hides them from TensorFlow, and
    `tf.train.Checkpoint(variables=model.variables)` does not.)

    Args:
        strategy: The strategy; with one replica nothing is replaced.
    """

    def __init__(self, strategy: tf.distribute.Strategy):
        self._strategy = strategy
        self.variables: list[tf.Variable] = []
        self._numbers = itertools.count()
        self._restored: list[list[list[int]]] = []

    def on_op(self, op_type: str, inputs: Sequence[Any], attrs: Any, outputs: Sequence[tf.Tensor],
              op_name: Any = None, graph: Any = None) -> Sequence[tf.Tensor] | None:
        """Called for each op of a body as it is made; returns what stands in for its outputs, or None."""
        if op_type not in _STATELESS and op_type not in _UNSUPPORTED:
            return None
        scope = replica_scope.current()
        if scope is None or scope.member.size == 1:
            return None
        if graph is None:
            _draw_by_replica(op_type, inputs, outputs, scope.member.rank)
            return None
        if op_type in _UNSUPPORTED:
            raise NotImplementedError(
                f"`strategy.run`: the step uses the random op {op_type} ({op_name}), which would draw the same numbers "
                "on every replica. Draw with `tf.random.uniform`, `normal`, `truncated_normal` or `shuffle`, with the "
                "`tf.random.stateless_*` functions and a seed of the replica's own, or outside of the step.")
        named = dict(zip(attrs[::2], attrs[1::2]))
        stream = self._new_stream(named["seed"].i, named["seed2"].i)
        state = tf.raw_ops.RngReadAndSkip(resource=stream.handle, alg=PHILOX, delta=_blocks(outputs[0]))
        counter = tf.bitcast(state[:2], tf.uint64)
        key = tf.bitcast(state[2:3], tf.uint64)
        drawn = _STATELESS[op_type](inputs, {"dtype": outputs[0].dtype}, key, counter)
        drawn.set_shape(outputs[0].shape)
        return [drawn]

    def _new_stream(self, seed: int, seed2: int) -> tf.Variable:
        number = next(self._numbers)
        unseeded = seed == 0 and seed2 == 0
        base = os.urandom(16) if unseeded else f"{seed}/{seed2}/{number}".encode()

        def start(replica: int) -> list[int]:
            digest = hashlib.sha256(base + f"/{replica}".encode()).digest()
            return [0, 0, int.from_bytes(digest[:8], "little", signed=True)]

        stream = make_own_variable(self._strategy, start, tf.int64, f"random_stream_{number}")
        self.variables.append(stream)
        self._place(number)
        return stream

    # Saving: by stream and replica, [counter, counter, key].

    def serialize(self) -> str:
        """Where the streams of all replicas stand. Synchronisation: every worker calls."""
        if not self.variables:
            return json.dumps(self._restored)
        with tf.init_scope():
            own = [[tf.stack([stream.values[replica] for stream in self.variables])]
                   for replica in range(len(self._strategy.extended.worker_devices))]
            everybodys = over_workers.all_parts(self._strategy.extended.workers, own, "random streams")
            states = tf.stack([state for state, in everybodys], axis=1)
        return json.dumps(states.numpy().tolist())

    def deserialize(self, string_value: str | bytes) -> None:
        """Puts the streams where `serialize` found them.

        For another number of replicas the counters go on where they stood, and each replica keeps the key that it has.
        """
        self._restored = json.loads(string_value)
        for number in range(len(self.variables)):
            self._place(number)

    def _place(self, number: int) -> None:
        if number >= len(self._restored):
            return
        saved = self._restored[number]
        first = self._strategy.extended.first_replica
        is_same_size = len(saved) == self._strategy.num_replicas_in_sync
        with tf.init_scope():
            for replica, copy in enumerate(self.variables[number].values):
                with tf.device(copy.device):
                    copy.assign(saved[first + replica] if is_same_size else [*saved[0][:2], int(copy[2])])


def _draw_by_replica(op_type: str, inputs: Sequence[Any], outputs: Any, replica: int) -> None:
    """Draws anew for a replica that runs eagerly, from what the op has drawn, which may be the same on every replica.

    An eager op's outputs are replaced in their list: TensorFlow ignores what a callback returns.
    """
    if op_type not in _STATELESS or not outputs[0].numpy().size:
        return
    digest = hashlib.sha256(outputs[0].numpy().tobytes() + f"/{replica}".encode()).digest()
    counter, key = tf.zeros([2], tf.uint64), tf.constant([int.from_bytes(digest[:8], "little")], tf.uint64)
    outputs[0] = _STATELESS[op_type](inputs, {"dtype": outputs[0].dtype}, key, counter)


def _blocks(output: tf.Tensor) -> tf.Tensor:
    """How far a draw moves its stream: one Philox block of 128 bits for each element, an upper bound, and 1 more."""
    return tf.cast(tf.size(output, tf.int64) + 1, tf.uint64) if output.shape.is_fully_defined() else \
        tf.cast(1 << 40, tf.uint64)
