"""The command line: parses arguments, runs a command and returns its exit code.

``main`` is the entry point. Read ``arguments`` first, then the commands: ``serving`` with
``summary`` (serve and --check), ``output`` with ``admin_client`` (routes, backends, health),
``matrix`` and ``key``. ``reference`` generates the tables of docs/cli.md.

*Rule.* Each command imports only the modules that it needs. Importing the gateway takes a second,
which would delay a readiness probe with ``infergate health``."""

# ruff: noqa: PLC0415 - the rule above

from __future__ import annotations

import sys
from collections.abc import Sequence

from infergate.cli.arguments import KEY, MATRIX, QUERY_COMMANDS, parse


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in ``argv`` and return its exit code.

    Raises SystemExit with code 2 for invalid arguments, and with code 0 after --help and
    --version."""
    arguments = parse(sys.argv[1:] if argv is None else argv)
    if arguments.command == MATRIX:
        from infergate.cli.matrix import show_matrix

        return show_matrix(page=arguments.page)
    if arguments.command == KEY:
        from infergate.cli.key import new_key_text

        print(new_key_text(arguments.name or "client"), end="")
        return 0
    if arguments.command in QUERY_COMMANDS:
        from infergate.cli.output import run_query

        return run_query(arguments.command, arguments.admin, as_json=arguments.json)
    from infergate.cli.serving import serve

    return serve(arguments)
