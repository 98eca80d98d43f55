"""Text in aligned columns that fits the width of the terminal."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Collection, Sequence
from itertools import zip_longest
from typing import Final, TextIO

_INDENT: Final = "  "
_GAP: Final = "  "
_NARROW_GAP: Final = " "
_MIN_WIDTH: Final = 8
"""Minimum width to which a column of text is folded."""


def output_width(stream: TextIO) -> int | None:
    """Return the width for tables on ``stream``: the value of the environment variable COLUMNS,
    or else the width of the terminal. Return None for a file or a pipe without COLUMNS; each row
    then stays on one line, so that programs can read it."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdecimal() and len(columns) <= 4 and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):  # not a terminal, or not a file
        return None


def align(
    rows: Sequence[Sequence[str]],
    right_aligned: Collection[int] = (),
    width: int | None = None,
) -> str:
    """Format ``rows`` in aligned and indented columns. The first row may be the headings. Cells are
    folded to fit ``width``, by default the width of standard output. In ``right_aligned`` columns,
    which contain numbers, only the headings are folded."""
    limit = width or output_width(sys.stdout)
    gap, widths = _GAP, [max(map(len, column)) for column in zip(*rows, strict=True)]
    if limit is not None:
        gap, widths = _fit(rows, widths, right_aligned, limit)
    return "".join(
        f"{_INDENT}{gap.join(_pad(cells, widths, right_aligned))}".rstrip() + "\n"
        for row in rows
        for cells in _fold(row, widths)
    )


def _fit(
    rows: Sequence[Sequence[str]],
    widths: Sequence[int],
    right_aligned: Collection[int],
    limit: int,
) -> tuple[str, list[int]]:
    """Return the gap between columns, and widths that fit ``limit`` if possible. The widest
    columns shrink first. If that is not enough, the gap shrinks, and then words of headings are
    broken."""
    gap, fitted = _GAP, list(widths)
    for gap, breaks_words in ((_GAP, False), (_NARROW_GAP, False), (_NARROW_GAP, True)):
        available = limit - len(_INDENT) - len(gap) * (len(widths) - 1)
        smallest = [
            max(
                *(len(row[index]) for row in rows[1:]),
                0 if breaks_words else max(map(len, rows[0][index].split()), default=0),
                1,
            )
            if index in right_aligned
            else min(width, _MIN_WIDTH)
            for index, width in enumerate(widths)
        ]
        for cap in range(min(max(widths, default=0), limit), 0, -1):
            if sum(fitted) <= available:
                return gap, fitted
            fitted = [
                max(low, min(width, cap)) for low, width in zip(smallest, widths, strict=True)
            ]
    return gap, fitted


def _fold(row: Sequence[str], widths: Sequence[int]) -> list[tuple[str, ...]]:
    """Return the lines of a row, whose cells may have different numbers of lines."""
    cells = [
        [cell]
        if len(cell) <= width
        else textwrap.wrap(cell, max(width, 1), break_on_hyphens=False) or [""]
        for cell, width in zip(row, widths, strict=True)
    ]
    return list(zip_longest(*cells, fillvalue="")) or [()]


def _pad(cells: Sequence[str], widths: Sequence[int], right_aligned: Collection[int]) -> list[str]:
    return [
        cell.rjust(width) if index in right_aligned else cell.ljust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
