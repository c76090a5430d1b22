"""Writes under conditions: copies of a variable stay equal only if all replicas take the same way.

    if per_replica_number > 1.0:
        variable.assign(7.0)        # 7 is the same on every replica, but not every replica comes here

What a write in a branch or loop needs is that its condition is equal on all replicas. Where it is by construction
(invariance.py), nothing is to be done. Another condition of a branch is compared before the branch is taken, and the
step fails where it differs. A loop whose number of rounds may differ is refused when it is traced.

A write notes itself with the graph that it stands in. When TensorFlow makes the op that holds that graph, the condition
is looked at, and the note moves to the graph around it.
"""

from __future__ import annotations

import weakref
from typing import Any, Iterable, Sequence

import tensorflow as tf

from ..collective import agree
from . import replica_scope
from ._tf import FuncGraph
from .invariance import is_equal_on_all_replicas, is_exchange, needs

_writes: weakref.WeakKeyDictionary[tf.Graph, set[str]] = weakref.WeakKeyDictionary()

_BRANCHES = {"If": ("then_branch", "else_branch"), "Case": ("branches",), "While": ("cond", "body")}


def note_write(variable: tf.Variable) -> None:
    """Notes that the graph that is built writes a variable whose copies are equal, with a value that is."""
    graph = tf.compat.v1.get_default_graph()
    if isinstance(graph, FuncGraph):
        _writes.setdefault(graph, set()).add(variable.name)


def on_op(op_type: str, inputs: Sequence[tf.Tensor], attrs: Any, outputs: Sequence[tf.Tensor], op_name: Any = None,
          graph: Any = None) -> None:
    """Called for each op of a body as it is made.

    Raises:
        RuntimeError: A loop that writes a variable may run another number of rounds on each replica.
    """
    if op_type not in _BRANCHES or graph is None or not _writes:
        return
    op = graph.get_operation_by_name(op_name.decode() if isinstance(op_name, bytes) else op_name)
    held = list(_graphs_of(op))
    names = set[str]().union(*(_writes.get(branch, ()) for branch in held))
    scope = replica_scope.current()
    if not names or scope is None or not scope.is_traced_once or scope.member.size == 1:
        return
    _writes.setdefault(graph, set()).update(names)
    if any(map(is_exchange, inputs)):
        return  # Replicas that part ways do not meet in it, and are told so.
    written = f"Variable {', '.join(map(repr, sorted(names)))}"
    if op_type == "While":
        if not _rounds_are_equal(op, *held):
            raise RuntimeError(
                f"{written}: written in a loop whose number of rounds may differ between the replicas, so that their "
                "copies would drift apart. Make the number the same on all, with "
                "`tf.distribute.get_replica_context().all_reduce`, or give the variable "
                "`synchronization=tf.VariableSynchronization.ON_READ`.")
    elif not is_equal_on_all_replicas(inputs[0]):
        agreed = agree(scope.member, inputs[0], f"{written}: written under a condition",
                       "All replicas must take the same branch, or their copies would drift apart. Reduce the "
                       "condition first, with `tf.distribute.get_replica_context().all_reduce`, or write on all "
                       "replicas what `tf.where` chooses.")
        op._add_control_input(agreed.op)


def _graphs_of(op: tf.Operation) -> Iterable[FuncGraph]:
    """The graphs of the functions that an op holds as branches."""
    for name in _BRANCHES[op.type]:
        functions = op.get_attr(name)
        for function in functions if isinstance(functions, list) else [functions]:
            yield op.graph._get_function(function.name).graph


def _rounds_are_equal(loop: tf.Operation, condition: FuncGraph, body: FuncGraph) -> bool:
    """Whether a loop runs the same number of rounds on every replica by construction."""
    seen: set[int] = set()
    todo = [condition.outputs[0]]
    while todo:
        needed = needs(todo.pop())
        if needed is None:
            return False
        ids = set(map(id, needed))
        for position, placeholders in enumerate(zip(condition.inputs, body.inputs)):
            if position in seen or ids.isdisjoint(map(id, placeholders)):
                continue
            seen.add(position)
            if not is_equal_on_all_replicas(loop.inputs[position]):
                return False
            if position < len(body.outputs):
                todo.append(body.outputs[position])
    return True
