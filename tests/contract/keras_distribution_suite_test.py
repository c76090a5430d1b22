"""Keras's own tests of keras.distribution, with our classes in the place of Keras's and no mark that skips."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import keras
import pytest

PROGRAM = Path(__file__).parent / "keras_distribution_suite.py"

# Class of tests -> why it is not run.
LEFT_OUT = {
    "MultiProcessInitializeTest":
        "asks that Keras's own `initialize` hands its arguments to a backend; ours sets a cluster up, and is tested on "
        "two workers in strategy/data_parallel_workers_test.py",
}


@pytest.fixture(scope="module")
def passed():
    """The tests that passed, by class, in a process of its own: substitutions stay there."""
    done = subprocess.run([sys.executable, PROGRAM, *LEFT_OUT], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert not re.search(r"^SKIPPED|^XFAIL", done.stdout, re.MULTILINE), done.stdout[-3000:]
    found = {}
    for name, test in re.findall(r"^PASSED .*::(\w+)::(\w+)$", done.stdout, re.MULTILINE):
        found.setdefault(name, set()).add(test)
    return found


def shipped():
    """The tests of the suite, by class, read from its source."""
    file = Path(keras.__file__).parent / "src/distribution/distribution_lib_test.py"
    return {
        node.name: {one.name for one in node.body if isinstance(one, ast.FunctionDef) and one.name.startswith("test")}
        for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef)
    }


@pytest.mark.parametrize("name", ["DataParallelDistributionTest", "DeviceMeshTest", "TensorLayoutTest"])
def test_every_test_of_the_classes_that_ours_take_the_place_of_passes(passed, name):
    assert passed[name] == shipped()[name] != set()


def test_every_other_class_of_the_suite_passes_or_is_left_out_by_name(passed):
    for name, tests in shipped().items():
        assert name in LEFT_OUT or tests <= passed[name], name
    assert not set(LEFT_OUT) & set(passed)
