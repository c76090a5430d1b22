"""Members: what an exchange says about itself, and the member of a group of one."""

import pytest
import tensorflow as tf

from lockstep.collective import Exchange, Member, ReduceOp, SoloMember, all_gather
from lockstep.collective.reduce_op import combine
from testing.replicas import mirrored, replica_context

SUM_OF_FIVE = Exchange("all-reduce", "SUM", "float32", "local", 20, ("a", "b", "c", "d", "e"))


@pytest.mark.parametrize("exchange", [SUM_OF_FIVE, Exchange("agree", "", "string", "local", None, ())])
def test_exchange_is_the_same_after_json(exchange):
    text = exchange.to_json()
    assert "\n" not in text
    assert Exchange.from_json(text) == exchange


def test_exchange_tells_its_first_tensors():
    assert str(SUM_OF_FIVE) == "all-reduce SUM of float32 (a, b, c and 2 more)"
    assert str(Exchange("all-gather", "", "int32", "local", 4, ("x:0",))) == "all-gather of int32 (x:0)"


def test_member_has_the_devices_and_their_number():
    member = Member(["/device:CPU:0", "/device:CPU:1"])
    assert (member.size, member.devices) == (2, ("/device:CPU:0", "/device:CPU:1"))
    assert not member.can_use_device_collectives
    assert member.once("key", list) == []


def test_what_a_subclass_must_offer_is_named():
    member = Member(["/device:CPU:0"])
    with pytest.raises(NotImplementedError, match="Member.rank"):
        member.rank
    with pytest.raises(NotImplementedError, match="Member.group_key"):
        member.group_key
    with pytest.raises(NotImplementedError, match="Member.instance_key"):
        member.instance_key(None, "", 1)
    with pytest.raises(NotImplementedError, match="Member.exchange"):
        member.exchange([], list, SUM_OF_FIVE)


def test_solo_member_combines_its_own():
    member = SoloMember(["/device:CPU:0"])
    result, = member.exchange([tf.constant([1, 2])], lambda parts: [combine(ReduceOp.SUM, [part for part, in parts])],
                              SUM_OF_FIVE)
    assert member.rank == 0
    assert result.numpy().tolist() == [1, 2]


@pytest.mark.parametrize("op", ["SUM", "MEAN", "MIN", "MAX", "PROD"])
def test_step_on_one_replica_has_no_op_of_a_collective(op):
    strategy = mirrored(1)
    kinds = []

    @tf.function
    def step(x):
        total = replica_context().all_reduce(op, [x, x])[1]
        result = all_gather(SoloMember(strategy.extended.worker_devices), total, axis=0)
        kinds.extend(sorted(each.type for each in tf.compat.v1.get_default_graph().get_operations()))
        return result

    assert strategy.run(step, args=(tf.constant([2.0]),)).numpy().tolist() == [2.0]
    assert kinds == ["Placeholder"]
