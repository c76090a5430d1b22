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
PRIVATE_NAMES = {}


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
