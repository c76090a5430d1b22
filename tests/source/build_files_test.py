"""Each folder has a BUILD file with one target per Python file and the exact dependencies."""

import ast
import collections
import difflib
import re

import pytest

from source.build_files import build_text
from source.source_tree import LAYERS, ROOT, Finding, files_in, folders, report

FIX = "Run `python tests/source/build_files.py --write`."


def _calls(path):
    """The calls of a BUILD file as (line, rule, fields); Starlark calls are Python syntax."""
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        call = statement.value
        fields = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
        yield call.lineno, call.func.id, fields


def _code_targets(path):
    for line, rule, fields in _calls(path):
        if rule.startswith(("py_", "pytest_")):
            yield line, rule, fields


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: folder or "root")
def test_the_build_file_is_what_the_imports_say(folder):
    path = ROOT / folder / "BUILD"
    assert path.is_file(), f"{folder}/BUILD:1: the file is missing. {FIX}"
    have, want = path.read_text(encoding="utf-8"), build_text(folder)
    difference = "\n".join(
        difflib.unified_diff(have.splitlines(), want.splitlines(), "BUILD", "wanted", lineterm="")
    )
    number = re.search(r"@@ -(\d+)", difference)
    line = number.group(1) if number else 1
    if have != want:
        pytest.fail(
            f"{folder}/BUILD:{line}: files or imports have changed, the targets have not. {FIX}\n"
            f"{difference}"
        )


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: folder or "root")
def test_each_python_file_is_in_one_target(folder):
    path = ROOT / folder / "BUILD"
    count = collections.Counter()
    for _, _, fields in _code_targets(path):
        count.update(fields["srcs"])
    want = {file.rpartition("/")[2] for file in files_in(folder)}
    report(
        Finding(f"{folder}/BUILD", 1, f"`{file}` is in {count[file]} targets, not in one.", FIX)
        for file in sorted(want | set(count))
        if count[file] != (file in want)
    )


def test_dependencies_name_existing_targets():
    targets = {
        f"//{folder}:{fields['name']}"
        for folder in folders()
        for _, _, fields in _calls(ROOT / folder / "BUILD")
        if "name" in fields
    }
    findings = []
    for folder in folders():
        for line, _, fields in _code_targets(ROOT / folder / "BUILD"):
            for label in fields.get("deps", []):
                full = f"//{folder}{label}" if label.startswith(":") else label
                if ":" not in full:
                    full += ":" + full.rpartition("/")[2]
                if full not in targets:
                    why = f"`{label}` is no target of the project."
                    findings.append(Finding(f"{folder}/BUILD", line, why, FIX))
    report(findings)


def test_visibility_keeps_the_layers_apart():
    allowed = {"collective": {"strategy", "training"}, "strategy": {"training"}, "training": set()}
    for layer in LAYERS:
        for line, rule, fields in _calls(ROOT / layer / "BUILD"):
            visible = fields.get("visibility", []) + fields.get("default_visibility", [])
            tops = {label[2:].partition(":")[0].partition("/")[0] for label in visible} - {""}
            assert tops <= allowed[layer], (
                f"{layer}/BUILD:{line}: `{rule}` is visible to {sorted(tops)}. Only layers above "
                f"may use {layer}/. {FIX}"
            )
