"""The private TensorFlow that strategy/ cannot do without, in one place.

Every name is listed, with the reason it is needed, in tests/source/private_tensorflow_test.py.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, Sequence

import tensorflow as tf
from tensorflow.core.function.polymorphism.function_type import from_structured_signature
from tensorflow.python.autograph.core import config as autograph_config
from tensorflow.python.autograph.core.ag_ctx import ControlStatusCtx, Status, control_status_ctx
from tensorflow.python.autograph.impl.api import tf_convert
from tensorflow.python.autograph.operators.control_flow import for_loop_registry, for_stmt
from tensorflow.python.autograph.operators.py_builtins import enumerate_registry
from tensorflow.python.eager.lift_to_graph import lift_to_graph
from tensorflow.python.eager.polymorphic_function import function_context
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function as PolymorphicFunction
from tensorflow.python.framework import op_callbacks
from tensorflow.python.framework.auto_control_deps_utils import get_read_write_resource_inputs
from tensorflow.python.framework.composite_tensor import CompositeTensor
from tensorflow.python.framework.func_graph import FuncGraph, func_graph_from_py_func
from tensorflow.python.ops.resource_variable_ops import ResourceVariable
from tensorflow.python.types.core import Tensor as CoreTensor

OpCallback = Callable[..., Sequence[tf.Tensor] | None]

__all__ = [
    "CompositeTensor", "ConcreteFunction", "CoreTensor", "FuncGraph", "PolymorphicFunction", "ResourceVariable",
    "call_flat", "callbacks_on_ops", "concrete_function", "convert_with_autograph", "enumerate_registry",
    "for_loop_registry", "for_stmt", "lift_to_graph", "trace_into", "written_resources",
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


def call_flat(function: ConcreteFunction, inputs: Sequence[tf.Tensor],
              captures: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
    """Calls a function with flat inputs and with `captures` in place of what it captured; not recorded on tapes."""
    return function.inference_fn.call_flat(*inputs, *captures)


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
