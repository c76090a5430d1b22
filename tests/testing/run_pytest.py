"""Runs pytest on one test file under Bazel, with the project's settings.

Bazel calls it with the path of the test file from the root of the project; see `pytest_test` in
build_rules.bzl.
"""

import os
import sys
from pathlib import Path

import pytest

# absolute(), not resolve(): the tree of links that Bazel makes is the project.
ROOT = Path(__file__).absolute().parents[2]


def main(arguments):
    """Runs pytest from the project's root and returns its exit code."""
    os.chdir(ROOT)
    return pytest.main(["-c", "setup.cfg", "-p", "no:cacheprovider", "-n", "0", *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
