"""The project's source files, for the tests that hold rules about them.

    for path in python_files(*LIBRARY):
        for statement in imports(path):
            ...
    report(findings)
"""

import ast
import functools
import os
from pathlib import Path
from typing import NamedTuple

# absolute(), not resolve(): under Bazel the files are links, and the tree of links is the project.
ROOT = Path(__file__).absolute().parents[2]

LAYERS = ("collective", "strategy", "training")
LIBRARY = ("", *LAYERS)
OUTSIDE = ("tests", "examples", "benchmarks")

_SKIPPED = ("build", "dist", "node_modules")


class Finding(NamedTuple):
    """One broken rule: where it is, why it is one, what to do."""

    path: str
    line: int
    why: str
    fix: str


class Import(NamedTuple):
    """One imported module or name.

    `level` counts the leading dots, `module` is the text after `from` or `import`, and `name` is
    the imported name, None for a plain `import`.
    """

    line: int
    level: int
    module: str
    name: str | None

    @property
    def dotted(self):
        """Module and name in one, `a.b.name`; for a relative import without its dots."""
        return ".".join(part for part in (self.module, self.name) if part)


def report(findings):
    """Fails the calling test with one line for each finding, and passes without any."""
    lines = [
        f"{finding.path}:{finding.line}: {finding.why} {finding.fix}"
        for finding in sorted(findings)
    ]
    assert not lines, "broken rules: {}\n{}".format(len(lines), "\n".join(lines))


def folders():
    """All folders of the project that hold Python files, relative to the root, "" the first."""
    found = []
    for folder, names, files in os.walk(ROOT):
        names[:] = sorted(name for name in names if not _is_foreign(Path(folder, name)))
        if any(name.endswith(".py") for name in files):
            relative = os.path.relpath(folder, ROOT)
            found.append("" if relative == "." else relative)
    return found


def python_files(*tops):
    """The Python files of some top folders, as paths from the root.

    Args:
      *tops: Names of top folders, each searched with all that is below it. "" stands for the
        files in the root itself, without the folders below.
    """
    chosen = [folder for folder in folders() if folder.partition("/")[0] in tops]
    return [path for folder in chosen for path in files_in(folder)]


def files_in(folder):
    """The Python files of one folder, without those below, as paths from the root."""
    return [f"{folder}/{path.name}".lstrip("/") for path in sorted((ROOT / folder).glob("*.py"))]


@functools.lru_cache(maxsize=None)
def text(path):
    """The text of a file given by its path from the root."""
    return (ROOT / path).read_text(encoding="utf-8")


@functools.lru_cache(maxsize=None)
def tree(path):
    """The syntax tree of a file given by its path from the root."""
    return ast.parse(text(path), filename=path)


@functools.lru_cache(maxsize=None)
def imports(path):
    """All imports of a file, those inside functions too, as a list of `Import`."""
    found = []
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found += [Import(node.lineno, 0, alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [
                Import(node.lineno, node.level, node.module or "", alias.name)
                for alias in node.names
            ]
    return found


def _is_foreign(folder):
    name = folder.name
    return (
        name.startswith((".", "bazel-"))
        or name.endswith(".egg-info")
        or name in _SKIPPED
        or name == "__pycache__"
        or (folder / "pyvenv.cfg").exists()
    )
