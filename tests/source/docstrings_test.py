"""Every example in a public docstring runs, and every public class and function has one."""

import doctest
import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

import lockstep
from source.public_symbols import is_ours, place, public_members, public_symbols

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

# Dotted name -> why a runnable example makes no sense.
NO_EXAMPLE = {}

SYMBOLS = [(name, symbol) for name, symbol in public_symbols() if is_ours(symbol)]
DOCUMENTED = SYMBOLS + [
    member for name, symbol in SYMBOLS for member in public_members(name, symbol)
]


def _place(symbol):
    return "{}:{}".format(*place(symbol))


def _docstring_test(name, symbol):
    symbol = inspect.unwrap(symbol)
    globs = {"tf": tf, "np": np, "keras": keras, "lockstep": lockstep}
    finder = doctest.DocTestFinder(recurse=False, exclude_empty=True)
    return finder.find(symbol, name, globs=globs)


def _examples(name, symbol):
    return [example for test in _docstring_test(name, symbol) for example in test.examples]


@pytest.mark.parametrize("name, symbol", DOCUMENTED, ids=[name for name, _ in DOCUMENTED])
def test_examples_run(name, symbol):
    for test in _docstring_test(name, symbol):
        output = []
        runner = doctest.DocTestRunner(verbose=False, optionflags=FLAGS)
        results = runner.run(test, out=output.append)
        assert not results.failed, (
            f"{_place(symbol)}: an example in the docstring of `{name}` does not do what it says. "
            "Correct the example or the code.\n" + "".join(output)
        )


@pytest.mark.parametrize("name, symbol", SYMBOLS, ids=[name for name, _ in SYMBOLS])
def test_public_classes_and_functions_have_an_example(name, symbol):
    has_example = bool(_examples(name, symbol))
    if name in NO_EXAMPLE:
        assert not has_example, f"`{name}` has an example now. Remove it from NO_EXAMPLE."
    else:
        assert has_example, (
            f"{_place(symbol)}: the docstring of `{name}` has no `>>>` example. Readers try the "
            "example first. Add the smallest one that runs on CPUs."
        )
