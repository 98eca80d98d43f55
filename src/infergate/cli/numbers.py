"""Parsers of numbers in options."""

from __future__ import annotations

import argparse
import math
from typing import Final

_MAX_COUNT: Final = 10**9


def parse_positive(text: str) -> float:
    """Return a positive, finite number. Raises ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive, finite number")
    return value


def parse_count(text: str) -> int:
    """Return a whole number from 1 to a billion. Raises ArgumentTypeError."""
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= _MAX_COUNT):
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 1 to {_MAX_COUNT}")
    return int(text)
