"""What docs/cli.md tells of commands, options, exit codes and signals, made from the parser's own.

``python -m infergate.cli.reference [FOLDER]`` writes it into the page, by default in ``docs``; all
that does not stand between its marks is written by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from infergate.cli.arguments import COMMANDS, EXITS, OPTIONS, SIGNALS

PAGE: Final = "cli.md"
_PART: Final = re.compile(r"(<!-- made: (\w+) -->\n).*?(?=<!-- /made -->)", re.DOTALL)


def filled(page: str) -> str:
    """``page`` with what stands between ``<!-- made: … -->`` and ``<!-- /made -->`` made anew.
    Raises KeyError for a name that is none."""
    return _PART.sub(lambda part: f"{part[1]}\n{PARTS[part[2]]}\n", page)


def _table(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [headings, ("---",) * len(headings), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _coded(rows: Mapping[Any, str]) -> Iterator[tuple[str, str]]:
    return ((f"`{name}`", meaning) for name, meaning in rows.items())


def _options() -> Iterator[tuple[str, ...]]:
    for option in OPTIONS:
        values = " or ".join(f"`{value}`" for value in option.values)
        of = ", ".join(f"`{command}`" for command in option.commands)
        yield f"`{option.flag}` {values}".rstrip(), of, option.help


PARTS: Final[Mapping[str, str]] = {
    "commands": _table(("Command", "What it does"), _coded(COMMANDS)),
    "options": _table(("Option", "Of", "Meaning"), _options()),
    "exits": _table(("Exit code", "When"), _coded(EXITS)),
    "signals": _table(("Signal", "What happens"), _coded(SIGNALS)),
}
"""By the names that the page calls them."""


if __name__ == "__main__":
    file = Path(sys.argv[1] if len(sys.argv) > 1 else "docs") / PAGE
    file.write_text(filled(file.read_text(encoding="utf-8")), encoding="utf-8")
