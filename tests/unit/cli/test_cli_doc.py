"""docs/cli.md and the help texts agree with the parser; misplaced options are rejected."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from infergate.cli import main, reference
from infergate.cli.command import Command, Option
from infergate.cli.commands import COMMANDS

PAGE = (Path(__file__).parents[3] / "docs" / reference.PAGE).read_text(encoding="utf-8")


def test_the_page_is_up_to_date() -> None:
    assert reference.update_tables(PAGE) == PAGE, "run: python -m infergate.cli.reference"


def test_the_page_has_every_section_once() -> None:
    assert sorted(re.findall("<!-- generated: (.*) -->", PAGE)) == sorted(reference.TABLES)
    assert PAGE.count("<!-- /generated -->") == len(reference.TABLES)


def test_update_tables_keeps_text_outside_the_markers() -> None:
    page = "by hand\n<!-- generated: exits -->\nold\n<!-- /generated -->\nby hand, too\n"
    updated = reference.update_tables(page)
    assert updated.startswith("by hand\n<!-- generated: exits -->\n\n| Exit code | When |\n")
    assert updated.endswith("|\n\n<!-- /generated -->\nby hand, too\n")
    assert "old" not in updated


def help_text(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as caught:
        main([*argv, "--help"])
    assert caught.value.code == 0
    return capsys.readouterr().out


def test_help_describes_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(help_text([], capsys).split())
    for command in COMMANDS.values():
        assert f"{command.name} {command.help}" in text


@pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda command: command.name)
def test_the_help_of_a_command_and_the_page_have_its_options(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    output = help_text([command.name], capsys)
    text = " ".join(output.split())
    assert text.startswith(f"usage: {command.usage} ")
    assert command.help[1:] in text
    assert f"| `{command.usage.split(' ', 1)[1].removesuffix(' [options]')}` |" in PAGE
    assert all(f"| `{option.flags[0]}" in PAGE for option in command.options)
    described = set(re.findall(r"^  (-[-\w]+)", output, re.MULTILINE)) - {"-h", "--version"}
    assert described == {option.flags[0] for option in command.options}


OPTIONS = {option.flag: option for command in COMMANDS.values() for option in command.options}


@pytest.mark.parametrize("option", OPTIONS.values(), ids=lambda option: option.flag)
def test_an_option_of_another_command_is_rejected(
    option: Option, capsys: pytest.CaptureFixture[str]
) -> None:
    value = ["1"] if option.has_value else []
    for command in COMMANDS.values():
        if option.flag in {each.flag for each in command.options}:
            continue
        choices = command.operands.choices if command.operands else None
        operands = [choices[0] if choices else "x"] if command.operands else []
        with pytest.raises(SystemExit) as caught:
            main([command.name, *operands, option.flag, *value])
        assert caught.value.code == 2
        assert f"{option.flag} is not an option of {command.name}" in capsys.readouterr().err
