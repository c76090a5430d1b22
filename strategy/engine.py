"""Running a step on every replica: which way, and the cache of launches.

    the strategy has one replica, in a graph      the function is called in place
    a graph is being built, or the function is    one body is traced, one launch calls it for every replica; eager
    a tf.function                                 launches are kept and found again by what the function depends on
    a plain function, called eagerly              once per replica in Python, one by one
    the replicas' arguments have no common trace  the same, in the graph: one trace per replica
"""

from __future__ import annotations

import collections
import functools
import threading
from typing import Any, Callable, Sequence

import tensorflow as tf
from absl import logging

from ..collective.sites import recorded
from . import replica_scope
from ._tf import PolymorphicFunction, a_tape_may_record, convert_with_autograph
from .arguments import Arguments, DifferentObjectsError, check_num_components
from .body import Outputs, trace_body
from .equal_copies import after_failure
from .function_key import Closure, Keys, named_keys
from .launch import Launch
from .launch_errors import naming_the_replica
from .launch_gradient import DifferentiableLaunch
from .one_by_one import run_one_by_one
from .one_by_one_gradient import run_one_by_one_taped
from .plan import Plan, plan_of
from .plan_agreement import agree_on_plan
from .replica_context import ReplicaContext
from .values import PerReplica, components, is_distributed, map_structure, regroup, select

# Launches kept per strategy. A program has a few; a limit keeps a leak of new functions from growing for ever.
MAX_LAUNCHES = 128

AnyLaunch = Launch | DifferentiableLaunch
_Trace = tuple[Sequence[tf.TypeSpec], AnyLaunch, list[Any]]


