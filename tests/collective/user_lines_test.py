"""The user's line is the innermost of the program: not a library's, and the one that was written, not autograph's."""

import os
import sys
import threading

import keras
import pytest
import tensorflow as tf

import lockstep
from lockstep.collective.user_lines import is_users, user_line, users_frame

HERE = os.path.abspath(__file__)
ROOT = os.path.dirname(lockstep.__file__)


def this_line():
    return f"{HERE}:{sys._getframe(1).f_lineno}"


@pytest.mark.parametrize("path, expected", [
    (HERE, True), ("/home/keras/tensorflow/lockstep/train.py", True), ("/lib/python/train.py", True),
    (tf.__file__, False), (keras.__file__, False), (threading.__file__, False), ("<string>", False),
    (pytest.__file__, False), (os.path.join(ROOT, "strategy", "base.py"), False),
    (os.path.join(ROOT, "examples", "digits.py"), True), ("/tmp/__autograph_generated_filexyz.py", False),
])
def test_a_program_is_what_is_no_library(path, expected):
    assert is_users(path) is expected


def test_the_line_of_eager_code():
    assert user_line() == this_line()


def test_the_line_in_a_function_that_a_library_calls():
    found = []
    tf.nest.map_structure(lambda x: found.append((user_line(), this_line())), [1])
    assert found[0][0] == found[0][1]


def test_lines_in_a_function_that_autograph_converts_are_the_written_ones():
    found = []

    def helper(x):
        if x > 0:
            found.append((user_line(), written(helper, 2)))
        return x

    class Model(tf.Module):
        def __call__(self, x):
            for _ in tf.range(2):
                x = helper(x)
                found.append((user_line(), written(Model.__call__, 3)))
            return x

    model = Model()

    @tf.function
    def step(x):
        found.append((user_line(), written(step.python_function, 2)))
        if x > 0:
            found.append((user_line(), written(step.python_function, 4)))
        return model(x)

    step(tf.constant(1.0))
    assert len(found) == 4
    assert [line for line, _ in found] == [line for _, line in found]


def written(function, offset):
    return f"{HERE}:{function.__code__.co_firstlineno + offset}"


def test_a_program_that_is_installed_as_a_package_has_lines_too(tmp_path):
    package = tmp_path / "site-packages" / "model"
    package.mkdir(parents=True)
    path = str(package / "train.py")
    found = []

    def run():
        exec(compile("\n\nfound.append(user_line())", path, "exec"), {"found": found, "user_line": user_line})

    thread = threading.Thread(target=run, name="with no frame of the user's around")
    run.__code__ = run.__code__.replace(co_filename=threading.__file__)
    thread.start()
    thread.join()
    assert found == [f"{path}:3"]


def test_where_nothing_is_the_users_the_line_is_unknown():
    found = []

    def run():
        found.append((user_line(), users_frame(sys._getframe())))

    run.__code__ = run.__code__.replace(co_filename=threading.__file__)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [("line unknown", None)]


def test_the_users_frame_is_found_from_any_frame_outwards():
    frame = sys._getframe()
    assert users_frame(frame) is frame
    found = []
    tf.nest.map_structure(lambda x: found.append(users_frame(sys._getframe(1))), [1])
    assert found == [frame]
