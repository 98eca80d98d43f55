"""Tables, colors and progress bars on a terminal, and plain aligned text elsewhere.

``print_tables`` prints tables, ``show_live`` updates them in place, and ``Progress`` is a progress
bar. ``columns`` aligns and folds columns of plain text.

*Rule.* rich is imported only when output goes to a terminal, so that a gateway that runs under an
orchestrator never loads it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, TextIO

from infergate.terminal.columns import align, output_width

__all__ = ["Progress", "Table", "align", "is_terminal", "plain_text", "print_tables", "show_live"]

STYLES: Final = {
    "ok": "green", "up": "green", "ready": "green",
    "degraded": "yellow", "unknown": "yellow", "draining": "yellow",
    "down": "bold red", "ejected": "bold red", "failing": "bold red", "not ready": "bold red",
}  # fmt: skip
"""Colors of status words. A color adds no information, because the word itself is printed."""
_BORDER_WIDTH: Final = 3
"""Number of border and padding characters for each column."""


@dataclass(frozen=True, slots=True)
class Table:
    """Text in columns. ``right_aligned`` has the indices of right-aligned columns (numbers)."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    right_aligned: frozenset[int] = frozenset()


def is_terminal(stream: TextIO) -> bool:
    """Return whether ``stream`` is a terminal, and neither NO_COLOR (https://no-color.org) nor
    TERM=dumb disables colors."""
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def plain_text(table: Table, width: int | None = None) -> str:
    """Format ``table`` as aligned text that fits ``width`` (``columns.align``)."""
    return f"{table.title}\n{align([table.headings, *table.rows], table.right_aligned, width)}"


def print_tables(tables: Iterable[Table], stream: TextIO | None = None) -> None:
    """Print ``tables`` to ``stream``, by default standard output."""
    out = stream or sys.stdout
    if not is_terminal(out):
        width = output_width(out)
        out.write("\n".join(plain_text(table, width) for table in tables))
        return
    from rich.console import Console  # noqa: PLC0415 - the rule above

    console = Console(file=out)
    for table in tables:
        console.print(_make_rich_table(table, console.width))


def show_live(frames: Iterable[Sequence[Table]], stream: TextIO | None = None) -> None:
    """Show each frame of ``frames`` on the full screen, in place of the previous frame. If the
    output is not a terminal, print the frames one after the other. The iterator sets the pace."""
    out = stream or sys.stdout
    if not is_terminal(out):
        for tables in frames:
            print_tables(tables, out)
            out.write("\n")
            out.flush()
        return
    from rich.console import Console, Group  # noqa: PLC0415 - the rule above
    from rich.live import Live  # noqa: PLC0415

    console = Console(file=out)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for tables in frames:
            live.update(
                Group(*(_make_rich_table(table, console.width) for table in tables)), refresh=True
            )


def _make_rich_table(table: Table, width: int) -> Any:
    """Return ``table`` as a rich table, with borders if they fit into ``width``."""
    from rich import box  # noqa: PLC0415 - the rule above
    from rich.table import Table as Rich  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    widths = [max(map(len, column)) for column in zip(table.headings, *table.rows, strict=True)]
    fits = sum(widths) + _BORDER_WIDTH * len(widths) < width
    drawn = Rich(
        title=Text(table.title, "bold"), title_justify="left", border_style="dim",
        box=box.ROUNDED if fits else box.SIMPLE_HEAD, header_style="bold cyan",
        padding=(0, 1) if fits else (0, 1, 0, 0), pad_edge=fits,
    )  # fmt: skip
    for index, heading in enumerate(table.headings):
        is_number = index in table.right_aligned
        drawn.add_column(
            heading,
            justify="right" if is_number else "left",
            overflow="fold",
            min_width=max((len(row[index]) for row in table.rows), default=1) if is_number else 1,
        )
    for row in table.rows:  # as Text, so that names are not parsed as markup
        drawn.add_row(*(Text(cell, STYLES.get(cell, "")) for cell in row))
    return drawn


class Progress:
    """A progress bar of ``total`` steps with the text ``label``. It is shown only on a terminal."""

    def __init__(self, label: str, total: int, stream: TextIO | None = None) -> None:
        self._label: Final = label
        self._total: Final = total
        self._stream: Final = stream or sys.stderr
        self._bar: Any = None

    def __enter__(self) -> Self:
        if is_terminal(self._stream):
            from rich.console import Console  # noqa: PLC0415 - the rule above
            from rich.progress import Progress as Rich  # noqa: PLC0415

            self._bar = Rich(
                console=Console(file=self._stream),
                transient=True,
                redirect_stdout=sys.stdout.isatty(),  # otherwise, leave stdout alone
            )
            self._task = self._bar.add_task(self._label, total=self._total)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, count: int = 1, text: str = "") -> None:
        """Advance the bar by ``count`` steps. ``text`` replaces the label."""
        if self._bar is not None:
            self._bar.update(self._task, advance=count, description=text or self._label)
