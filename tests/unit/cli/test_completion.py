"""Completion in a real bash, the scripts of all shells, and the width of help texts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from infergate.cli import main
from infergate.cli.commands import COMMANDS
from infergate.cli.completion import completion_script

COMPLETE = """
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_infergate
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def completions(*words: str) -> set[str]:
    """Return the completions of the last of ``words`` in bash."""
    quoted = " ".join(f"'{word}'" for word in ("infergate", *words))
    script = completion_script("bash", COMMANDS) + COMPLETE.format(words=quoted)
    completed = subprocess.run(
        ["bash", "--norc", "-c", script], capture_output=True, text=True, check=True
    )
    assert completed.stderr == ""
    return set(filter(None, completed.stdout.split("\n")))


def test_bash_completes_commands_options_values_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "routes.yaml").touch()
    assert completions("ch") == {"check"}
    assert set(COMMANDS) <= completions("")
    assert completions("--wor") == {"--workers"}
    assert completions("-c", "ro") == {"routes.yaml"}
    assert completions("-c", "routes.yaml", "--ch") == {"--check"}
    assert completions("check", "") >= {"routes.yaml", "--json"}
    assert completions("--workers", "2", "--log-format", "") == {"text", "json"}
    assert completions("health", "--a") == {"--admin"}
    assert completions("health", "--admin", "") == set()
    assert completions("completion", "") >= {"bash", "zsh", "fish"}
    assert completions("explain", "--code", "tri") == {"tritonclient", "tritonclient-grpc"}


def test_names_of_files_may_have_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my routes.yaml").touch()
    assert completions("check", "my") == {"my routes.yaml"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_script_has_every_command_and_option(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for command in COMMANDS.values():
        assert command.name in script
        for option in command.options:
            flag = option.flag if shell != "fish" else option.flag.lstrip("-")
            assert flag in script


def test_an_unknown_shell_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["completion", "tcsh"])
    assert caught.value.code == 2
    assert "invalid choice: 'tcsh'" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_80_columns(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([*([command] if command else []), "--help"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
