from __future__ import annotations

import io
import re
import subprocess
import sys

import pytest

from infergate.terminal import Progress, Table, is_terminal, plain_text, print_tables, show_live

TABLE = Table(
    "routes", ("MODEL", "REQUESTS"), [("[red]bert[/]", "7"), ("a", "1200")], frozenset({1})
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def colorful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def test_output_without_a_terminal_is_aligned_text() -> None:
    out = io.StringIO()
    print_tables([TABLE, TABLE], out)
    text = "routes\n  MODEL         REQUESTS\n  [red]bert[/]         7\n  a                 1200\n"
    assert out.getvalue() == f"{text}\n{text}"
    assert plain_text(TABLE) == text


def test_output_on_a_terminal_escapes_markup() -> None:
    out = Terminal()
    print_tables([TABLE], out)
    assert "\x1b[" in out.getvalue()
    assert "[red]bert[/]" in out.getvalue()


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", ""), ("TERM", "dumb")])
def test_colors_can_be_disabled(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert not is_terminal(Terminal())
    out = Terminal()
    print_tables([TABLE], out)
    assert "\x1b[" not in out.getvalue()


def test_progress_is_shown_only_on_a_terminal() -> None:
    pipe, terminal = io.StringIO(), Terminal()
    for stream in (pipe, terminal):
        with Progress("work", 2, stream) as progress:
            progress.step()
            progress.step(1, "half done")
    assert pipe.getvalue() == ""
    assert "work" in terminal.getvalue()
    assert "half done" in terminal.getvalue()


def test_plain_output_does_not_load_the_terminal_library() -> None:
    code = (
        "import sys, infergate.cli, infergate.runtime.serve, infergate.terminal, io\n"
        "from infergate.terminal import Table, print_tables, Progress\n"
        "print_tables([Table('t', ('A',), [('b',)])], io.StringIO())\n"
        "with Progress('w', 1, io.StringIO()) as p: p.step()\n"
        "late = {'rich', 'infergate.runtime.console.console', 'infergate.runtime.console.state',\n"
        "  'infergate.config.redacted', 'infergate.cli.output'}\n"
        "print(sorted(late & set(sys.modules)))"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "[]"


WIDE = Table(
    "backends",
    ("BACKEND", "ENDPOINTS", "CLIENT ERRORS", "P99"),
    [
        ("triton", "grpc://a.example:8001, grpc://b.example:8001, " + "x" * 70, "12", "9.81 ms"),
        ("a-backend-with-a-long-name", "-", "1234567", "-"),
    ],
    frozenset({2, 3}),
)


@pytest.mark.parametrize("columns", [80, 60, 50])
@pytest.mark.parametrize("stream_type", [io.StringIO, Terminal])
def test_tables_are_folded_to_the_width_and_numbers_are_not(
    columns: int, stream_type: type[io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = stream_type()
    print_tables([WIDE], stream)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()).splitlines()
    assert max(map(len, lines)) <= columns
    words = " ".join(lines).split()
    assert {"12", "1234567", "9.81", "CLIENT", "ERRORS"} <= set(words)
    assert "".join(words).count("x") == 72  # 70, and the two in ``example``


def test_rows_in_a_pipe_stay_single_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert len(plain_text(WIDE).splitlines()) == 4


def test_frames_replace_each_other_on_a_terminal_and_follow_each_other_elsewhere() -> None:
    pipe, terminal = io.StringIO(), Terminal()
    for stream in (pipe, terminal):
        show_live(iter([[TABLE], [WIDE]]), stream)
    assert pipe.getvalue().index("routes") < pipe.getvalue().index("backends")
    assert "\x1b[?1049h" in terminal.getvalue()
    assert terminal.getvalue().rstrip().endswith(("\x1b[?1049l", "\x1b[?25h"))
