"""Generates the tables of commands, options, exit codes, environment variables and signals in
docs/cli.md.

``python -m infergate.cli.reference [FOLDER]`` updates the page in ``FOLDER``, by default ``docs``,
between the markers ``<!-- generated: … -->`` and ``<!-- /generated -->``. The rest of the page is
written by hand."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from infergate.cli.command import Command
from infergate.cli.commands import COMMANDS, EXIT_CODES, SIGNALS
from infergate.cli.rest_proxy import VARIABLES

PAGE: Final = "cli.md"
_MARKED: Final = re.compile(r"(<!-- generated: (\w+) -->\n).*?(?=<!-- /generated -->)", re.DOTALL)


def update_tables(page: str) -> str:
    """Return ``page`` with updated tables between the markers. Raises KeyError for an unknown
    table."""
    return _MARKED.sub(lambda part: f"{part[1]}\n{TABLES[part[2]]}\n", page)


def _table(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [headings, ("---",) * len(headings), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _code_rows(rows: Mapping[Any, str]) -> Iterator[tuple[str, str]]:
    return ((f"`{name}`", meaning) for name, meaning in rows.items())


def _command_rows() -> Iterator[tuple[str, str]]:
    for command in COMMANDS.values():
        operands = f" {command.operands.usage}" if command.operands else ""
        yield f"`{command.name}{operands}`", command.help


def _options() -> Iterator[tuple[str, ...]]:
    """Yield a row for each option. Commands that share an option are in one row."""
    accepting: dict[tuple[str, str], list[Command]] = {}
    for command in COMMANDS.values():
        for option in command.options:
            accepting.setdefault((option.flag, option.help), []).append(command)
    for (flag, text), commands in accepting.items():
        option = next(each for each in commands[0].options if each.flag == flag)
        values = " or ".join(f"`{value}`" for value in option.values)
        names = ", ".join(f"`{command.name}`" for command in commands)
        flags = ", ".join(f"`{each}`" for each in option.flags)
        yield f"{flags} {values}".rstrip(), names, text


TABLES: Final[Mapping[str, str]] = {
    "commands": _table(("Command", "What it does"), _command_rows()),
    "options": _table(("Option", "Commands", "Meaning"), _options()),
    "exits": _table(("Exit code", "When"), _code_rows(EXIT_CODES)),
    "rest_proxy": _table(("Variable", "Meaning"), _code_rows(VARIABLES)),
    "signals": _table(("Signal", "What happens"), _code_rows(SIGNALS)),
}
"""The tables, keyed by their names in the markers."""


if __name__ == "__main__":
    file = Path(sys.argv[1] if len(sys.argv) > 1 else "docs") / PAGE
    file.write_text(update_tables(file.read_text(encoding="utf-8")), encoding="utf-8")
