"""The public face is explicit: what `__all__` lists exists, is documented, and is all there is."""

import ast
import inspect
import re

import pytest

from source.public_symbols import place, public_modules, public_symbols
from source.source_tree import LAYERS, ROOT, Finding, report, tree

FACE = "__init__.py"


def _is_docstring(node):
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_all(node):
    return isinstance(node, ast.Assign) and [ast.unparse(t) for t in node.targets] == ["__all__"]


def _listed(path):
    """The names that a file's `__all__` lists, read without importing it."""
    for node in tree(path).body:
        if _is_all(node):
            return ast.literal_eval(node.value)
    return []


def test_the_face_holds_imports_and_all_only():
    report(
        Finding(
            FACE,
            node.lineno,
            f"`{ast.unparse(node).splitlines()[0]}` is neither an import nor `__all__`.",
            "Move it into a layer and import it here.",
        )
        for position, node in enumerate(tree(FACE).body)
        if not isinstance(node, (ast.Import, ast.ImportFrom))
        and not _is_all(node)
        and not (position == 0 and _is_docstring(node))
    )


def test_the_face_imports_exactly_what_it_lists():
    bound = {
        alias.asname or alias.name.partition(".")[0]: node.lineno
        for node in tree(FACE).body
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    listed = _listed(FACE)
    findings = [
        Finding(
            FACE,
            bound[name],
            f"`{name}` is imported and not in `__all__`.",
            "Add it to `__all__`, or do not import it: every name here is public.",
        )
        for name in bound.keys() - set(listed)
    ]
    findings += [
        Finding(FACE, 0, f"`{name}` is in `__all__` and not imported.", "Import it, or remove it.")
        for name in set(listed) - bound.keys()
    ]
    findings += [
        Finding(FACE, 0, f"`{name}` stands twice in `__all__`.", "Remove one.")
        for name in set(listed)
        if listed.count(name) > 1
    ]
    report(findings)


@pytest.mark.parametrize("path", [FACE, *(f"{layer}/__init__.py" for layer in LAYERS)])
def test_no_underscore_name_leaks(path):
    findings = []
    for node in tree(path).body:
        if isinstance(node, ast.ImportFrom):
            parts = (node.module or "").split(".")
            for alias in node.names:
                names = [*parts, alias.name, alias.asname or ""]
                private = [name for name in names if name.startswith("_")]
                findings += [
                    Finding(
                        path,
                        node.lineno,
                        f"`{name}` is private and is imported into a public face.",
                        "Import the public name from the public file.",
                    )
                    for name in private
                ]
    findings += [
        Finding(path, 0, f"`{name}` in `__all__` is private.", "Remove it, or rename it.")
        for name in _listed(path)
        if name.startswith("_")
    ]
    report(findings)


def test_every_public_module_lists_existing_names():
    report(
        Finding(
            module_name.replace("lockstep", "", 1).replace(".", "/").lstrip("/") + "/" + FACE,
            0,
            f"`{name}` is in `__all__` of `{module_name}` and does not exist.",
            "Import it there, or remove it from `__all__`.",
        )
        for module_name, module in public_modules()
        for name in getattr(module, "__all__", ())
        if not hasattr(module, name)
    )


def test_every_public_module_has_a_docstring_and_all():
    for name, module in public_modules():
        assert module.__doc__, f"{name}: the module has no docstring. Write what it is for."
        assert module.__all__, f"{name}: the module has no `__all__`. List its public names."


def test_every_public_symbol_has_a_docstring():
    findings = []
    for name, symbol in public_symbols():
        # A class would hand on the docstring of the class above it.
        own = vars(symbol).get("__doc__") if inspect.isclass(symbol) else symbol.__doc__
        if callable(symbol) and not own:
            findings.append(
                Finding(
                    *place(symbol),
                    f"the public symbol `{name}` has no docstring of its own.",
                    "Write one: a promise in one line, when to use it, an example.",
                )
            )
    report(findings)


def test_the_readme_lists_every_public_symbol():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    match = re.search(r"^## API\n(.*?)(?=^## |\Z)", readme, re.MULTILINE | re.DOTALL)
    assert match, "README.md: there is no section `## API`. List the public names there."
    line = readme[: match.start()].count("\n") + 1
    report(
        Finding(
            "README.md",
            line,
            f"`{name}` is public and is not in the section `## API`.",
            "Add a line for it, with its name in backticks.",
        )
        for name, _ in public_symbols()
        if not re.search(rf"\b{re.escape(name.rpartition('.')[2])}\b", match.group(1))
    )
