"""What a worker tells of itself: what it is busy with, and where its main thread is."""

import os
import sys
import threading

import tensorflow as tf

from lockstep.strategy import activity
from testing.replicas import mirrored

HERE = os.path.abspath(__file__)


def test_a_process_is_busy_with_the_last_of_what_it_has_begun():
    assert activity.current() == ""
    with activity.busy("tracing step"):
        with activity.busy("saving a checkpoint"):
            assert activity.current() == "saving a checkpoint"
        assert activity.current() == "tracing step"
    assert activity.current() == ""


def test_what_fails_is_over():
    try:
        with activity.busy("tracing step"):
            raise ValueError
    except ValueError:
        assert activity.current() == ""


def test_tracing_a_step_is_something_to_be_busy_with():
    seen = []

    @tf.function
    def step():
        seen.append(activity.current())
        return tf.constant(1)

    mirrored(2).run(step)
    assert seen == ["tracing step"]
    assert activity.current() == ""


def test_the_main_thread_is_in_a_line_of_the_program():
    found = []
    thread = threading.Thread(target=lambda: found.append(activity.main_thread_is_at()))
    line = sys._getframe().f_lineno + 1
    thread.start(), thread.join()
    assert found == [f"{HERE}:{line}, in test_the_main_thread_is_in_a_line_of_the_program"]


def test_a_library_that_the_program_calls_is_not_where_it_is():
    found = []

    def watch():
        thread = threading.Thread(target=lambda: found.append(activity.main_thread_is_at()))
        thread.start(), thread.join()

    watch.__code__ = watch.__code__.replace(co_filename=threading.__file__)
    tf.nest.map_structure(lambda _: watch(), [1])
    assert found[0].startswith(f"{HERE}:") and found[0].endswith(", in <lambda>")
