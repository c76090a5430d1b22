"""Writes the BUILD file of each folder from the folder's Python files and their imports.

    python tests/source/build_files.py --write    rewrites the files that are out of date
    python tests/source/build_files.py            names them, and fails if there are any

Each Python file is one target. Files that import each other in a circle share one, since Bazel
knows no circles. `build_files_test.py` compares the text made here with the files.
"""

import argparse
import re
import sys
from pathlib import Path
from typing import NamedTuple

if __name__ == "__main__":
    # pytest puts the folder tests/ on the path, a plain script does not.
    sys.path.insert(0, str(Path(__file__).absolute().parents[1]))

from source.source_tree import LAYERS, ROOT, files_in, folders, imports, text  # noqa: E402

PY_RULES = "@rules_python//python:defs.bzl"
OWN_RULES = "//:build_rules.bzl"

# What a folder's targets need besides imports: path of a folder or file -> labels.
DATA = {"tests/source": ["//:sources"]}

# Who may use the targets of a top folder.
VISIBILITY = {
    "": ["//visibility:public"],
    "collective": ["//:__pkg__", "//strategy:__pkg__", "//training:__pkg__"],
    "strategy": ["//:__pkg__", "//training:__pkg__"],
    "training": ["//:__pkg__"],
    "tests": ["//:__pkg__", "//tests:__subpackages__"],
    "examples": ["//:__pkg__", "//tests:__subpackages__"],
    "benchmarks": ["//:__pkg__", "//tests:__subpackages__"],
}

# Files that other folders name directly.
EXPORTS = {"": ["setup.cfg"], "tests/testing": ["run_pytest.py"]}

# Files of the root that rules about the source read.
ROOT_FILES = (
    ".ci/run",
    "BUILD",
    "CHANGELOG.md",
    "LICENSE",
    "MODULE.bazel",
    "README.md",
    "WORKSPACE",
    "build_rules.bzl",
    "py.typed",
    "pyproject.toml",
    "setup.cfg",
)


class Target(NamedTuple):
    """One target: its rule, its name, its files and what they need."""

    rule: str
    name: str
    files: list
    deps: list
    third_party: list


def build_text(folder):
    """The text that the BUILD file of a folder should have."""
    targets = targets_of(folder)
    top = folder.partition("/")[0]
    rules = {target.rule for target in targets}
    own = sorted(rules & {"pytest_test"}) + (["import_folder"] if not folder else [])
    python = sorted(rules - {"pytest_test"})
    blocks = []
    loads = []
    if python:
        loads.append(_call("load", [PY_RULES, *python]))
    if own:
        loads.append(_call("load", [OWN_RULES, *sorted(own)]))
    blocks.append("\n".join(loads))
    package = {"default_visibility": VISIBILITY[top]}
    if top == "tests":
        package["default_testonly"] = True
    blocks.append(_rule("package", package))
    if folder in EXPORTS:
        blocks.append(f"exports_files({_value(EXPORTS[folder])})")
    blocks += [_target_text(folder, target) for target in targets]
    blocks += _file_groups(folder)
    return "\n\n".join(blocks) + "\n"


def targets_of(folder):
    """The targets of a folder, sorted by name."""
    files = files_in(folder)
    circle_of = _circles(files)
    targets = []
    for circle in sorted({tuple(circle) for circle in circle_of.values()}):
        deps, third_party = set(), set()
        for path in circle:
            own_deps, own_third_party = _needs(path)
            deps |= {_label(dep, folder) for dep in own_deps if dep not in circle}
            third_party |= own_third_party
        targets.append(
            Target(
                _rule_of(circle[0]),
                _target_name(circle[0]),
                [path.rpartition("/")[2] for path in circle],
                sorted(deps, key=lambda label: (label.startswith("//"), label.replace(":", "!"))),
                sorted(third_party),
            )
        )
    return sorted(targets, key=lambda target: target.name)


def out_of_date():
    """The folders whose BUILD file is missing or differs, as a list of (folder, wanted text)."""
    stale = []
    for folder in folders():
        path = ROOT / folder / "BUILD"
        wanted = build_text(folder)
        if not path.exists() or path.read_text(encoding="utf-8") != wanted:
            stale.append((folder, wanted))
    return stale


def _rule_of(path):
    if path.endswith("_test.py"):
        return "pytest_test"
    if path.startswith(("examples/", "benchmarks/")) and 'if __name__ == "__main__"' in text(path):
        return "py_binary"
    return "py_library"


def _target_name(path):
    """`values` for strategy/values.py, `strategy` for strategy/__init__.py."""
    folder, _, name = path.rpartition("/")
    stem = name.removesuffix(".py")
    if stem == "__init__":
        return folder.rpartition("/")[2] or "lockstep"
    return stem


def _label(path, from_folder):
    """The label of the target that holds a file, as short as the style of Bazel has it."""
    folder = path.rpartition("/")[0]
    name = _circle_name(path)
    if folder == from_folder:
        return f":{name}"
    if folder.rpartition("/")[2] == name:
        return f"//{folder}"
    return f"//{folder}:{name}"


def _circle_name(path):
    folder = path.rpartition("/")[0]
    return _target_name(_circles(files_in(folder))[path][0])


