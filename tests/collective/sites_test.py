"""Keys of exchanges: the same in equal programs, others where anything differs that workers must agree on."""

import itertools
import os
import sys

import pytest
import tensorflow as tf

from lockstep.collective import Exchange, sites
from lockstep.collective.device_collectives import PADDED_SIZES
from lockstep.collective.sites import Sites, place_of

HERE = os.path.abspath(__file__)


def exchange(kind="all-reduce", op="SUM", dtype="float32", algorithm="ring", tensors=("weights:0",)):
    return Exchange(kind, op, dtype, algorithm, None, tensors)


def this_line():
    return f"{HERE}:{sys._getframe(1).f_lineno}"


def key(what=None, place="step (exchange 1)", shapes="(2,)", is_block=False):
    return Sites().key(what or exchange(), place, shapes, is_block)


def test_equal_programs_have_equal_keys():
    first, second = Sites(), Sites()
    program = [(exchange(tensors=(f"w{index}:0",)), f"step (exchange {index})", "(2,)", index % 2 == 0)
               for index in range(100)]
    assert [first.key(*site) for site in program] == [second.key(*site) for site in reversed(program)][::-1]


@pytest.mark.parametrize("other", [
    {"what": exchange(kind="broadcast")}, {"what": exchange(op="MAX")}, {"what": exchange(dtype="float64")},
    {"what": exchange(algorithm="naive")}, {"place": "step (exchange 2)"}, {"place": "other (exchange 1)"},
    {"place": "Python"}, {"shapes": "(3,)"}, {"is_block": True}])
def test_keys_differ_by(other):
    assert key(**other) != key()


@pytest.mark.parametrize("numbered, plain", [
    ("weights_1:0", "weights:0"), ("sequential_3/dense_12/kernel_2:0", "sequential/dense/kernel:0")])
def test_the_numbers_that_tensorflow_gives_to_names_are_ignored(numbered, plain):
    assert key(exchange(tensors=(numbered,)), "Python") == key(exchange(tensors=(plain,)), "Python")


@pytest.mark.parametrize("name, other", [("weights:0", "bias:0"), ("w1:0", "w2:0"), ("conv_3x3:0", "conv_5x5:0")])
def test_the_names_that_users_give_count_in_python(name, other):
    assert key(exchange(tensors=(name,)), "Python") != key(exchange(tensors=(other,)), "Python")
    assert key(exchange(tensors=(name,)), "Python") != key(exchange(tensors=(name, other)), "Python")


def test_single_keys_and_blocks_are_apart():
    known = Sites()
    singles = {known.key(exchange(), str(number), "(2,)") for number in range(2000)}
    blocks = sorted(known.key(exchange(), str(number), "", is_block=True) for number in range(2000))
    assert len(singles) == len(set(blocks)) == 2000
    assert 0 < min(singles) and max(singles) < blocks[0]
    assert all(last + len(PADDED_SIZES) <= first for last, first in itertools.pairwise(blocks))
    assert blocks[-1] + len(PADDED_SIZES) <= 1 << 31


def test_two_sites_never_get_one_key(monkeypatch):
    monkeypatch.setattr(sites, "_NUM_BLOCKS", 3)
    monkeypatch.setattr(sites, "_FIRST_BLOCK", 4)
    for is_block in (False, True):
        known = Sites()
        keys = [known.key(exchange(), str(place), "", is_block) for place in range(3)]
        assert len(set(keys)) == 3
        assert keys == [known.key(exchange(), str(place), "", is_block) for place in range(3)]


def test_every_key_of_a_block_is_told():
    known = Sites()
    first = known.key(exchange(), "step (exchange 1)", "", is_block=True)
    assert known.text(first) == known.text(first + len(PADDED_SIZES) - 1)
    assert known.text(first).startswith("all-reduce SUM of float32 (weights:0) in step (exchange 1), ")
    assert known.text(first + sites._BLOCK) == f"exchange {first + sites._BLOCK}"


def test_the_text_names_the_shape_and_the_line_of_the_last_call():
    known = Sites()
    for _ in range(2):
        number, line = known.key(exchange(), "Python", "(2,)"), this_line()
    assert known.text(number) == f"all-reduce SUM of float32 (weights:0) of shape (2,) in Python, {line}"
    again, other = known.key(exchange(), "Python", "(2,)"), this_line()
    assert (again, known.text(number).rpartition(", ")[2]) == (number, other)
    assert line != other


def test_outside_of_functions_the_place_is_python():
    assert place_of(None) == "Python"


def test_places_in_a_function_are_counted_through_its_branches_and_loops_and_anew_in_each_trace():
    found = []

    def here():
        found.append(place_of(tf.compat.v1.get_default_graph()))

    @tf.function
    def step(x):
        here()
        if x > 0:
            here()
        for _ in tf.range(2):
            here()
        inner(x)
        here()
        return x

    @tf.function
    def inner(x):
        here()
        return x

    step(tf.constant(1.0))
    expected = ["step (exchange 1)", "step (exchange 2)", "step (exchange 3)", "inner (exchange 1)",
                "step (exchange 4)"]
    assert found == expected
    found.clear()
    step(tf.constant(1))
    assert found == expected
