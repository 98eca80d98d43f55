"""Decimal numbers in text from clients and backends."""

from __future__ import annotations


def parse_decimal(text: str, maximum: int) -> int | None:
    """Return the decimal number ``text``, or None if it is not a number from 0 to ``maximum``. The
    text may not have more digits than ``maximum``, because converting a long text is slow."""
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(maximum))):
        return None
    number = int(text)
    return number if number <= maximum else None
