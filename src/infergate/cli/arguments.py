"""The commands, options and help texts of the command line, and their parser."""

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
from infergate.cli.admin_client import parse_admin_url
from infergate.core.compilation import version_text

SERVE: Final = "serve"
REST_PROXY: Final = "rest-proxy"
MATRIX: Final = "matrix"
KEY: Final = "key"
QUERY_COMMANDS: Final = ("routes", "backends", "health")
"""Commands that query a running gateway through its admin listener."""

COMMANDS: Final[Mapping[str, str]] = {
    SERVE: "run the gateway with a configuration, or with the demo models; the default command",
    REST_PROXY: "serve V2 REST to the clients of one V2 gRPC server, configured by the environment "
    "variables of kserve/rest-proxy",
    MATRIX: "test translation between all pairs of protocols, and print a table of what is exact, "
    "converted or refused",
    KEY: "generate an API key, and print it with its hash for the configuration",
    "routes": "show the routes of a running gateway: backend, requests, errors and latencies",
    "backends": "show the backends of a running gateway: traffic, retries, queue and endpoint "
    "health",
    "health": "show whether a running gateway is ready, with its listeners and endpoints",
}
"""The help text of each command."""
_ADMIN: Final = "http://127.0.0.1:8002"

SIGNALS: Final[Mapping[str, str]] = {
    "SIGTERM, SIGINT": "graceful shutdown: readiness fails, requests in progress finish, then the "
    "process exits; a second signal exits at once",
    "SIGHUP": "reload the configuration; if it is invalid, the current one stays active",
}
EXIT_CODES: Final[Mapping[int, str]] = {
    0: "success: clean shutdown, or for --check a valid configuration",
    2: "invalid configuration or command line",
    1: "any other failure: an address in use, an unreachable admin listener, a gateway that is "
    "not ready (health), a wrong result (matrix)",
}
"""The exit codes and their meanings."""

_DESCRIPTION: Final = """\
A translating gateway for model inference. It accepts requests in several protocols, routes
them by model name, and translates them to the protocol of the backend.

Without a configuration, it serves embedded demo models on 127.0.0.1: HTTP on port 8000, gRPC
on port 8001, metrics and health on port 8002."""

_EXAMPLES: Final = """\
examples:
  infergate                                serve the demo models
  infergate --config routes.yaml           serve the configuration in routes.yaml
  infergate --config routes.yaml --workers auto
                                           the same, with one worker process per CPU
  infergate --config routes.yaml --check   validate routes.yaml and print a summary
  infergate matrix                         test translation between all pairs of protocols
  infergate key --name ci                  generate an API key and its hash
  infergate health --admin http://127.0.0.1:8002
                                           check a running gateway; also: routes, backends

The keys of routes.yaml are documented in docs/configuration.md, this command in docs/cli.md."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """The parsed command line. ``workers`` and ``log_format`` override the configuration if they
    are not None."""

    command: str
    config: Path | None
    check: bool
    workers: int | None
    log_format: str | None
    page: bool
    name: str | None
    """The name of a new key's owner."""
    admin: str
    """The URL of the admin listener to query."""
    json: bool


