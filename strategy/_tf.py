"""The private TensorFlow that strategy/ cannot do without, in one place.

Every name is listed, with the reason it is needed, in tests/source/private_tensorflow_test.py.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
from typing import Any, Callable, Iterator, Sequence

import tensorflow as tf
from tensorflow.core.function.polymorphism.function_type import from_structured_signature
from tensorflow.core.protobuf.tensorflow_server_pb2 import ServerDef
from tensorflow.python.autograph.core import config as autograph_config
from tensorflow.python.autograph.core.ag_ctx import ControlStatusCtx, Status, control_status_ctx
from tensorflow.python.autograph.impl.api import tf_convert
from tensorflow.python.autograph.operators.control_flow import for_loop_registry, for_stmt
from tensorflow.python.autograph.operators.py_builtins import enumerate_registry
from tensorflow.python.checkpoint import checkpoint_management
from tensorflow.python.checkpoint.functional_saver import MultiDeviceSaver as CheckpointWriter
from tensorflow.python.eager import context, record
from tensorflow.python.eager.lift_to_graph import lift_to_graph
from tensorflow.python.eager.polymorphic_function import function_context
from tensorflow.python.eager.polymorphic_function.atomic_function import AtomicFunction, from_func_graph
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function as PolymorphicFunction
from tensorflow.python.framework import op_callbacks
from tensorflow.python.framework.auto_control_deps import register_acd_resource_resolver
from tensorflow.python.framework.auto_control_deps_utils import get_read_write_resource_inputs
from tensorflow.python.framework.composite_tensor import CompositeTensor
from tensorflow.python.framework.func_graph import FuncGraph, func_graph_from_py_func
from tensorflow.python.ops import summary_ops_v2
from tensorflow.python.ops.resource_variable_ops import ResourceVariable, variable_accessed
from tensorflow.python.types.core import Tensor as CoreTensor

OpCallback = Callable[..., Sequence[tf.Tensor] | None]
Gradient = Callable[..., Sequence[Any]]

__all__ = [
    "AtomicFunction", "CheckpointWriter", "CompositeTensor", "ConcreteFunction", "CoreTensor", "FuncGraph", "Gradient",
    "PolymorphicFunction", "ResourceVariable", "a_tape_may_record", "abort_collectives", "backward_function",
    "call_flat", "call_recorded", "call_with_gradient", "callbacks_on_ops", "checkpoint_management",
    "concrete_function", "convert_with_autograph", "enumerate_registry", "flat_function", "for_loop_registry",
    "for_stmt", "has_global_seed", "lift_to_graph", "register_acd_resource_resolver", "runtime_has_started",
    "start_collectives", "state_of_op_seeds", "summaries_written_if", "summary_state", "trace_into", "watch_variables",
    "written_resources",
]


def trace_into(graph: FuncGraph, python_function: Callable[..., Any], signature: Sequence[tf.TypeSpec],
               automatic_control_dependencies: bool) -> None:
    """Traces `python_function`, called with placeholders of the given specs, into `graph`."""
    func_graph_from_py_func(graph.name, python_function, None, None, signature=tuple(signature), func_graph=graph,
                            add_control_dependencies=automatic_control_dependencies)


def concrete_function(graph: FuncGraph, attributes: dict[str, Any]) -> ConcreteFunction:
    """The function that a traced graph defines, with the given function attributes."""
    function_type = from_structured_signature(graph.structured_input_signature, graph.structured_outputs,
                                              graph.function_captures.capture_types)
    return ConcreteFunction.from_func_graph(graph, function_type, attributes)


def call_flat(function: ConcreteFunction | AtomicFunction, inputs: Sequence[tf.Tensor],
              captures: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
    """Calls a function with flat inputs and with `captures` in place of what it captured; not recorded on tapes."""
    return _flat_outputs(getattr(function, "inference_fn", function).call_flat(*inputs, *captures))


def call_recorded(function: ConcreteFunction, inputs: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
    """Calls a function with flat inputs, as TensorFlow does: recorded on tapes, with TensorFlow's own gradient."""
    return _flat_outputs(function._call_flat(list(inputs), function.captured_inputs))


def _flat_outputs(outputs: Any) -> Sequence[tf.Tensor]:
    """The tensors that a call returns; one without any gives None, or its op in a graph."""
    return [] if outputs is None or isinstance(outputs, tf.Operation) else tf.nest.flatten(outputs)


def call_with_gradient(function: ConcreteFunction, inputs: Sequence[tf.Tensor],
                       gradient: Gradient) -> Sequence[tf.Tensor]:
    """Calls a function with flat inputs; `gradient` is its gradient, on tapes and where a graph is differentiated.

    Args:
        function: The function.
        inputs: Its flat inputs.
        gradient: From the gradients of the flat outputs, None where there is none, to those of the inputs and captures.
    """
    captures = function.captured_inputs
    if tf.executing_eagerly():
        outputs = call_flat(function, inputs, captures)
    else:
        def of_op(unused_op: tf.Operation, *upstream: Any) -> Sequence[Any]:
            return gradient(*upstream)

        with tf.compat.v1.get_default_graph()._override_gradient_function(
                {"PartitionedCall": of_op, "StatefulPartitionedCall": of_op}):
            outputs = call_flat(function, inputs, captures)
    if a_tape_may_record() and outputs:
        record.record_operation(function.name, list(outputs), [*inputs, *captures], gradient)
    return outputs


