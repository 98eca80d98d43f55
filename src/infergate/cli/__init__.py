"""The command line: parses arguments, runs a command and returns its exit code.

``main`` is the entry point. ``commands`` declares the commands with the classes of ``command``;
``arguments`` parses the command line and writes the help texts. The function ``run`` of a module
runs one or more commands. Read ``serving`` with ``summary`` (serve, --check) first, then ``output``
with ``admin_client`` (routes, backends, health). ``reference`` generates the tables of
docs/cli.md."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

from infergate.cli.admin_client import AdminQueryError
from infergate.cli.arguments import parse
from infergate.cli.commands import COMMANDS

_INTERRUPTED: Final = 130
"""The exit code that a shell reports for a program ended by SIGINT."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in ``argv`` and return its exit code. Unless the command handles these cases
    itself, the code is 130 after Ctrl-C, and 1 if a query of the admin listener fails or the reader
    of standard output has closed the pipe.

    Raises SystemExit with code 2 for invalid arguments, and with code 0 after --help and
    --version."""
    arguments = parse(sys.argv[1:] if argv is None else argv)
    try:
        code = COMMANDS[arguments.command].run(arguments)
        sys.stdout.flush()
    except AdminQueryError as error:
        print(f"infergate: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:  # the reader has closed the pipe, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code
