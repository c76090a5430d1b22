"""How an exception is told in one line; how workers end for real is in worker_failures_test.py."""

import sys
import threading

import pytest
import tensorflow as tf

from lockstep.strategy.last_words import described


def raised(function):
    with pytest.raises(BaseException) as caught:
        function()
    return described(caught.type, caught.value, caught.tb)


def test_an_exception_is_told_with_its_type_message_and_line():
    def fail():
        raise ValueError("no such file: rows.csv")

    assert raised(fail) == f"ValueError: no such file: rows.csv (last_words_test.py:{fail.__code__.co_firstlineno + 1})"


def test_the_line_is_the_programs_where_a_library_raises():
    def fail():
        tf.nest.assert_same_structure([1], [1, 2])

    told = raised(fail)
    assert told.startswith("ValueError: The two structures don't have the same nested structure.")
    assert told.endswith(f"(last_words_test.py:{fail.__code__.co_firstlineno + 1})")


def test_an_exception_without_a_message_has_no_colon():
    def fail():
        raise KeyboardInterrupt

    assert raised(fail) == f"KeyboardInterrupt (last_words_test.py:{fail.__code__.co_firstlineno + 1})"


def test_a_long_message_is_cut():
    def fail():
        raise ValueError("x" * 10_000)

    assert len(raised(fail)) < 2100


def test_an_exception_that_no_line_of_the_program_raised_has_the_librarys_line():
    told = []

    def run():
        try:
            [].pop()
        except IndexError:
            told.append(described(*sys.exc_info()))

    run.__code__ = run.__code__.replace(co_filename=threading.__file__)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert told[0].startswith("IndexError: pop from empty list (threading.py:")


def test_an_exception_without_a_traceback_has_no_line():
    assert described(ValueError, ValueError("no"), None) == "ValueError: no"
