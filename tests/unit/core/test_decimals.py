"""Parsing of decimal numbers."""

import pytest

from infergate.core.decimals import parse_decimal


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("007", 7),
        ("255", 255),
        ("256", None),
        ("0255", None),
        ("9" * 5000, None),
        ("", None),
        ("-1", None),
        ("+1", None),
        ("1_0", None),
        (" 1", None),
        ("1.0", None),
        ("²", None),
        ("\u0661", None),  # a digit in Arabic script
    ],
)
def test_only_short_decimal_numbers_up_to_the_maximum_are_parsed(
    text: str, number: int | None
) -> None:
    assert parse_decimal(text, 255) == number
