"""The workers of a job: how tensors meet that live in different processes.

A worker takes part once for all its replicas: they have met through queues before (local.py), and share the result.

    reduce      TensorFlow's CollectiveReduceV2: a ring over gRPC
    broadcast   the same on the bits: the root brings them, the others zeros, and the sum is exact
    gather      CollectiveGatherV2 on the bits, after the headers (wire.py): any dtypes and shapes

Every call stands under a key that is made of what it is (sites.py), and says so in two small variables while it waits:
the watch reads them from another thread.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, Sequence

import tensorflow as tf

from .all_gather import difference
from .buckets import flattened, taken_apart
from .device_collectives import DTYPES, MERGE, ONE_SHAPE, padded, padded_size
from .errors import unfit
from .member import Exchange, Parts, combine_columns
from .reduce_op import ReduceOp, mean_of_total
from .sites import Sites
from .wire import HEADER_SIZE, from_wire, header, shape_and_length, to_wire, words_per_element

# One for the workers' hosts, one for all replicas' devices; groups of single processes count up from 1 (local.py).
HOSTS_GROUP = (1 << 20) + 1
DEVICES_GROUP = (1 << 20) + 2

# More pieces in flight than TensorFlow's default of one per device: 183 instead of 357 ms for 100 MB on two workers.
SUBDIVISIONS = 8

FailWith = Callable[[tf.Tensor], tf.Operation]


def assert_none(problem: tf.Tensor) -> tf.Operation:
    """An op that fails if `problem`, a string scalar, is not empty; fails at once in eager code.

    Raises:
        tf.errors.InvalidArgumentError: In eager code: the problem, as it is.
    """
    if tf.executing_eagerly():
        if problem != "":
            raise unfit(problem.numpy().decode())
        return None
    return tf.debugging.Assert(tf.equal(problem, ""), [problem])


class WorkerGroup:
    """The seat of this process among the workers.

    Args:
        rank: This worker's position; 0 is the chief.
        num_replicas_by_worker: How many replicas each worker has.
        names: What error texts call the workers, "worker 0" and so on if empty.

    Attributes:
        sites: The exchanges that this process knows.
        agreed_plans: Which exchanges of traced functions all workers have agreed on, see strategy/plan_agreement.py.
        first_replica: The rank of this worker's first replica among all replicas.
        num_replicas: The number of replicas of all workers.
    """

    def __init__(self, rank: int, num_replicas_by_worker: Sequence[int], names: Sequence[str] = ()):
        self.rank = rank
        self.names = tuple(names) or tuple(f"worker {number}" for number in range(len(num_replicas_by_worker)))
        self.num_replicas_by_worker = tuple(num_replicas_by_worker)
        self.size = len(self.num_replicas_by_worker)
        self.first_replica = sum(self.num_replicas_by_worker[:rank])
        self.num_replicas = sum(self.num_replicas_by_worker)
        self.sites = Sites()
        self.agreed_plans: set[str] = set()
        with tf.init_scope(), tf.device("/device:CPU:0"):
            self._at = tf.Variable(0, trainable=False, dtype=tf.int64, name="waiting_at")
            self._done = tf.Variable(0, trainable=False, dtype=tf.int64, name="exchanges_done")
        for variable in (self._at, self._done):
            variable.handle._lockstep_queue = True  # Shared by all replicas, and meant to be.

    def progress(self) -> tuple[int, int]:
        """The key of the exchange that this worker waits in, 0 if it is in none; and how many it has completed."""
        with tf.init_scope():
            return int(self._at.read_value()), int(self._done.read_value())

    # Reductions.

    def reduce_parts(self, op: ReduceOp, parts: Parts, what: Exchange, place: str,
                     fail_with: FailWith = assert_none) -> list[tf.Tensor]:
        """Reduces the parts of this process's replicas, then over the workers; as `reduce`, MEAN included."""
        if op is not ReduceOp.MEAN:
            return self.reduce(op, combine_columns(op, parts), what, place, fail_with)
        parts = [[tf.cast(tensor, op.result_dtype(tensor.dtype)) for tensor in part] for part in parts]
        totals = self.reduce(ReduceOp.SUM, combine_columns(ReduceOp.SUM, parts), what, place, fail_with)
        return [mean_of_total(total, self.num_replicas) for total in totals]

    def reduce(self, op: ReduceOp, tensors: Sequence[tf.Tensor], what: Exchange, place: str,
               fail_with: FailWith = assert_none) -> list[tf.Tensor]:
        """Reduces each tensor over the workers.

        Synchronisation: every worker calls once, with tensors of the same dtypes and shapes.

        Args:
            op: SUM, MIN, MAX or PROD.
            tensors: All of one dtype.
            what: What this exchange is.
            place: See `sites.place_of`.
            fail_with: Given a string scalar that tells a problem, an op that fails if it is not empty.

        Raises:
            tf.errors.InvalidArgumentError: Shapes that are not static differ between the workers.
        """
        dtype = tensors[0].dtype
        wide = tf.int32 if dtype == tf.bool else dtype
        if wide not in DTYPES:
            parts = self.gather([tensors], what, place, [1] * self.size)
            return combine_columns(op, parts)
        operands = [tf.cast(tensor, wide) for tensor in tensors]
        if not all(operand.shape.is_fully_defined() for operand in operands):
            results = [self._reduce_padded(op, operand, what, f"{place}[{index}]", fail_with)
                       for index, operand in enumerate(operands)]
        else:
            results = self._reduce_flat(op, operands, what, place)
        return [tf.cast(result, dtype) for result in results]

    def _reduce_flat(self, op: ReduceOp, operands: Sequence[tf.Tensor], what: Exchange, place: str
                     ) -> list[tf.Tensor]:
        flat = flattened(operands)
        if not flat.shape.num_elements():
            return list(operands)
        key = self.sites.key(what, place, _shapes(operands))
        return taken_apart(self._collective_reduce(op, flat, tf.constant(key)), operands)

    def _reduce_padded(self, op: ReduceOp, operand: tf.Tensor, what: Exchange, place: str,
                       fail_with: FailWith) -> tf.Tensor:
        shape = tf.shape(operand)
        first = self.sites.key(what, place, "", is_block=True)
        told = Exchange("agree", "", "int32", "ring", None, tuple(f"the shape of {name}" for name in what.tensors))
        shapes = [shape for shape, in self.gather([[shape]], told, place, [1] * self.size)]
        problem = difference(shapes, self.sites.text(first), ONE_SHAPE, "workers' shapes")
        with tf.control_dependencies([fail_with(problem)]):
            shape = tf.identity(shape)
        return padded(operand, shape, lambda vector, which: self._collective_reduce(op, vector, first + which))

    def _collective_reduce(self, op: ReduceOp, operand: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        with self._waiting_at(key, operand) as (operand, finished):
            return finished(tf.raw_ops.CollectiveReduceV2(
                input=operand, group_size=self.size, group_key=HOSTS_GROUP, instance_key=key, ordering_token=[],
                merge_op=MERGE[op], final_op="Id", communication_hint="ring", max_subdivs_per_device=SUBDIVISIONS))

    # Moving bits.

    def broadcast_part(self, parts: Parts, root: int, what: Exchange, place: str) -> list[tf.Tensor]:
        """The tensors of replica `root`, from the parts of this process's replicas; as `broadcast`."""
        ends = [sum(self.num_replicas_by_worker[:worker + 1]) for worker in range(self.size)]
        owner = next(worker for worker, end in enumerate(ends) if root < end)
        own = parts[root - self.first_replica] if owner == self.rank else parts[0]
        return self.broadcast(own, owner, what, place)

    def broadcast(self, tensors: Sequence[tf.Tensor], root: int, what: Exchange, place: str) -> list[tf.Tensor]:
        """Gives every worker the tensors of worker `root`, which must have static shapes, the same on all.

        Synchronisation: every worker calls once.
        """
        if any(tensor.dtype == tf.string or not tensor.shape.is_fully_defined() for tensor in tensors):
            return self.gather([tensors], what, place, [1] * self.size)[root]
        wires = [to_wire(tensor) for tensor in tensors]
        if self.rank != root:
            wires = [tf.zeros_like(wire) for wire in wires]
        key = self.sites.key(what, place, _shapes(tensors))
        sizes = [tensor.shape.num_elements() * words_per_element(tensor.dtype) for tensor in tensors]
        if not sum(sizes):
            return list(tensors)
        bits = self._collective_reduce(ReduceOp.SUM, tf.concat(wires, 0), tf.constant(key))
        return [from_wire(wire, tensor.dtype, tensor.shape)
                for wire, tensor in zip(tf.split(bits, sizes), tensors, strict=True)]

    def gather(self, parts: Parts, what: Exchange, place: str, counts: Sequence[int] | None = None
               ) -> list[list[tf.Tensor]]:
        """Gives every worker the lists of tensors of everybody's members, by rank.

        Synchronisation: every worker calls once, with lists of the same dtypes; shapes may differ.

        Args:
            parts: One list for each of this worker's members, all of the same dtypes.
            what: What this exchange is.
            place: See `sites.place_of`.
            counts: How many members each worker has, its replicas if None.
        """
        counts = self.num_replicas_by_worker if counts is None else counts
        dtypes = [tensor.dtype for tensor in parts[0]]
        tensors = [tensor for part in parts for tensor in part]
        wires = [to_wire(tensor) for tensor in tensors]
        headers = tf.concat([header(tensor, wire) for tensor, wire in zip(tensors, wires, strict=True)], 0)
        per_worker = max(counts) * len(dtypes) * HEADER_SIZE
        headers = tf.pad(headers, [[0, per_worker - len(tensors) * HEADER_SIZE]])
        headers = tf.ensure_shape(headers, [per_worker])
        names = str([dtype.name for dtype in dtypes])
        key = self.sites.key(what, place, "", form=f"headers of {names}, {per_worker} numbers")
        everybodys = tf.reshape(self._collective_gather(headers, tf.constant(key)), [self.size, -1, HEADER_SIZE])
        totals = tf.reduce_sum(everybodys[:, :, HEADER_SIZE - 1], 1)
        which, size = padded_size(tf.cast(tf.reduce_max(totals), tf.int64))
        payload = tf.pad(tf.concat(wires, 0), [[0, size - tf.cast(totals[self.rank], tf.int64)]])
        first = self.sites.key(what, place, "", is_block=True, form=names)
        bits = tf.reshape(self._collective_gather(payload, first + which), [self.size, -1])
        return [self._unpacked(bits[worker], everybodys[worker], dtypes, member)
                for worker in range(self.size) for member in range(counts[worker])]

    def _unpacked(self, bits: tf.Tensor, headers: tf.Tensor, dtypes: Sequence[tf.DType], member: int
                  ) -> list[tf.Tensor]:
        ends = tf.cumsum(headers[:, HEADER_SIZE - 1])
        unpacked = []
        for index, dtype in enumerate(dtypes, start=member * len(dtypes)):
            shape, length = shape_and_length(headers[index])
            unpacked.append(from_wire(bits[ends[index] - length:ends[index]], dtype, shape))
        return unpacked

    def _collective_gather(self, operand: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        with self._waiting_at(key, operand) as (operand, finished):
            return finished(tf.raw_ops.CollectiveGatherV2(
                input=operand, group_size=self.size, group_key=HOSTS_GROUP, instance_key=key, ordering_token=[],
                communication_hint="ring"))

    @contextlib.contextmanager
    def _waiting_at(self, key: tf.Tensor, operand: tf.Tensor
                    ) -> Iterator[tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]]:
        """Says which exchange this worker is in, for as long as it waits; in eager code and in graphs."""
        with tf.device("/device:CPU:0"):
            with tf.control_dependencies(self.waits_at(key)):
                operand = tf.identity(operand)

            def finished(result: tf.Tensor) -> tf.Tensor:
                with tf.control_dependencies(_ops(result)):
                    ended = self.has_completed()
                with tf.control_dependencies(ended):
                    return tf.identity(result)

            yield operand, finished

    def waits_at(self, key: tf.Tensor) -> list[Any]:
        """The ops that say that this worker waits in an exchange; none where they have run already, in eager code."""
        return _ops(self._at.assign(tf.cast(key, tf.int64), read_value=False))

    def has_completed(self) -> list[Any]:
        """The ops that say that it has completed the exchange that it waited in."""
        return [op for said in (self._at.assign(0, read_value=False), self._done.assign_add(1, read_value=False))
                for op in _ops(said)]


def _ops(made: Any) -> list[Any]:
    return [] if tf.executing_eagerly() or made is None else [made]


def _shapes(tensors: Sequence[tf.Tensor]) -> str:
    return ", ".join(str(tensor.shape) for tensor in tensors)
