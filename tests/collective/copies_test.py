"""Copies: a handle tells which handles stand for it on the other replicas, as long as its owner lives."""

import gc
import weakref

import tensorflow as tf

from lockstep.collective import Copies


class Owner:
    name = "weights"


def handles(count):
    return [tf.Variable(float(index)).handle for index in range(count)]


def test_first_handle_leads_to_the_copies():
    mine, owner = handles(3), Owner()
    copies = Copies(mine, owner, "group", is_equal=True)
    assert Copies.of(mine[0]) is copies
    assert all(kept is handle for kept, handle in zip(copies.handles, mine, strict=True))
    assert (copies.group, copies.is_equal, copies.is_queue) == ("group", True, False)


def test_other_handles_and_plain_tensors_lead_nowhere():
    mine = handles(2)
    copies = Copies(mine, "owner", "group", is_equal=True)
    assert copies is not None
    assert Copies.of(mine[1]) is None
    assert Copies.of(tf.constant(1.0)) is None


def test_owner_has_a_name_or_is_one():
    owner = Owner()
    assert Copies(handles(1), owner, "group", is_equal=True).owner_name == "weights"
    assert Copies(handles(1), "replica_id", "group", is_equal=False).owner_name == "replica_id"


def test_copies_keep_neither_the_owner_nor_themselves_alive():
    mine, owner = handles(2), Owner()
    copies = Copies(mine, owner, "group", is_equal=True, is_queue=True)
    seen, seen_owner = weakref.ref(copies), weakref.ref(owner)
    del owner
    gc.collect()
    assert seen_owner() is None
    assert copies.owner_name == "None"
    del copies
    gc.collect()
    assert seen() is None
    assert Copies.of(mine[0]) is None
