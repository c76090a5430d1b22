"""Private TensorFlow is imported in one underscore file per layer, each name with a reason."""

import ast

from source.source_tree import LIBRARY, Finding, imports, python_files, report, tree

ALLOWED_FILES = ("collective/_tf.py", "strategy/_tf.py")

PRIVATE_PACKAGES = (
    "keras.src",
    "tensorflow._api",
    "tensorflow.compiler",
    "tensorflow.core",
    "tensorflow.lite",
    "tensorflow.python",
    "tensorflow.tools",
    "tensorflow.__internal__",
)

# Functions that import the module named by their first argument.
IMPORTERS = ("import_module", "__import__")

# Name -> why public TensorFlow does not do. Shrink it; a new name needs a reason.
PRIVATE_NAMES = {
    "tensorflow.core.protobuf.tensorflow_server_pb2.ServerDef":
        "a process becomes the server of its task; tf.distribute.Server starts one that collectives do not use",
    "tensorflow.python.checkpoint.checkpoint_management":
        "of several workers that save one checkpoint one deletes the old",
    "tensorflow.python.checkpoint.functional_saver.MultiDeviceSaver":
        "of several workers that save one checkpoint one writes it",
    "tensorflow.python.eager.context":
        "collective ops that reach other processes are set up, and closed when one fails, on the eager context only",
    "tensorflow.core.function.polymorphism.function_type.from_structured_signature":
        "a FuncGraph becomes a function",
    "tensorflow.python.autograph.core.config":
        "tracing a step must not convert the library; do_not_convert would turn conversion off for the step too",
    "tensorflow.python.autograph.core.ag_ctx.ControlStatusCtx":
        "steps are converted as tf.function converts them",
    "tensorflow.python.autograph.core.ag_ctx.Status":
        "steps are converted as tf.function converts them",
    "tensorflow.python.autograph.core.ag_ctx.control_status_ctx":
        "a plain step is converted where its caller is",
    "tensorflow.python.autograph.impl.api.tf_convert":
        "autograph.to_graph does not keep the caller's status",
    "tensorflow.python.autograph.operators.control_flow.for_loop_registry":
        "break in a loop over distributed data",
    "tensorflow.python.autograph.operators.control_flow.for_stmt":
        "break in a loop over distributed data",
    "tensorflow.python.autograph.operators.py_builtins.enumerate_registry":
        "enumerate over distributed data",
    "tensorflow.python.eager.lift_to_graph.lift_to_graph":
        "variables are made outside of the trace of a step",
    "tensorflow.python.eager.polymorphic_function.atomic_function.AtomicFunction":
        "what TensorFlow's backpropagation makes of a step's function",
    "tensorflow.python.eager.polymorphic_function.atomic_function.from_func_graph":
        "a step returns what its backward pass needs, not the resources that TensorFlow's would return too",
    "tensorflow.python.eager.record":
        "gradients of collectives and launches; tf.custom_gradient keeps every graph for ever, and copies all values "
        "to one device",
    "tensorflow.python.ops.summary_ops_v2":
        "replica 0 writes summaries, on any thread; tf.summary.record_if is the user's, who may override ours",
    "tensorflow.python.ops.resource_variable_ops.variable_accessed":
        "tapes around a launch watch the trainable variables of the step",
    "tensorflow.python.eager.polymorphic_function.concrete_function.ConcreteFunction":
        "a FuncGraph becomes a function",
    "tensorflow.python.eager.polymorphic_function.function_context":
        "nested functions are traced for each strategy",
    "tensorflow.python.eager.polymorphic_function.polymorphic_function.Function":
        "tells a tf.function from others",
    "tensorflow.python.framework.auto_control_deps.register_acd_resource_resolver":
        "tells TensorFlow which variables a launch writes whose handles it does not see",
    "tensorflow.python.framework.auto_control_deps_utils.get_read_write_resource_inputs":
        "finds shared state that is written",
    "tensorflow.python.framework.composite_tensor.CompositeTensor":
        "Keras asks for it by isinstance",
    "tensorflow.python.framework.func_graph.FuncGraph":
        "a launch's calls must be control outputs",
    "tensorflow.python.framework.func_graph.func_graph_from_py_func":
        "launches have no automatic control dependencies",
    "tensorflow.python.framework.op_callbacks":
        "random ops are replaced as they are made, in nested functions too",
    "tensorflow.python.ops.resource_variable_ops.ResourceVariable":
        "tf.Variable in a tf.function goes through its creators, and is refused after the first call",
    "tensorflow.python.util.tf_stack.extract_stack":
        "the lines that autograph has converted, told as the user's",
    "tensorflow.python.types.core.Tensor":
        "tf.is_tensor(variable) is true, as for plain variables",
}


def _is_private(name):
    return any(name == package or name.startswith(package + ".") for package in PRIVATE_PACKAGES)


def _dotted_use(node):
    """`tensorflow.a.b` for the expression `tf.a.b`, None for anything else."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name) and node.id in ("tf", "tensorflow"):
        return ".".join(["tensorflow", *reversed(parts)])
    return None


def _private_uses(path):
    """Yields (line, name) for each private import, attribute and module name in a string."""
    for statement in imports(path):
        if not statement.level and _is_private(statement.dotted):
            yield statement.line, statement.dotted
    inner = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            inner.update(id(part) for part in ast.walk(node.value))
            name = _dotted_use(node)
            if name and _is_private(name):
                yield node.lineno, name
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(IMPORTERS):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    if _is_private(argument.value):
                        yield node.lineno, argument.value


def test_private_tensorflow_stays_in_its_files():
    report(
        Finding(
            path,
            line,
            f"`{name}` is private TensorFlow.",
            f"Use public TensorFlow, or import it in {' or '.join(ALLOWED_FILES)}.",
        )
        for path in python_files(*LIBRARY)
        if path not in ALLOWED_FILES
        for line, name in _private_uses(path)
    )


def test_the_list_of_private_names_is_exact():
    used = {
        name: (path, line)
        for path in python_files(*LIBRARY)
        if path in ALLOWED_FILES
        for line, name in _private_uses(path)
    }
    findings = [
        Finding(
            *used[name],
            f"`{name}` is private TensorFlow and has no reason.",
            f'Do without it, or add "{name}": "<reason>" to PRIVATE_NAMES.',
        )
        for name in used.keys() - PRIVATE_NAMES.keys()
    ]
    findings += [
        Finding(
            "tests/source/private_tensorflow_test.py",
            0,
            f"`{name}` is in PRIVATE_NAMES and is not used.",
            "Remove it from PRIVATE_NAMES.",
        )
        for name in PRIVATE_NAMES.keys() - used.keys()
    ]
    report(findings)


def test_every_private_name_has_a_reason():
    assert all(len(reason.split()) >= 3 for reason in PRIVATE_NAMES.values())