class Engine:
    """Runs functions on the replicas of one strategy.

    Args:
        strategy: The strategy.
    """

    def __init__(self, strategy: tf.distribute.Strategy):
        self._strategy = strategy
        self._cache: collections.OrderedDict[Any, list[_Trace]] = collections.OrderedDict()
        self._changed_by_tracing: set[Any] = set()
        self._tracing = threading.RLock()

    def run(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Runs `function` on every replica; see the module's text for which way."""
        if tf.executing_eagerly():
            if tf.config.functions_run_eagerly() or not _is_tf_function(function):
                return self._one_by_one(function, args, kwargs)
            return self._launch_eagerly(function, args, kwargs)
        if self._strategy.num_replicas_in_sync == 1:
            return self._in_place(convert_with_autograph(function, always=False), args, kwargs)
        return self._launch_in_graph(function, args, kwargs)

    def plan(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Plan:
        """Traces `function` as a launch would, and returns the plan of its body."""
        python_function, with_autograph = _python_function(function)
        with_autograph = with_autograph or not isinstance(function, PolymorphicFunction)
        try:
            arguments = Arguments(args, kwargs, Closure(python_function), self._num_local, arrays_are_tensors=True)
        except DifferentObjectsError as error:
            raise ValueError(
                "`strategy.plan`: the replicas get different Python objects as arguments, so the step has no one plan. "
                "Pass tensors where the replicas differ.") from error
        name = _name(python_function)
        body = trace_body(self._strategy, name, arguments, with_autograph)
        return plan_of(body, name, self._strategy.num_replicas_in_sync)

    def _one_by_one(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        check_num_components((tuple(args), kwargs), self._num_local)
        if self._strategy.num_replicas_in_sync == 1:
            return self._in_place(function, args, kwargs)
        return self._run_one_by_one(function, args, kwargs)

    def _run_one_by_one(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        run = run_one_by_one_taped if a_tape_may_record() else run_one_by_one
        with after_failure(self._strategy):
            return run(self._strategy, function, args, kwargs)

    def _in_place(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """One replica: the function itself, in the current graph or eagerly."""
        member = self._strategy.extended.traced_member
        scope = replica_scope.ReplicaScope(self._strategy, member, 0, is_traced_once=True,
                                           in_graph=not tf.executing_eagerly())
        with tf.device(self._strategy.extended.worker_devices[0]), replica_scope.entered(scope), \
                ReplicaContext(self._strategy, member, 0):
            return function(*select(0, tuple(args)), **select(0, kwargs))

    def _launch_in_graph(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        python_function, with_autograph = _python_function(function)
        try:
            arguments = Arguments(args, kwargs, Closure(python_function), self._num_local, arrays_are_tensors=False)
        except DifferentObjectsError:
            self._say_once_per_replica(python_function)
            return self._run_one_by_one(function, args, kwargs)
        return self._call(self._made_launch(python_function, arguments, with_autograph), arguments)

    def _launch_eagerly(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        python_function, with_autograph = _python_function(function)
        try:
            arguments = Arguments(args, kwargs, Closure(python_function), self._num_local, arrays_are_tensors=True)
        except DifferentObjectsError:
            self._say_once_per_replica(python_function)
            return self._launch_once_per_replica(python_function, args, kwargs, with_autograph)
        with self._tracing:
            key, kept = self._key(python_function, arguments, with_autograph)
            launch = self._find(key, arguments.signature)
            if launch is None:
                launch = self._trace(key, kept, python_function, arguments, with_autograph)
        with naming_the_replica(self._strategy):
            return self._call(launch, arguments)

    def _launch_once_per_replica(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any],
                                 with_autograph: bool) -> Any:
        results: list[Outputs] = []

        def traced() -> list[tf.Tensor]:
            result = map_structure(_own_numbers_as_tensors, self._run_one_by_one(function, args, kwargs))
            structure, tensors = Outputs.of([select(index, result) for index in range(self._num_local)])
            results.append(structure)
            return tensors

        # The tf.function returns tensors only: it would read a variable that the step returns, or fail to.
        tensors = tf.function(traced, autograph=with_autograph)()
        return regroup(tf.nest.pack_sequence_as(results[-1].template, results[-1].pack(tensors)))

    def _find(self, key: Any, signature: Sequence[tf.TypeSpec]) -> AnyLaunch | None:
        if key not in self._cache:
            return None
        self._cache.move_to_end(key)
        traces = self._cache[key]
        for spec, launch, _ in traces:
            if tuple(spec) == tuple(signature):
                return launch
        for spec, launch, _ in traces:
            if len(spec) == len(signature) and all(given.is_subtype_of(wide) for given, wide in zip(signature, spec)):
                return launch
        return None

    def _key(self, function: Callable[..., Any], arguments: Arguments, with_autograph: bool) -> tuple[Any, list[Any]]:
        keys = Keys(self._changed_by_tracing)
        key = (keys.of_function(function), arguments.static_key(keys), with_autograph, self._is_differentiated())
        return key, [*keys.kept, function]

    def _trace(self, key: Any, kept: list[Any], function: Callable[..., Any], arguments: Arguments,
               with_autograph: bool) -> AnyLaunch:
        """Traces a new body. The second signature of a function is widened to cover the first: two traces in all."""
        traces = self._cache.pop(key, [])
        signature = arguments.signature
        if traces:
            wider = [spec.most_specific_common_supertype([other]) for spec, other in zip(signature, traces[-1][0])]
            if None not in wider:
                signature = tuple(wider)
        named_before = named_keys(function)
        launch = self._made_launch(function, arguments.with_signature(signature), with_autograph)
        traces.append((signature, launch, kept))
        self._changed_by_tracing |= {name for name, value in named_keys(function).items()
                                     if value != named_before[name]}
        # What the trace itself has changed is no longer part of the key.
        key, _ = self._key(function, arguments, with_autograph)
        self._cache.setdefault(key, []).extend(traces)
        while len(self._cache) > MAX_LAUNCHES:
            self._cache.popitem(last=False)
        return traces[-1][1]

    def _made_launch(self, function: Callable[..., Any], arguments: Arguments,
                     with_autograph: bool) -> AnyLaunch:
        is_differentiated = self._is_differentiated()
        with recorded() as sites:
            body = trace_body(self._strategy, _name(function), arguments, with_autograph,
                              returns_results=is_differentiated)
            launch = (DifferentiableLaunch if is_differentiated else Launch)(self._strategy, body)
        agree_on_plan(self._strategy.extended.workers, _name(function), sites)
        return launch

    def _is_differentiated(self) -> bool:
        """Whether a launch must keep what its gradient needs. One replica's function has TensorFlow's own gradient."""
        return a_tape_may_record() and self._strategy.num_replicas_in_sync > 1

    def _call(self, launch: AnyLaunch, arguments: Arguments) -> Any:
        return launch([arguments.tensors_of(replica) for replica in range(self._num_local)])

    @property
    def _num_local(self) -> int:
        return len(self._strategy.extended.worker_devices)

    def _say_once_per_replica(self, function: Callable[..., Any]) -> None:
        logging.log_first_n(logging.WARNING, "strategy.run(%s): the replicas got different Python objects as "
                            "arguments, so the step is traced once for each replica, which is slower. Pass tensors "
                            "where the replicas differ.", 1, _name(function))


def _own_numbers_as_tensors(leaf: Any) -> Any:
    """Numbers that differ between the replicas as a tf.function returns them."""
    if not is_distributed(leaf) or not all(isinstance(part, (bool, int, float, complex)) for part in components(leaf)):
        return leaf
    return PerReplica([tf.convert_to_tensor(part) for part in components(leaf)])


def _is_tf_function(function: Callable[..., Any]) -> bool:
    if isinstance(function, functools.partial):
        return _is_tf_function(function.func)
    return isinstance(function, PolymorphicFunction)


def _python_function(function: Callable[..., Any]) -> tuple[Callable[..., Any], bool]:
    """The Python function to trace, and whether autograph converts it."""
    if isinstance(function, PolymorphicFunction):
        if function._jit_compile or function.input_signature:
            return function, False  # Called as it is, inside the body: it keeps its own options.
        return function.python_function, bool(function._autograph)
    return function, False


def _name(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", None) or type(function).__name__
    return "".join(letter if letter.isalnum() else "_" for letter in name)
