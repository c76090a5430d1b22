"""Small rules for every source file: no prints, no sleeps, no leftovers, no long files."""

import ast
import re

from source.source_tree import LIBRARY, OUTSIDE, Finding, python_files, report, text, tree

MAX_LINES = 350

# Path -> why the file is one concept and not two.
LONG_FILES = {
    "training/trainer.py": "the driver's public face is one class, and most of it are the docstrings of its methods",
}

# Written in pieces, so that this file passes its own test.
LEFTOVERS = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X"]) + r")\b")


def _calls(path, *names):
    """Yields (line, name) for each call of one of the dotted `names` in a file."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in names:
            yield node.lineno, ast.unparse(node.func)


def _imported_sleeps(path):
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            if any(alias.name == "sleep" for alias in node.names):
                yield node.lineno, "from time import sleep"


def test_the_library_does_not_print():
    report(
        Finding(
            path,
            line,
            "the library calls `print`, which a user cannot turn off.",
            "Use `absl.logging`, or a rich console where output is the purpose.",
        )
        for path in python_files(*LIBRARY)
        for line, _ in _calls(path, "print")
    )


def test_tests_do_not_sleep():
    report(
        Finding(
            path,
            line,
            f"`{name}` makes a test slow on a fast machine and flaky on a slow one.",
            "Wait for the event itself, with a deadline, or inject a clock.",
        )
        for path in python_files("tests")
        for line, name in [*_calls(path, "time.sleep"), *_imported_sleeps(path)]
    )


def test_no_leftovers():
    report(
        Finding(
            path,
            number,
            f"`{match.group()}` marks unfinished work.",
            "Do it, or say in plain words what the limit is.",
        )
        for path in python_files(*LIBRARY, *OUTSIDE)
        for number, line in enumerate(text(path).splitlines(), start=1)
        for match in LEFTOVERS.finditer(line)
    )


def test_files_are_short():
    findings = []
    for path in python_files(*LIBRARY, *OUTSIDE):
        num_lines = len(text(path).splitlines())
        if num_lines > MAX_LINES and path not in LONG_FILES:
            findings.append(
                Finding(
                    path,
                    num_lines,
                    f"the file has {num_lines} lines, more than {MAX_LINES}.",
                    "Split it by concept, or add it to LONG_FILES with a reason.",
                )
            )
        elif num_lines <= MAX_LINES and path in LONG_FILES:
            findings.append(
                Finding(
                    path,
                    num_lines,
                    "the file is in LONG_FILES and is no longer long.",
                    "Remove it from LONG_FILES.",
                )
            )
    report(findings)


def test_the_list_of_long_files_names_files_and_reasons():
    known = python_files(*LIBRARY, *OUTSIDE)
    report(
        Finding(path, 0, "LONG_FILES needs an existing file and a reason.", "Correct the entry.")
        for path, reason in LONG_FILES.items()
        if path not in known or len(reason.split()) < 3
    )
