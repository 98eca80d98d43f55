"""The command line's arguments."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from infergate import __version__
from infergate.access.keys import parse_name
from infergate.cli.asking import parse_admin
from infergate.config.fields import MOST_WORKERS

_DESCRIPTION: Final = """\
A translating gateway for model inference: clients speak one protocol, the servers behind
another, and requests find their server by the model's name.

Without a configuration the embedded demo models are served on 127.0.0.1: HTTP on 8000,
gRPC on 8001, metrics and health on 8002."""

_EPILOG: Final = """\
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

signals:
  SIGTERM, SIGINT   stop: readiness fails, open requests finish, then the process ends
  SIGHUP            read the configuration again; a bad one leaves the old serving

exit codes:
  0   stopped cleanly, or --check found nothing wrong
  2   the configuration or the command line is wrong
  1   anything else, such as an address that is taken, or a gateway that health finds not ready

The keys of routes.yaml are listed in docs/configuration.md."""


SERVE: Final = "serve"
MATRIX: Final = "matrix"
KEY: Final = "key"
TELLING: Final = ("routes", "backends", "health")
"""They ask a gateway that runs."""
_COMMANDS: Final = (SERVE, MATRIX, KEY, *TELLING)
_ADMIN: Final = "http://127.0.0.1:8002"


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


def parse(argv: Sequence[str]) -> Arguments:
    """``argv`` without the program's name. Raises SystemExit as argparse does."""
    parser = _parser()
    given = parser.parse_args(argv)
    if given.command not in _COMMANDS:  # not argparse's choices: they hide a misspelt --option
        parser.error(f"unknown command '{given.command}'; there are: {', '.join(_COMMANDS)}")
    if given.command == MATRIX and (given.config or given.check):
        parser.error("matrix takes no configuration: it makes its own")
    if given.command == KEY and (given.config or given.check):
        parser.error("key takes no configuration: what it prints goes there")
    if given.command != KEY and given.name is not None:
        parser.error("--name is for key")
    if given.command != MATRIX and given.page:
        parser.error("--page is for matrix")
    if given.command in TELLING and (given.config or given.check):
        parser.error(f"{given.command} takes no configuration: it asks the gateway at --admin")
    if given.command not in TELLING and (given.admin is not None or given.json):
        option = "--json" if given.admin is None else "--admin"
        parser.error(f"{option} is for {', '.join(TELLING)}")
    return Arguments(
        given.command,
        given.config,
        given.check,
        given.workers,
        given.log_format,
        given.page,
        given.name,
        given.admin or _ADMIN,
        given.json,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="infergate",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "command",
        nargs="?",
        default=SERVE,
        metavar="|".join(_COMMANDS),
        help="serve (the same as leaving it out); matrix: a table of what is exact, converted "
        "and refused from each protocol to each, found by trying; key: a new API key and its hash; "
        "routes, backends, health: what a running gateway does",
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="the routes.yaml to serve (default: the demo)"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="validate the configuration, print what would be served, and exit",
    )
    parser.add_argument(
        "--workers",
        type=_workers,
        metavar="N|auto",
        help="processes that serve, on the same ports, whatever the configuration says (default: "
        "its workers, 1; auto: as many as processors)",
    )
    parser.add_argument(
        "--log-format",
        choices=["text", "json"],
        help="how the log is written, whatever the configuration says",
    )
    parser.add_argument(
        "--page", action="store_true", help="matrix: write it as docs/fidelity.md has it"
    )
    parser.add_argument(
        "--name", type=_name, help="key: whose it is (default: client), as rules will call it"
    )
    parser.add_argument(
        "--admin",
        type=_admin,
        metavar="URL",
        help=f"routes, backends, health: the gateway's admin listener (default: {_ADMIN})",
    )
    parser.add_argument(
        "--json", action="store_true", help="routes, backends, health: for programs"
    )
    parser.add_argument("--version", action="version", version=f"infergate {__version__}")
    return parser


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
    if text == "auto":
        return min(len(os.sched_getaffinity(0)), MOST_WORKERS)
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= MOST_WORKERS):
        raise argparse.ArgumentTypeError(
            f"'{text}' is neither a number from 1 to {MOST_WORKERS} nor 'auto'"
        )
    return int(text)
