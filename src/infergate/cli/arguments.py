"""The command line's arguments."""

from __future__ import annotations

import argparse
import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from infergate import __version__
from infergate.access.keys import parse_name
from infergate.cli.asking import parse_admin

SERVE: Final = "serve"
MATRIX: Final = "matrix"
KEY: Final = "key"
TELLING: Final = ("routes", "backends", "health")
"""They ask a gateway that runs."""

COMMANDS: Final[Mapping[str, str]] = {
    SERVE: "serve what the configuration says, or the demo; the same as leaving the command out",
    MATRIX: "a table of what is exact, converted and refused from each protocol to each, found by "
    "trying, here and now",
    KEY: "a new API key, and its hash for the configuration",
    "routes": "of a running gateway: each route with its backend, requests, errors and times",
    "backends": "of a running gateway: the same by backend, and each endpoint's health",
    "health": "of a running gateway: whether it is ready, its listeners and endpoints",
}
"""What each does."""
_ADMIN: Final = "http://127.0.0.1:8002"

SIGNALS: Final[Mapping[str, str]] = {
    "SIGTERM, SIGINT": "stop: readiness fails, open requests finish, then the process ends; a "
    "second one ends it at once",
    "SIGHUP": "read the configuration again; a bad one leaves the old serving",
}
EXITS: Final[Mapping[int, str]] = {
    0: "stopped cleanly, or done; of --check: nothing is wrong",
    2: "the configuration or the command line is wrong",
    1: "anything else: an address that is taken, a gateway that cannot be asked, or that health "
    "finds not ready, a matrix that found something wrong",
}
"""The exit codes."""

_DESCRIPTION: Final = """\
A translating gateway for model inference: clients speak one protocol, the servers behind
another, and requests find their server by the model's name.

Without a configuration the embedded demo models are served on 127.0.0.1: HTTP on 8000,
gRPC on 8001, metrics and health on 8002."""

_EXAMPLES: Final = """\
examples:
  infergate                                serve the demo models, and be told what to try
  infergate --config routes.yaml           serve what routes.yaml says
  infergate --config routes.yaml --workers auto
                                           the same, by a process for each processor
  infergate --config routes.yaml --check   tell what it says, or every mistake in it
  infergate matrix                         try every protocol to every protocol, here and now
  infergate key --name ci                  a new API key, and its hash for the configuration
  infergate health --admin http://127.0.0.1:8002
                                           how a running gateway is; also: routes, backends

The keys of routes.yaml are listed in docs/configuration.md, all of this in docs/cli.md."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """What the command line asks for. ``workers`` and ``log_format`` None: as the configuration
    says."""

    command: str
    config: Path | None
    check: bool
    workers: int | None
    log_format: str | None
    page: bool
    name: str | None
    """Of a new key's owner."""
    admin: str
    """The URL of the admin port that is asked."""
    json: bool


@dataclass(frozen=True, slots=True)
class Option:
    """One option. ``told`` are the rest of what argparse takes."""

    flag: str
    commands: tuple[str, ...]
    """That it belongs to."""
    help: str
    told: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Of its value among those that argparse has read."""
        return self.flag[2:].replace("-", "_")

    @property
    def values(self) -> Sequence[str]:
        """What may stand behind it, as people are told; none: nothing."""
        if "choices" in self.told:
            return tuple(self.told["choices"])
        return str(self.told["metavar"]).split("|") if "metavar" in self.told else ()


def parse(argv: Sequence[str]) -> Arguments:
    """``argv`` without the program's name. Raises SystemExit as argparse does."""
    parser = _parser()
    given = parser.parse_args(argv)
    if given.command not in COMMANDS:  # not argparse's choices: they hide a misspelt --option
        parser.error(f"unknown command '{given.command}'; there are: {', '.join(COMMANDS)}")
    for option in OPTIONS:
        if given.command not in option.commands and getattr(given, option.name):
            parser.error(_misplaced(option, given.command))
    values = {option.name: getattr(given, option.name) for option in OPTIONS}
    return Arguments(given.command, **values | {"admin": given.admin or _ADMIN})


def _misplaced(option: Option, command: str) -> str:
    if option.flag not in {"--config", "--check"}:
        return f"{option.flag} is for {', '.join(option.commands)}"
    reasons = {MATRIX: "it makes its own", KEY: "what it prints goes there"}
    reason = reasons.get(command, "it asks the gateway at --admin")
    return f"{command} takes no configuration: {reason}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="infergate",
        usage="infergate [command] [options]",
        description=f"{_DESCRIPTION}\n\n{_listed('commands', COMMANDS)}",
        epilog="\n\n".join((_listed("signals", SIGNALS), _listed("exit codes", EXITS), _EXAMPLES)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("command", nargs="?", default=SERVE, help=argparse.SUPPRESS)
    parser.add_argument("--version", action="version", version=f"infergate {__version__}")
    groups: dict[tuple[str, ...], Any] = {}
    for option in OPTIONS:
        if option.commands not in groups:
            title = f"options of {', '.join(option.commands)}"
            groups[option.commands] = parser.add_argument_group(title)
        groups[option.commands].add_argument(option.flag, help=option.help, **option.told)
    return parser


def _listed(title: str, rows: Mapping[Any, str]) -> str:
    """``rows`` in two columns, in lines for a terminal."""
    width = max(len(str(name)) for name in rows) + 4
    lines = [
        textwrap.fill(
            meaning, 88, initial_indent=f"  {name}".ljust(width), subsequent_indent=" " * width
        )
        for name, meaning in rows.items()
    ]
    return "\n".join([f"{title}:", *lines])


def _name(text: str) -> str:
    try:
        return parse_name(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _admin(text: str) -> str:
    try:
        return parse_admin(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _workers(text: str) -> int:
    from infergate.config.fields import MOST_WORKERS  # noqa: PLC0415 - only who serves needs it

    if text == "auto":
        return min(len(os.sched_getaffinity(0)), MOST_WORKERS)
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= MOST_WORKERS):
        raise argparse.ArgumentTypeError(
            f"'{text}' is neither a number from 1 to {MOST_WORKERS} nor 'auto'"
        )
    return int(text)


_SWITCH: Final = {"action": "store_true"}
OPTIONS: Final[Sequence[Option]] = (
    Option(
        "--config",
        (SERVE,),
        "the routes.yaml to serve (default: the demo)",
        {"type": Path, "metavar": "FILE"},
    ),
    Option(
        "--check",
        (SERVE,),
        "validate the configuration, print what would be served, and exit",
        _SWITCH,
    ),
    Option(
        "--workers",
        (SERVE,),
        "processes that serve, on the same ports, whatever the configuration says (default: its "
        "workers, 1; auto: as many as processors)",
        {"type": _workers, "metavar": "N|auto"},
    ),
    Option(
        "--log-format",
        (SERVE,),
        "how the log is written, whatever the configuration says",
        {"choices": ("text", "json")},
    ),
    Option("--page", (MATRIX,), "write it as docs/fidelity.md has it", _SWITCH),
    Option(
        "--name",
        (KEY,),
        "whose key it is (default: client), as rules will call it",
        {"type": _name, "metavar": "NAME"},
    ),
    Option(
        "--admin",
        TELLING,
        f"the gateway's admin listener (default: {_ADMIN})",
        {"type": _admin, "metavar": "URL"},
    ),
    Option("--json", TELLING, "print it for programs", _SWITCH),
)
"""All but --version and --help. None is an option of two groups of commands."""