def _needs(path):
    """The project files and the third-party packages that a file imports, as two sets."""
    files, third_party = set(), set()
    for statement in imports(path):
        found = _file_of(path, statement)
        if found:
            files.add(found)
            continue
        top = statement.module.partition(".")[0]
        if not statement.level and top not in sys.stdlib_module_names:
            third_party.add(top)
    if path.endswith("_test.py"):
        third_party.add("pytest")
    return files - {path}, third_party


def _file_of(path, statement):
    """The project file that an import reads, None for one from outside the project."""
    folder = path.rpartition("/")[0]
    if statement.level:
        parts = folder.split("/") if folder else []
        base = parts[: len(parts) - statement.level + 1]
        return _module_file(base, statement.module.split("."), statement.name)
    parts = statement.module.split(".")
    if parts[0] == "lockstep":
        # The folder `lockstep` stands as a whole behind //:lockstep, see build_rules.bzl.
        found = _module_file([], parts[1:], statement.name)
        return "__main__.py" if found == "__main__.py" else "__init__.py"
    for base in ([folder] if not folder.startswith("tests") else []) + ["tests", ""]:
        if folder.partition("/")[0] in ("", *LAYERS):
            break
        found = _module_file(base.split("/") if base else [], parts, statement.name)
        if found:
            return found
    return None


def _module_file(base, parts, name):
    """The file of module `parts` below the folder `base`, or of its submodule `name`."""
    module = "/".join([*base, *(part for part in parts if part)])
    package = f"{module}/__init__.py".lstrip("/")
    is_folder = (ROOT / module).is_dir()
    if name and is_folder and name not in _names_from_files(package):
        for candidate in (f"{module}/{name}.py", f"{module}/{name}/__init__.py"):
            if (ROOT / candidate.lstrip("/")).is_file():
                return candidate.lstrip("/")
    for candidate in (f"{module}.py", package):
        if module and (ROOT / candidate).is_file():
            return candidate
    return package if not module and (ROOT / package).is_file() else None


def _names_from_files(package):
    """The names that an `__init__.py` takes out of files: `from .values import Value`."""
    if not (ROOT / package).is_file():
        return set()
    return {statement.name for statement in imports(package) if statement.module}


def _circles(files):
    """For each file of one folder, the sorted list of files that import each other with it."""
    reached = {path: _needs(path)[0] & set(files) for path in files}
    changed = True
    while changed:
        changed = False
        for path in files:
            more = set().union(reached[path], *(reached[other] for other in reached[path]))
            changed |= more != reached[path]
            reached[path] = more
    return {
        path: sorted({path} | {other for other in reached[path] if path in reached[other]})
        for path in files
    }


def _file_groups(folder):
    """The groups that hand a folder's files on: to the import folder and to the source rules."""
    own = [path.rpartition("/")[2] for path in files_in(folder)]
    if folder:
        group = {"name": "sources", "srcs": sorted(["BUILD", *own])}
        return [_rule("filegroup", group)]
    library = [f"//{layer}:sources" for layer in LAYERS if files_in(layer)]
    below = [f"//{other}:sources" for other in folders() if other]
    import_folder = {
        "name": "import_folder",
        "srcs": [*own, "py.typed", *library],
        "folder": "lockstep",
        "visibility": ["//visibility:private"],
    }
    present = [path for path in ROOT_FILES if (ROOT / path).is_file() or path == "BUILD"]
    sources = {
        "name": "sources",
        "testonly": True,
        "srcs": [*sorted([*own, *present]), *below],
        "visibility": ["//tests:__subpackages__"],
    }
    return [_rule("import_folder", import_folder), _rule("filegroup", sources)]


def _target_text(folder, target):
    fields = {"name": target.name, "srcs": target.files}
    if folder.startswith("tests") and target.rule == "py_library":
        # Test code imports `testing.logical_devices`: the folder tests/ is on the path.
        depth = folder.count("/")
        fields["imports"] = ["/".join([".."] * depth) or "."]
    data = DATA.get(folder, []) if target.rule == "pytest_test" else []
    data = sorted({*data, *(label for file in target.files for label in DATA.get(file, []))})
    if not folder and target.name == "lockstep":
        data = [":import_folder"]
    if data:
        fields["data"] = data
    fields["deps"] = [*target.deps, *(f"# {name}" for name in target.third_party)]
    if not fields["deps"]:
        del fields["deps"]
    note = "# These files import each other.\n" if len(target.files) > 1 else ""
    return note + _rule(target.rule, fields)


def _call(name, arguments):
    return f"{name}({', '.join(_quoted(argument) for argument in arguments)})"


def _rule(name, fields):
    lines = [f"    {field} = {_value(value)},\n" for field, value in fields.items()]
    return f"{name}(\n{''.join(lines)})"


def _value(value):
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, str):
        return _quoted(value)
    if len(value) == 1 and not value[0].startswith("#"):
        return f"[{_quoted(value[0])}]"
    lines = [
        f"        {item}\n" if item.startswith("#") else f"        {_quoted(item)},\n"
        for item in value
    ]
    return f"[\n{''.join(lines)}    ]"


def _quoted(item):
    return '"' + re.sub(r'(["\\])', r"\\\1", item) + '"'


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="rewrite the files out of date")
    write = parser.parse_args().write
    stale = out_of_date()
    for folder, wanted in stale:
        path = Path(folder, "BUILD")
        sys.stdout.write(f"{'wrote' if write else 'out of date'}: {path}\n")
        if write:
            (ROOT / path).write_text(wanted, encoding="utf-8")
    return 0 if write or not stale else 1


if __name__ == "__main__":
    sys.exit(main())
