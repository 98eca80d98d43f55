"""docs/cli.md has every command, option, exit code and signal of the parser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from infergate.cli import main, reference
from infergate.cli.arguments import COMMANDS, OPTIONS, Option

PAGE = (Path(__file__).parents[3] / "docs" / reference.PAGE).read_text(encoding="utf-8")


def test_the_page_is_up_to_date() -> None:
    assert reference.update_tables(PAGE) == PAGE, "run: python -m infergate.cli.reference"


def test_the_page_has_every_section_once() -> None:
    assert sorted(re.findall("<!-- generated: (.*) -->", PAGE)) == sorted(reference.TABLES)
    assert PAGE.count("<!-- /generated -->") == len(reference.TABLES)


def test_only_text_between_the_marks_is_generated() -> None:
    page = "by hand\n<!-- generated: exits -->\nold\n<!-- /generated -->\nby hand, too\n"
    created = reference.update_tables(page)
    assert created.startswith("by hand\n<!-- generated: exits -->\n\n| Exit code | When |\n")
    assert created.endswith("|\n\n<!-- /generated -->\nby hand, too\n")
    assert "old" not in created


def test_help_and_page_agree(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    result = " ".join(capsys.readouterr().out.split())
    for command, meaning in COMMANDS.items():
        assert f"{command} {meaning}" in result
    for option in OPTIONS:
        assert f"| `{option.flag}`" in PAGE
        assert option.flag in result


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.flag)
def test_an_option_of_another_command_is_a_mistake(
    option: Option, capsys: pytest.CaptureFixture[str]
) -> None:
    value = {"--workers": "2", "--name": "a", "--config": "x"}.get(option.flag)
    for command in COMMANDS.keys() - set(option.commands):
        value = value or next(iter(option.values), None)
        with pytest.raises(SystemExit) as caught:
            main([command, option.flag, *([value] if value else [])])
        assert caught.value.code == 2
        result = capsys.readouterr().err
        assert f"{option.flag} is for" in result or "takes no configuration" in result
