"""The replica context: what a step sees of the other replicas."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Callable, Sequence

import tensorflow as tf

from ..collective import CollectiveOptions, Member, ReduceOp, all_gather, all_reduce
from ..collective._tf import with_gradient
from ..collective.all_gather import checked_axis
from ..collective.all_reduce import own_part
from . import replica_scope
from .arguments import check_call


class ReplicaContext(tf.distribute.ReplicaContext):
    """The running replica's view, from `tf.distribute.get_replica_context()` inside `Strategy.run`.

    >>> strategy = lockstep.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> @tf.function
    ... def step():
    ...     context = tf.distribute.get_replica_context()
    ...     return context.all_reduce("SUM", context.replica_id_in_sync_group + 1)
    >>> [int(total) for total in strategy.experimental_local_results(strategy.run(step))]
    [3, 3]
    """

    def __init__(self, strategy: tf.distribute.Strategy, member: Member, index: int):
        super().__init__(strategy, index)
        self._member = member

    @property
    def replica_id_in_sync_group(self) -> tf.Tensor:
        """This replica's number in the sync group, an int32 scalar."""
        rank = self._member.rank
        return tf.constant(rank, tf.int32) if isinstance(rank, int) else rank

    @property
    def devices(self) -> tuple[str, ...]:
        return (self.strategy.extended.worker_devices[self._replica_id],)

    def all_reduce(self, reduce_op: Any, value: Any, options: CollectiveOptions | None = None) -> Any:
        """Reduces `value` over all replicas; each gets the result.

        Synchronisation: every replica must call, in the same order. Inside `tf.cond` and loops all replicas must take
        the same branch.

        Args:
            reduce_op: A `ReduceOp`, `tf.distribute.ReduceOp` or its name.
            value: A tensor, `tf.IndexedSlices`, or a nest of them of mixed dtypes and shapes; the same on every
                replica but for the numbers and the row counts of sparse values.
            options: Overrides the strategy's options.

        Returns:
            The reduced nest, equal on every replica. Differentiable for SUM and MEAN.

        Raises:
            ValueError: A leaf is None, or the op is unknown.
            TypeError: The op means nothing for a leaf's dtype.
        """
        self._require_running("all_reduce")
        flat = tf.nest.flatten(value)
        reduced = all_reduce(self._member, ReduceOp.of(reduce_op), flat, self.strategy._options_for(options))
        return tf.nest.pack_sequence_as(value, reduced)

    def all_gather(self, value: Any, axis: int, options: CollectiveOptions | None = None) -> Any:
        """Concatenates the replicas' values along `axis`, in the order of the replicas.

        Synchronisation: as `all_reduce`. Sizes along `axis` may differ between replicas, also be 0.

        Args:
            value: A tensor of rank 1 or more, or a nest of them.
            axis: The axis to join along; negative values count from the end.
            options: Accepted for the sake of tf.distribute's signature; must be None or a `CollectiveOptions`.

        Returns:
            The joined nest, equal on every replica. Differentiable: each replica gets its rows of the summed gradient.

        Raises:
            ValueError: A scalar, or no such axis.
            tf.errors.InvalidArgumentError: The shapes differ elsewhere than along `axis`.
            CollectiveMismatchError: The replicas' axes or dtypes differ.
            NotImplementedError: A `tf.IndexedSlices` leaf.
        """
        self._require_running("all_gather")
        self.strategy._options_for(options)
        return tf.nest.map_structure(lambda leaf: self._gather(leaf, axis), value)

    def _gather(self, tensor: Any, axis: int) -> tf.Tensor:
        if isinstance(tensor, tf.IndexedSlices):
            raise NotImplementedError("`all_gather`: got tf.IndexedSlices. Gather the values and the indices apart, or "
                                      "use `tf.convert_to_tensor` first.")
        tensor = tf.convert_to_tensor(tensor)
        axis = checked_axis(tensor, axis, "all_gather")
        if not tensor.dtype.is_floating or self._member.size == 1:
            return all_gather(self._member, tensor, axis)

        def gradient(upstream: tf.Tensor) -> list[tf.Tensor]:
            return [own_part(self._member, upstream, tensor, axis, self.strategy.options)]

        gathered, = with_gradient(lambda operands: [all_gather(self._member, operands[0], axis)], gradient, [tensor])
        return gathered

    def merge_call(self, merge_fn: Callable[..., Any], args: Sequence[Any] = (),
                   kwargs: dict[str, Any] | None = None) -> Any:
        """Calls `merge_fn(strategy, *args, **kwargs)` once for all replicas, in cross-replica context.

        In a step that is traced once, `merge_fn` is traced once too. Its arguments are this replica's values: what
        combines them (`reduce`, `gather`, `extended.reduce_to`, `experimental_local_results`) is a collective, and
        what writes variables (`assign`, `extended.update`) writes this replica's copies, the same on every replica.

        Synchronisation: every replica must call.

        Raises:
            TypeError: `merge_fn` is no function.
            ValueError: `args` is no list or tuple, or `kwargs` no dictionary.
        """
        self._require_running("merge_call")
        check_call("merge_call", "merge_fn", merge_fn, args, kwargs)
        return super().merge_call(merge_fn, tuple(args), kwargs)

    def _require_running(self, method: str) -> None:
        """Raises RuntimeError where another replica or none runs: the others would be waited for in vain."""
        running = tf.distribute.get_replica_context()
        if getattr(running, "_member", None) is not self._member:
            raise RuntimeError(
                f"`{method}`: called on the context of a replica that does not run here (the step has ended, or this "
                "is cross-replica context). Call `tf.distribute.get_replica_context()` in the step, where it is used.")

    def _merge_call(self, merge_fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        scope = replica_scope.current()
        if scope is not None and scope.merge is not None:
            return scope.merge(merge_fn, args, kwargs)
        if scope is None or self._member.size == 1:
            return super()._merge_call(merge_fn, args, kwargs)
        with replica_scope.entered(dataclasses.replace(scope, in_merge_call=True)):
            try:
                return super()._merge_call(merge_fn, args, kwargs)
            except AttributeError as error:
                if not re.search("Tensor' object has no attribute '_?values'", str(error)):
                    raise
                raise AttributeError(
                    "`merge_call`: the function asks an argument for its `values`. In a step that is traced once for "
                    "all replicas the arguments are one replica's tensors. Use "
                    f"`strategy.experimental_local_results(argument)`. {error}") from error
