from __future__ import annotations

import io
import subprocess
import sys

import pytest

from infergate.terminal import Progress, Table, is_terminal, plain_text, print_tables

TABLE = Table(
    "routes", ("MODEL", "REQUESTS"), [("[red]bert[/]", "7"), ("a", "1200")], frozenset({1})
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def colourful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def test_output_without_a_terminal_is_aligned_text() -> None:
    out = io.StringIO()
    print_tables([TABLE, TABLE], out)
    one = "routes\n  MODEL         REQUESTS\n  [red]bert[/]         7\n  a                 1200\n"
    assert out.getvalue() == f"{one}\n{one}"
    assert plain_text(TABLE) == one


def test_output_on_a_terminal_escapes_markup() -> None:
    out = Terminal()
    print_tables([TABLE], out)
    assert "\x1b[" in out.getvalue()
    assert "[red]bert[/]" in out.getvalue()


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", ""), ("TERM", "dumb")])
def test_colours_can_be_disabled(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert not is_terminal(Terminal())
    out = Terminal()
    print_tables([TABLE], out)
    assert "\x1b[" not in out.getvalue()


def test_progress_is_for_terminals() -> None:
    quiet, seen = io.StringIO(), Terminal()
    for stream in (quiet, seen):
        with Progress("work", 2, stream) as progress:
            progress.step()
            progress.step(1, "half done")
    assert quiet.getvalue() == ""
    assert "work" in seen.getvalue()
    assert "half done" in seen.getvalue()


def test_serving_does_not_load_the_terminal_library() -> None:
    code = (
        "import sys, infergate.cli, infergate.runtime.serve, infergate.terminal, io\n"
        "from infergate.terminal import Table, print_tables, Progress\n"
        "print_tables([Table('t', ('A',), [('b',)])], io.StringIO())\n"
        "with Progress('w', 1, io.StringIO()) as p: p.step()\n"
        "late = {'rich', 'infergate.runtime.console.console', 'infergate.runtime.console.state',\n"
        "  'infergate.config.redacted', 'infergate.cli.output'}\n"
        "print(sorted(late & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
