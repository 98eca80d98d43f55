"""Generates the tables of commands, options, exit codes and signals in docs/cli.md.

``python -m infergate.cli.reference [FOLDER]`` updates the page in ``FOLDER``, by default ``docs``,
between the marks ``<!-- generated: … -->`` and ``<!-- /generated -->``. The rest of the page is
written by hand."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from infergate.cli.arguments import COMMANDS, EXIT_CODES, OPTIONS, SIGNALS
from infergate.cli.rest_proxy import VARIABLES

PAGE: Final = "cli.md"
_MARKED: Final = re.compile(r"(<!-- generated: (\w+) -->\n).*?(?=<!-- /generated -->)", re.DOTALL)


def update_tables(page: str) -> str:
    """Return ``page`` with the tables between the marks replaced. Raises KeyError for an unknown
    table."""
    return _MARKED.sub(lambda part: f"{part[1]}\n{TABLES[part[2]]}\n", page)


def _table(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [headings, ("---",) * len(headings), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _code_rows(rows: Mapping[Any, str]) -> Iterator[tuple[str, str]]:
    return ((f"`{name}`", meaning) for name, meaning in rows.items())


def _options() -> Iterator[tuple[str, ...]]:
    for option in OPTIONS:
        values = " or ".join(f"`{value}`" for value in option.values)
        commands = ", ".join(f"`{command}`" for command in option.commands)
        yield f"`{option.flag}` {values}".rstrip(), commands, option.help


TABLES: Final[Mapping[str, str]] = {
    "commands": _table(("Command", "What it does"), _code_rows(COMMANDS)),
    "options": _table(("Option", "Commands", "Meaning"), _options()),
    "exits": _table(("Exit code", "When"), _code_rows(EXIT_CODES)),
    "rest_proxy": _table(("Variable", "Meaning"), _code_rows(VARIABLES)),
    "signals": _table(("Signal", "What happens"), _code_rows(SIGNALS)),
}
"""The tables, keyed by their names in the marks of the page."""


if __name__ == "__main__":
    file = Path(sys.argv[1] if len(sys.argv) > 1 else "docs") / PAGE
    file.write_text(update_tables(file.read_text(encoding="utf-8")), encoding="utf-8")
