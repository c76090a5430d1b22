"""What a launch depends on: what its function closes over, and what it reads of its module."""

import gc
import types
import weakref

import numpy as np
import pytest
import tensorflow as tf

import lockstep
from lockstep.strategy.function_key import Closure, Keys
from testing.replicas import mirrored, replica_context, values_of

# Read by the steps below, and changed by the tests.
RATE = 0.1
OPTIONS = {"rate": 0.1}
WEIGHT = BATCH = PARTS = None


def helper():
    return RATE


def countdown(number):
    return 0 if number == 0 else countdown(number - 1)


def key(function):
    return Keys().of_function(function)


def results(strategy, step):
    return values_of(strategy, strategy.run(step))


@pytest.mark.parametrize("step", [
    lambda: tf.constant(RATE),
    lambda: tf.add_n([tf.constant(RATE) for _ in range(1)]),
    lambda: (lambda: tf.constant(RATE))(),
    lambda: tf.constant(helper()),
    lambda: tf.constant(OPTIONS["rate"]),
], ids=["directly", "in a comprehension", "in a lambda", "in a helper", "in a dictionary"])
def test_a_changed_number_of_the_module_is_seen(monkeypatch, step):
    strategy = mirrored(2)
    step = tf.function(step, autograph=False)
    for rate in (0.1, 0.2):
        monkeypatch.setitem(globals(), "RATE", rate)
        monkeypatch.setitem(OPTIONS, "rate", rate)
        assert results(strategy, step) == [np.float32(rate)] * 2


def test_a_step_written_again_uses_the_variable_that_its_module_now_has(monkeypatch):
    strategy = mirrored(2)
    for start in (1.0, 100.0):
        with strategy.scope():
            monkeypatch.setitem(globals(), "WEIGHT", tf.Variable(start))

        @tf.function
        def step():
            WEIGHT.assign_add(1.0)
            return WEIGHT.read_value()

        assert results(strategy, step) == [start + 1.0] * 2


def test_tensors_of_the_module_are_passed_per_call_and_not_traced_again(monkeypatch):
    strategy = mirrored(2)
    traces = []

    @tf.function
    def step():
        traces.append(1)
        return 2 * BATCH + PARTS

    for number in range(3):
        monkeypatch.setitem(globals(), "BATCH", tf.constant(number))
        monkeypatch.setitem(globals(), "PARTS", lockstep.PerReplica([tf.constant(10), tf.constant(number)]))
        assert results(strategy, step) == [2 * number + 10, 3 * number]
    assert len(traces) == 1


def test_equal_programs_have_equal_keys_and_others_have_not():
    def make(rate, names):
        return lambda x: x * rate + len(names)

    assert key(make(1, ["a"])) == key(make(1, ["a"]))
    assert key(make(1, {"a"})) == key(make(1, {"a"}))
    assert key(make(np.ones(3), ())) == key(make(np.ones(3), ()))
    for other in (make(2, ["a"]), make(1.0, ["a"]), make(1, ("a",)), make(1, ["b"])):
        assert key(other) != key(make(1, ["a"]))


def test_a_function_that_calls_itself_has_a_key():
    assert key(countdown) == key(countdown)
    assert results(mirrored(2), tf.function(lambda: tf.constant(countdown(3)))) == [0, 0]


def test_large_containers_count_as_they_are():
    def make(numbers):
        return lambda: numbers[0]

    many = list(range(5000))
    assert key(make(many)) == key(make(many))
    assert key(make(many)) != key(make(list(many)))


def test_keys_keep_what_they_refer_to():
    class Thing:
        pass

    def keyed():
        thing = Thing()
        keys = Keys()
        keys.of_function(lambda: thing)
        return keys, weakref.ref(thing)

    keys, reference = keyed()
    gc.collect()
    assert keys.kept and reference() is not None


def test_a_bound_function_is_the_function_with_other_tensors():
    number, text = tf.constant(1), "kept"

    def function(x, *, y=5):
        """Its text."""
        return number + x + y, text

    closure = Closure(function)
    assert closure.lifted == [number]
    bound = closure.bound([tf.constant(100)])
    assert isinstance(bound, types.FunctionType) and bound is not function
    assert (int(bound(1)[0]), bound(1)[1], int(function(1)[0])) == (106, "kept", 7)
    assert (bound.__name__, bound.__code__) == ("function", function.__code__)
    assert Closure(len).bound([]) is len


def test_graphs_of_strategies_that_are_dropped_are_freed():
    def trained():
        strategy = mirrored(2)
        with strategy.scope():
            v = tf.Variable(1.0)
        strategy.run(tf.function(lambda: v.assign_add(replica_context().all_reduce("SUM", 1.0 * v))))
        return weakref.ref(strategy), weakref.ref(v)

    references = [reference for _ in range(3) for reference in trained()]
    gc.collect()
    assert [reference() for reference in references] == [None] * 6
