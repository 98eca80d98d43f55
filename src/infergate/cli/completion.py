"""``infergate completion``: scripts that complete commands, options and values in a shell.

The scripts contain the commands of this version, so a completion does not have to start
infergate."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from infergate.cli.command import Arguments, Command, Option
from infergate.cli.commands import COMMANDS

_GENERAL_FLAGS: Final = ("--help", "--version")
_FILE_METAVARS: Final = frozenset({"FILE", "FOLDER"})

_BASH: Final = """\
# Completes infergate in bash: source <(infergate completion bash)
_infergate() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}}
    local command=serve word index value=
    for ((index = 1; index < COMP_CWORD; index++)); do
        word=${{COMP_WORDS[index]}}
        if [[ -n $value ]]; then
            value=
        elif [[ " {value_flags} " == *" $word "* ]]; then
            value=yes
        elif [[ $word != -* ]]; then
            command=$word
            break
        fi
    done
    local offered= files=
    case "$command $previous" in
{values}
    *)
        case "$command" in
{commands}
        esac
        if [[ $index -eq COMP_CWORD && $current != -* ]]; then
            offered={names}
            files=
        fi
        ;;
    esac
    COMPREPLY=($(compgen -W "$offered" -- "$current"))
    if [[ -n $files ]]; then
        local IFS=$'\\n'
        COMPREPLY+=($(compgen -f -- "$current"))
    fi
}}
complete -o filenames -F _infergate infergate
"""
_ZSH_HEAD: Final = """\
#compdef infergate
# Completes infergate in zsh: source <(infergate completion zsh), after compinit
autoload -U +X bashcompinit && bashcompinit
"""


def run(arguments: Arguments) -> int:
    """Print the script for a shell, and return 0."""
    print(completion_script(arguments.operands[0], COMMANDS), end="")
    return 0


def completion_script(shell: str, commands: Mapping[str, Command]) -> str:
    """Return the script for ``shell``, which is a key of ``SCRIPTS``."""
    return SCRIPTS[shell](commands)


def _takes_files(option: Option) -> bool:
    return bool(_FILE_METAVARS.intersection(option.values))


def _choices(option: Option) -> tuple[str, ...]:
    """Return the literal values of an option, which are lower-case in the documentation."""
    return tuple(
        value for value in option.values if value not in _FILE_METAVARS and value.islower()
    )


def _bash(commands: Mapping[str, Command]) -> str:
    options = [option for command in commands.values() for option in command.options]
    value_flags = sorted({flag for each in options if each.has_value for flag in each.flags})
    return _BASH.format(
        value_flags=" ".join(value_flags),
        values="\n".join(_bash_values(commands)),
        commands="\n".join(_bash_words(commands)),
        names=shlex.quote(" ".join([*commands, *_flags(commands["serve"])])),
    )


def _flags(command: Command) -> list[str]:
    return [*(flag for option in command.options for flag in option.flags), *_GENERAL_FLAGS]


def _bash_values(commands: Mapping[str, Command]) -> Iterator[str]:
    for command in commands.values():
        for option in command.options:
            if not option.has_value:
                continue
            patterns = "|".join(shlex.quote(f"{command.name} {flag}") for flag in option.flags)
            words = f"offered={shlex.quote(' '.join(_choices(option)))}"
            files = " files=yes" if _takes_files(option) else ""
            yield f"    {patterns}) {words}{files} ;;"


def _bash_words(commands: Mapping[str, Command]) -> Iterator[str]:
    for command in commands.values():
        operands = command.operands
        words = [*((operands.choices or ()) if operands else ()), *_flags(command)]
        files = " files=yes" if operands and not operands.choices else ""
        yield f"        {command.name}) offered={shlex.quote(' '.join(words))}{files} ;;"


def _zsh(commands: Mapping[str, Command]) -> str:
    return _ZSH_HEAD + _bash(commands)


def _fish(commands: Mapping[str, Command]) -> str:
    lines = [
        "# Completes infergate in fish: infergate completion fish | source",
        "complete -c infergate -f",
        "complete -c infergate -l help -s h -d 'show the help'",
        "complete -c infergate -l version -d 'show the version'",
    ]
    names = " ".join(commands)
    for command in commands.values():
        condition = f"not __fish_seen_subcommand_from {names}"
        lines.append(
            f"complete -c infergate -n {_fish_text(condition)} -a {command.name} "
            f"-d {_fish_text(command.help)}"
        )
        seen = f"__fish_seen_subcommand_from {command.name}"
        if command.name == "serve":  # the default command
            seen = f"{condition}; or {seen}"
        operands = command.operands
        if operands:
            values = f"-a {_fish_text(' '.join(operands.choices))}" if operands.choices else "-F"
            lines.append(f"complete -c infergate -n {_fish_text(seen)} {values}")
        lines += [
            f"complete -c infergate -n {_fish_text(seen)} {_fish_option(option)}"
            for option in command.options
        ]
    return "\n".join(lines) + "\n"


def _fish_option(option: Option) -> str:
    parts = [
        f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags
    ]
    if option.has_value:
        parts.append("-rF" if _takes_files(option) else "-x")
        if choices := _choices(option):
            parts.append(f"-a {_fish_text(' '.join(choices))}")
    return " ".join([*parts, f"-d {_fish_text(option.help)}"])


def _fish_text(text: str) -> str:
    """Quote ``text`` for fish, where only quotes and backslashes are special within quotes."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


SCRIPTS: Final[Mapping[str, Callable[[Mapping[str, Command]], str]]] = {
    "bash": _bash,
    "zsh": _zsh,
    "fish": _fish,
}
"""The functions that write the script of each shell."""
