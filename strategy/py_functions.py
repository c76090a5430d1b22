"""Python functions in a step: `tf.py_function` and `tf.numpy_function` know which replica calls them.

TensorFlow calls them on threads of its own, where nothing says whose step it is: a variable would be read as from
outside, in the middle of the other replicas' work. So in a step they get the replica's number as one more input, and
variables are this replica's copies while they run.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Sequence

import tensorflow as tf

from ..collective import Member
from . import replica_scope


class _PythonMember(Member):
    """The seat of a replica in a Python function, which cannot wait for others."""

    def __init__(self, devices: Sequence[str], rank: int, size: int):
        super().__init__(devices)
        self._rank, self.size = rank, size

    @property
    def rank(self) -> int:
        return self._rank

    def exchange(self, tensors: Sequence[tf.Tensor], combine: Any, what: Any, result_dtypes: Any = None,
                 verdict: Any = None) -> list[tf.Tensor]:
        raise RuntimeError(f"`{what.kind}` ({', '.join(what.tensors)}) in a `tf.py_function` or `tf.numpy_function`: "
                           "there the replicas cannot wait for each other. Return the value, and use it in the step.")


def _with_replica(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def in_replica(func: Callable[..., Any], inp: Any, *args: Any, **kwargs: Any) -> Any:
        scope = replica_scope.current()
        if scope is None or scope.member.size == 1 or tf.executing_eagerly():
            return original(func, inp, *args, **kwargs)
        strategy = scope.strategy

        def called(replica: Any, *inputs: Any) -> Any:
            rank = int(replica)
            index = rank - strategy.extended.first_replica
            member = _PythonMember(strategy.extended.worker_devices, rank, scope.member.size)
            with replica_scope.entered(replica_scope.ReplicaScope(strategy, member, index, is_traced_once=False,
                                                                  in_graph=False)):
                return func(*inputs)

        return original(called, [tf.convert_to_tensor(scope.member.rank), *inp], *args, **kwargs)

    in_replica._lockstep_knows_replica = True  # type: ignore[attr-defined]
    return in_replica


def install() -> None:
    """Puts the functions in the place of TensorFlow's; outside of our steps they do the same."""
    for name in ("py_function", "numpy_function"):
        if not hasattr(getattr(tf, name), "_lockstep_knows_replica"):
            setattr(tf, name, _with_replica(getattr(tf, name)))
