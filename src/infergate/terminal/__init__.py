"""Tables, colours and progress bars on a terminal, and plain aligned text elsewhere.

``print_tables`` prints tables; ``Progress`` is a progress bar.

*Rule.* rich is imported only when output goes to a terminal, so that a gateway that runs under an
orchestrator never loads it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self, TextIO

STYLES: Final = {
    "ok": "green", "up": "green", "ready": "green",
    "degraded": "yellow", "unknown": "yellow", "draining": "yellow",
    "down": "bold red", "ejected": "bold red", "failing": "bold red", "not ready": "bold red",
}  # fmt: skip
"""Colours of words. They add no information, because the word itself is always printed."""


@dataclass(frozen=True, slots=True)
class Table:
    """Text in columns. ``right_aligned`` has the indices of right-aligned columns (numbers)."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    right_aligned: frozenset[int] = frozenset()


def is_terminal(stream: TextIO) -> bool:
    """Return whether ``stream`` is a terminal and colours are not disabled (https://no-color.org)."""
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def plain_text(table: Table) -> str:
    """Format ``table`` as aligned text, one line per row."""
    return f"{table.title}\n{align([table.headings, *table.rows], table.right_aligned)}"


def align(rows: Sequence[Sequence[str]], right_aligned: Container[int] = ()) -> str:
    """Format ``rows`` in aligned, indented columns, with one line for each row."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = (
            cell.rjust(width) if index in right_aligned else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append(f"  {'  '.join(cells)}".rstrip() + "\n")
    return "".join(lines)


def print_tables(tables: Iterable[Table], stream: TextIO | None = None) -> None:
    """Print ``tables`` to ``stream``, by default standard output."""
    out = stream or sys.stdout
    if not is_terminal(out):
        out.write("\n".join(map(plain_text, tables)))
        return
    from rich import box  # noqa: PLC0415 - the rule above
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table as Rich  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(file=out)
    for table in tables:
        drawn = Rich(
            title=Text(table.title, "bold"), title_justify="left", box=box.ROUNDED,
            header_style="bold cyan", border_style="dim",
        )  # fmt: skip
        for index, heading in enumerate(table.headings):
            drawn.add_column(
                heading,
                justify="right" if index in table.right_aligned else "left",
                overflow="fold",
            )
        for row in table.rows:  # as Text, so that names are not parsed as markup
            drawn.add_row(*(Text(cell, STYLES.get(cell, "")) for cell in row))
        console.print(drawn)


class Progress:
    """A progress bar of ``total`` steps with the text ``label``. It is shown only on a terminal."""

    def __init__(self, label: str, total: int, stream: TextIO | None = None) -> None:
        self._label: Final = label
        self._total: Final = total
        self._stream: Final = stream or sys.stderr
        self._stop: Callable[[], None] = _do_nothing
        self._step: Callable[[int, str], object] = _do_nothing

    def __enter__(self) -> Self:
        if is_terminal(self._stream):
            from rich.console import Console  # noqa: PLC0415 - the rule above
            from rich.progress import Progress as Rich  # noqa: PLC0415

            bar = Rich(
                console=Console(file=self._stream),
                transient=True,
                redirect_stdout=sys.stdout.isatty(),  # a program may read the pipe
            )
            task = bar.add_task(self._label, total=self._total)
            bar.start()
            self._stop = bar.stop
            self._step = lambda count, text: bar.update(
                task, advance=count, description=text or self._label
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def step(self, count: int = 1, text: str = "") -> None:
        """Advance the bar by ``count`` steps. ``text`` replaces the label."""
        self._step(count, text)


def _do_nothing(*_: object) -> None:
    """Ignore the step, because no progress bar is shown."""