def a_tape_may_record() -> bool:
    """Whether a `tf.GradientTape` is open on this thread."""
    return record.could_possibly_record()


def watch_variables(variables: Sequence[tf.Variable]) -> None:
    """Tells open tapes and the graph that is built that variables are used; tapes watch the trainable ones."""
    for variable in variables:
        variable_accessed(variable)


def backward_function(function: ConcreteFunction) -> ConcreteFunction:
    """TensorFlow's backward function: from the gradients of the differentiable outputs to those of the graph's inputs.

    It captures tensors of the function's graph, which become outputs of that graph.
    """
    return function._delayed_rewrite_functions.forward_backward()[1]


def flat_function(name: str, graph: FuncGraph, attributes: dict[str, Any]) -> AtomicFunction:
    """A function from the inputs and captures of a graph to its outputs as they are now."""
    return from_func_graph(name, graph, attributes)


def convert_with_autograph(function: Callable[..., Any], always: bool) -> Callable[..., Any]:
    """`function` with Python control flow made TensorFlow's: always, or only where the caller is converted itself."""
    if always:
        return tf_convert(function, ControlStatusCtx(status=Status.ENABLED), user_requested=True)
    return tf_convert(function, control_status_ctx(), convert_by_default=False)


def never_convert(*packages: str) -> None:
    """Keeps autograph off our own code, as it is off TensorFlow's: what it is given to run is converted by hand.

    Converting the library took longer than tracing the user's step.
    """
    rules = tuple(autograph_config.DoNotConvert(package) for package in packages)
    autograph_config.CONVERSION_RULES = (*rules, *autograph_config.CONVERSION_RULES)


never_convert(__package__, __package__.rpartition(".")[0] + ".collective")


@contextlib.contextmanager
def callbacks_on_ops(callback: OpCallback) -> Iterator[None]:
    """Shows `callback` every op that this thread creates; what it returns takes the place of the op's outputs."""
    op_callbacks.add_op_callback(callback)
    try:
        yield
    finally:
        op_callbacks.remove_op_callback(callback)


@contextlib.contextmanager
def summaries_written_if(condition: Callable[[], Any], caller: Any = None) -> Iterator[None]:
    """Lets this thread write summaries where `condition()` holds.

    Args:
        condition: Gives a bool or a bool tensor of the graph that is built.
        caller: What `summary_state` gave on the thread whose writer and step are meant; None for this one.
    """
    state = summary_ops_v2._summary_state
    before = summary_state()
    if caller is not None:
        state.__dict__.update(caller)
    state.is_recording_distribution_strategy = condition
    try:
        yield
    finally:
        state.__dict__.update(before)


def summary_state() -> dict[str, Any]:
    """This thread's summary writer, step and conditions."""
    state = summary_ops_v2._summary_state
    names = ("is_recording", "is_recording_distribution_strategy", "writer", "step")
    return {name: getattr(state, name) for name in names}


def written_resources(op: tf.Operation) -> list[tf.Tensor]:
    """The op's resource inputs that it may change."""
    return list(get_read_write_resource_inputs(op)[1])


_make_function_context = function_context.make_function_context


def traces_apart_by(token: Callable[[], Any]) -> None:
    """Makes `tf.function` keep traces apart by what `token()` returns at the call, on top of all that it looks at.

    A nested tf.function captures what belongs to the strategy whose step it is traced in. TensorFlow looks at the
    graph, the devices and the kind of context of a call, but not at which strategy is running.
    """
    def make_function_context(scope_type: Any = None) -> Any:
        made = _make_function_context(scope_type)
        extra = token()
        return made if extra is None else made._replace(scope_type=(made.scope_type, extra))

    function_context.make_function_context = make_function_context


def runtime_has_started() -> bool:
    """Whether TensorFlow has run an op, after which its servers cannot be started any more."""
    return context.context()._context_handle is not None


def has_global_seed() -> bool:
    """Whether `tf.random.set_seed` has been called."""
    return context.global_seed() is not None


def state_of_op_seeds() -> int:
    """A number that tells where the seeds stand that random ops get which have none of their own: ops draw them."""
    state = repr(getattr(context.context()._rng, "getstate", str)())
    return int.from_bytes(hashlib.sha256(state.encode()).digest()[:7], "big")


def start_collectives(spec: tf.train.ClusterSpec, job: str, task: int, leader: str, port: int) -> None:
    """Starts this process's gRPC server, and lets its collective ops meet those of the cluster's other processes.

    Without TensorFlow's coordination service, which ends processes by its own rules; see watch.py instead.

    Args:
        spec: The cluster.
        job: The name of this process's job.
        task: Its number in there.
        leader: The device prefix of the process that resolves groups of collectives.
        port: Where to listen.
    """
    eager = context.context()
    eager.configure_collective_ops(collective_leader=leader, scoped_allocator_enabled_ops=(),
                                   device_filters=(f"/job:{job}/task:{task}",))
    config = copy.deepcopy(eager.config)
    config.experimental.collective_group_leader = leader
    eager.enable_collective_ops(ServerDef(
        cluster=spec.as_cluster_def(), default_session_config=config, job_name=job, task_index=task, protocol="grpc",
        port=port))
    eager.ensure_initialized()


def abort_collectives(text: str) -> None:
    """Fails every collective that waits, and every later one, with an UnavailableError that tells `text`."""
    context.context().abort_collective_ops(tf.errors.UNAVAILABLE, text)