@dataclass(frozen=True, slots=True)
class Option:
    """A command-line option. ``argparse_options`` are passed on to ``add_argument``."""

    flag: str
    commands: tuple[str, ...]
    """The commands that accept the option."""
    help: str
    argparse_options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The attribute of the option's value in argparse's namespace."""
        return self.flag[2:].replace("-", "_")

    @property
    def values(self) -> Sequence[str]:
        """The possible values as shown in the documentation. A switch has no values."""
        if "choices" in self.argparse_options:
            return tuple(self.argparse_options["choices"])
        return (
            str(self.argparse_options["metavar"]).split("|")
            if "metavar" in self.argparse_options
            else ()
        )


def parse(argv: Sequence[str]) -> Arguments:
    """Parse ``argv``, which excludes the program name. Raises SystemExit like argparse."""
    parser = _parser()
    given = parser.parse_args(argv)
    # With argparse's choices, a misspelt --option would be reported as a command.
    if given.command not in COMMANDS:
        parser.error(f"unknown command '{given.command}'; there are: {', '.join(COMMANDS)}")
    for option in OPTIONS:
        if given.command not in option.commands and getattr(given, option.name):
            parser.error(_wrong_command_message(option, given.command))
    values = {option.name: getattr(given, option.name) for option in OPTIONS}
    return Arguments(given.command, **values | {"admin": given.admin or _ADMIN})


def _wrong_command_message(option: Option, command: str) -> str:
    if option.flag not in {"--config", "--check"}:
        return f"{option.flag} is for {', '.join(option.commands)}"
    reasons = {
        MATRIX: "it creates its own",
        KEY: "its output is to be copied into one",
        REST_PROXY: "environment variables configure it",
    }
    reason = reasons.get(command, "it queries the gateway at --admin")
    return f"{command} takes no configuration: {reason}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="infergate",
        usage="infergate [command] [options]",
        description=f"{_DESCRIPTION}\n\n{_format_rows('commands', COMMANDS)}",
        epilog="\n\n".join(
            (_format_rows("signals", SIGNALS), _format_rows("exit codes", EXIT_CODES), _EXAMPLES)
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("command", nargs="?", default=SERVE, help=argparse.SUPPRESS)
    parser.add_argument(
        "--version", action="version", version=f"infergate {version_text(__version__)}"
    )
    groups: dict[tuple[str, ...], Any] = {}
    for option in OPTIONS:
        if option.commands not in groups:
            title = f"options of {', '.join(option.commands)}"
            groups[option.commands] = parser.add_argument_group(title)
        groups[option.commands].add_argument(
            option.flag, help=option.help, **option.argparse_options
        )
    return parser


def _format_rows(title: str, rows: Mapping[Any, str]) -> str:
    width = max(len(str(name)) for name in rows) + 4
    lines = [
        textwrap.fill(
            meaning, 88, initial_indent=f"  {name}".ljust(width), subsequent_indent=" " * width
        )
        for name, meaning in rows.items()
    ]
    return "\n".join([f"{title}:", *lines])


def _owner_name(text: str) -> str:
    try:
        return parse_name(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _admin_url(text: str) -> str:
    try:
        return parse_admin_url(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _workers(text: str) -> int:
    from infergate.config.fields import MAX_WORKERS  # noqa: PLC0415 - only needed by serve

    if text == "auto":
        return min(len(os.sched_getaffinity(0)), MAX_WORKERS)
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= MAX_WORKERS):
        raise argparse.ArgumentTypeError(
            f"'{text}' is neither a number from 1 to {MAX_WORKERS} nor 'auto'"
        )
    return int(text)


_SWITCH: Final = {"action": "store_true"}
OPTIONS: Final[Sequence[Option]] = (
    Option(
        "--config",
        (SERVE,),
        "path of routes.yaml (default: the demo models)",
        {"type": Path, "metavar": "FILE"},
    ),
    Option(
        "--check",
        (SERVE, REST_PROXY),
        "validate the configuration, print a summary, and exit",
        _SWITCH,
    ),
    Option(
        "--workers",
        (SERVE, REST_PROXY),
        "number of worker processes that serve the same ports; auto: one per CPU; takes precedence "
        "over workers in the configuration",
        {"type": _workers, "metavar": "N|auto"},
    ),
    Option(
        "--log-format",
        (SERVE, REST_PROXY),
        "log format; takes precedence over log.format in the configuration",
        {"choices": ("text", "json")},
    ),
    Option(
        "--page", (MATRIX,), "print the complete page in Markdown, as in docs/fidelity.md", _SWITCH
    ),
    Option(
        "--name",
        (KEY,),
        "name of the key's owner, to which access rules refer (default: client)",
        {"type": _owner_name, "metavar": "NAME"},
    ),
    Option(
        "--admin",
        QUERY_COMMANDS,
        f"URL of the gateway's admin listener (default: {_ADMIN})",
        {"type": _admin_url, "metavar": "URL"},
    ),
    Option("--json", QUERY_COMMANDS, "print JSON", _SWITCH),
)
"""All options except --version and --help. Each flag occurs once."""
