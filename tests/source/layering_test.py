"""Imports run one way: training/ -> strategy/ -> collective/ -> TensorFlow."""

import sys

import pytest

from source.source_tree import LAYERS, LIBRARY, OUTSIDE, Finding, imports, python_files, report

ALLOWED = {
    "collective": {"collective"},
    "strategy": {"collective", "strategy"},
    "training": {"collective", "strategy", "training"},
    "": {"collective", "strategy", "training", ""},
}

# The top-level modules of what setup.cfg installs.
INSTALLED = {"absl", "keras", "numpy", "rich", "tensorflow"}

# The top-level modules of extras -> the only file that imports them, where it needs them.
OPTIONAL = {"matplotlib": "training/plot.py"}


def _layer(path):
    folder, _, rest = path.partition("/")
    return folder if rest else ""


def _reached_layer(path, statement):
    """The layer that a relative import reaches; "" is the root, None is above the root."""
    folders = path.split("/")[:-1]
    up = statement.level - 1
    if up > len(folders):
        return None
    inside = folders[: len(folders) - up]
    if inside:
        return inside[0]
    top = statement.dotted.partition(".")[0]
    return top if top in LAYERS else ""


def _findings(path):
    layer = _layer(path)
    for statement in imports(path):
        top = statement.module.partition(".")[0]
        if statement.level:
            reached = _reached_layer(path, statement)
            if reached not in ALLOWED[layer]:
                yield Finding(
                    path,
                    statement.line,
                    f"{layer}/ imports {reached or 'the root'}, against the order of the layers.",
                    "Move what is needed down to the lower layer, or pass it in as an argument.",
                )
        elif top in ("lockstep", *LAYERS):
            yield Finding(
                path,
                statement.line,
                f"`{statement.dotted}` is imported by an absolute name inside the library.",
                "Write the import relative: `from ..collective import ...`.",
            )
        elif top in (*OUTSIDE, "testing"):
            yield Finding(
                path,
                statement.line,
                f"the library imports `{statement.dotted}`, which is not installed with it.",
                "Move what is needed into the library.",
            )
        elif top not in INSTALLED and top not in sys.stdlib_module_names and OPTIONAL.get(top) != path:
            yield Finding(
                path,
                statement.line,
                f"`{top}` is not among the packages that setup.cfg installs.",
                "Do without it, add it to `install_requires` and INSTALLED, or to an extra and OPTIONAL.",
            )


def test_imports_follow_the_layers():
    report(finding for path in python_files(*LIBRARY) for finding in _findings(path))


@pytest.mark.parametrize(
    "path, level, module, name, layer",
    [
        ("collective/keys.py", 1, "", "errors", "collective"),
        ("collective/keys.py", 2, "strategy", "Strategy", "strategy"),
        ("collective/keys.py", 2, "", "training", "training"),
        ("collective/keys.py", 2, "", "average_loss", ""),
        ("collective/keys.py", 3, "other", "name", None),
        ("__init__.py", 1, "strategy.values", "Value", "strategy"),
        ("__main__.py", 1, "", "average_loss", ""),
    ],
)
def test_relative_imports_are_resolved(path, level, module, name, layer):
    from source.source_tree import Import

    assert _reached_layer(path, Import(1, level, module, name)) == layer
