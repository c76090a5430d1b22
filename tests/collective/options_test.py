"""Options: checked when they are made, frozen, merged field by field."""

import dataclasses

import pytest

from lockstep.collective import CollectiveOptions
from lockstep.collective.options import IMPLEMENTATIONS


def test_defaults():
    options = CollectiveOptions()
    assert (options.implementation, options.bucket_bytes) == ("auto", 32 * 1024 * 1024)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("bucket_bytes", [0, 1, 1 << 30])
def test_every_implementation_takes_every_size(implementation, bucket_bytes):
    options = CollectiveOptions(implementation, bucket_bytes)
    assert dataclasses.astuple(options)[:2] == (implementation, bucket_bytes)


@pytest.mark.parametrize("implementation", ["NCCL", "gloo", "", None])
def test_unknown_implementation_raises_with_the_value_and_the_choices(implementation):
    with pytest.raises(ValueError, match="`implementation` is .*Expected one of auto, local, ring, nccl, naive"):
        CollectiveOptions(implementation=implementation)


@pytest.mark.parametrize("bucket_bytes", [-1, 1.5, "1", None, True])
def test_size_that_is_no_whole_number_raises_with_the_value(bucket_bytes):
    with pytest.raises(ValueError, match="`bucket_bytes` is .*whole number of bytes, 0 or more"):
        CollectiveOptions(bucket_bytes=bucket_bytes)


def test_merge_replaces_the_named_fields_of_a_copy():
    options = CollectiveOptions("ring", 4)
    assert options.merge(bucket_bytes=8) == CollectiveOptions("ring", 8)
    assert options.merge(implementation="local") == CollectiveOptions("local", 4)
    assert options.merge() == options == CollectiveOptions("ring", 4)


def test_merge_checks_too():
    with pytest.raises(ValueError, match="bucket_bytes"):
        CollectiveOptions().merge(bucket_bytes=-1)


def test_options_are_frozen_and_hashable():
    options = CollectiveOptions()
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.bucket_bytes = 1
    assert len({options, CollectiveOptions()}) == 1


@pytest.mark.parametrize("name", ["timeout_seconds", "warn_seconds"])
@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), "10", True, None])
def test_a_wait_must_be_a_number_of_seconds_above_zero(name, seconds):
    with pytest.raises(ValueError, match=f"`{name}` is .*Expected a number of seconds above 0"):
        CollectiveOptions(**{name: seconds})
