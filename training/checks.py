"""Checks of what a trainer is given, before anything runs."""

from typing import Any

import numpy as np

from ..collective.options import is_integer
from .batch_source import DistributedData


def check_callable(where: str, name: str, value: Any) -> None:
    if not callable(value):
        raise TypeError(
            f"`{where}`: `{name}` is a {type(value).__name__} ({value!r}). Expected a function of one batch. Pass "
            "the function itself, not its result."
        )


def positive(where: str, name: str, value: Any) -> int:
    if not is_integer(value) or value < 1:
        raise ValueError(f"`{where}`: `{name}` is {value!r}. Expected an integer of 1 or more. Correct `{name}`.")
    return int(value)


def positive_number(where: str, name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not value > 0:
        raise ValueError(f"`{where}`: `{name}` is {value!r}. Expected a number above 0. Correct `{name}`.")


def check_finite(data: DistributedData, where: str, name: str, fix: str) -> None:
    if data.is_infinite:
        raise ValueError(f"`{where}`: `{name}` has no end. Expected data that ends, to count its epochs. {fix}.")
