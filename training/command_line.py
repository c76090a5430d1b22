"""What the commands of `lockstep` share in reading their arguments: a mistake is told in one line.

    parser = Parser(prog="lockstep doctor", allow_abbrev=False)
    parser.add_argument("--timeout", type=seconds, default=5.0)
"""

import argparse
import math
import re
from collections.abc import Callable
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """Ends the program with exit code 2 and one line where the arguments make no sense."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message.rstrip('.')}. See `{self.prog} --help`.\n")


def whole_number(least: int) -> Callable[[str], int]:
    """The type of an argument that is a whole number, `least` or more."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]+", text) or int(text) < least:
            raise argparse.ArgumentTypeError(f"is {text!r}. Expected a whole number, {least} or more")
        return int(text)

    return parse


def seconds(text: str) -> float:
    """The type of an argument that is a number of seconds, 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"is {text!r}. Expected a number of seconds, 0 or more")
    return value
