"""The parser of the command line, and the help texts.

The first argument that is neither an option nor an option's value names the command. Each command
has its own parser, so that ``infergate COMMAND --help`` shows only the options of that command."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from infergate import __version__
from infergate.cli.command import Arguments, Command
from infergate.cli.commands import COMMANDS, EXAMPLES, EXIT_CODES, SERVE, SIGNALS
from infergate.core.compilation import version_text

_DESCRIPTION: Final = """\
A translating gateway for model inference. It accepts requests in several
protocols, routes them by model name, and translates them to the protocol of
the backend.

Without a configuration, it serves embedded demo models on 127.0.0.1: HTTP on
port 8000, gRPC on port 8001, metrics and health on port 8002."""
_WIDTH: Final = 79
_GENERAL_FLAGS: Final = ("-h", "--help", "--version")
_CONFIGURATION_SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})


def parse(argv: Sequence[str]) -> Arguments:
    """Parse ``argv``, which excludes the program name. Raises SystemExit like argparse."""
    rest = list(argv)
    position = _command_position(rest)
    name = SERVE if position is None else rest.pop(position)
    if name not in COMMANDS:
        _overview_parser().error(_unknown_command_message(name))
    command = COMMANDS[name]
    parser = _overview_parser() if position is None else _command_parser(command)
    arguments, unknown = parser.parse_known_intermixed_args(
        rest, Arguments(command=name, operands=())
    )
    if unknown:
        parser.error(_unknown_argument_message(unknown, command))
    if not isinstance(arguments.operands, list | tuple):  # one operand
        arguments.operands = () if arguments.operands is None else (arguments.operands,)
    arguments.operands = tuple(arguments.operands)
    return arguments


def _command_position(argv: Sequence[str]) -> int | None:
    """Return the index of the command's name in ``argv``, or None if ``argv`` has only options and
    their values, or if an unknown option precedes the name."""
    options = [option for command in COMMANDS.values() for option in command.options]
    has_value = dict.fromkeys(_GENERAL_FLAGS, False)
    has_value |= {flag: option.has_value for option in options for flag in option.flags}
    is_value = False
    for position, argument in enumerate(argv):
        if is_value:
            is_value = False
        elif not argument.startswith("-"):
            return position
        elif argument.partition("=")[0] in has_value:
            is_value = has_value.get(argument, False)
        else:
            return None
    return None


def _overview_parser() -> argparse.ArgumentParser:
    """Return the parser of a command line without a command, which runs the default command. Its
    help describes all commands."""
    texts = {command.name: command.help for command in COMMANDS.values()}
    return _make_parser(
        COMMANDS[SERVE],
        "infergate",
        "infergate [command] [options]",
        f"{_DESCRIPTION}\n\n{_format_rows('commands', texts)}\n\n"
        "'infergate COMMAND --help' describes the options of a command.",
        "\n\n".join(
            (_format_rows("signals", SIGNALS), _format_rows("exit codes", EXIT_CODES), EXAMPLES)
        ),
    )


def _command_parser(command: Command) -> argparse.ArgumentParser:
    text = textwrap.fill(f"{command.help[0].upper()}{command.help[1:]}.", _WIDTH)
    program = f"infergate {command.name}"
    return _make_parser(command, program, command.usage, text, command.details)


def _make_parser(
    command: Command, program: str, usage: str, description: str, epilog: str
) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program,
        usage=usage,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action="version", version=f"infergate {version_text(__version__)}"
    )
    if command.operands:
        parser.add_argument(
            "operands",
            nargs=command.operands.count,
            metavar=command.operands.metavar,
            help=command.operands.help,
            choices=command.operands.choices,
        )
    if command.options:
        options = parser.add_argument_group(f"options of {command.name}")
        for option in command.options:
            options.add_argument(*option.flags, help=option.help, **option.argparse_options)
    return parser


def _format_rows(title: str, rows: Mapping[Any, str]) -> str:
    width = max(len(str(name)) for name in rows) + 4
    lines = [
        textwrap.fill(
            meaning, _WIDTH, initial_indent=f"  {name}".ljust(width), subsequent_indent=" " * width
        )
        for name, meaning in rows.items()
    ]
    return "\n".join([f"{title}:", *lines])


def _unknown_command_message(name: str) -> str:
    text = f"unknown command '{name}'; "
    if Path(name).suffix in _CONFIGURATION_SUFFIXES:
        return f"{text}to serve a configuration: infergate --config {name}"
    return text + (_suggestion(name, COMMANDS) or f"expected one of: {', '.join(COMMANDS)}")


def _unknown_argument_message(unknown: Sequence[str], command: Command) -> str:
    text = next((each for each in unknown if each.startswith("-")), unknown[0])
    flag = text.partition("=")[0]
    accepting = [
        other.name
        for other in COMMANDS.values()
        if any(flag in option.flags for option in other.options)
    ]
    if accepting:
        return f"{flag} is not an option of {command.name}, but of {', '.join(accepting)}"
    own = [option.flag for option in command.options]
    suggestion = _suggestion(flag, own) if flag.startswith("-") else ""
    return f"unrecognized argument: {text}; {suggestion or f'see: infergate {command.name} --help'}"


def _suggestion(text: str, expected: Sequence[str] | Mapping[str, Any]) -> str:
    matches = get_close_matches(text, expected, 1)
    return f"did you mean '{matches[0]}'?" if matches else ""
