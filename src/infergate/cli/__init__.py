"""argv to exit codes: 0 stopped cleanly, 2 the configuration is wrong, 1 anything else.

*Rule.* A command loads what it needs and no more: a gateway is a second of imports, which who asks
one whether it is ready need not wait for.
"""

# ruff: noqa: PLC0415 - the rule

from __future__ import annotations

import sys
from collections.abc import Sequence

from infergate.cli.arguments import KEY, MATRIX, TELLING, parse


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. argparse itself exits with 2, or 0 after --help and --version."""
    arguments = parse(sys.argv[1:] if argv is None else argv)
    if arguments.command == MATRIX:
        from infergate.cli.matrix import show

        return show(page=arguments.page)
    if arguments.command == KEY:
        from infergate.cli.key import key

        print(key(arguments.name or "client"), end="")
        return 0
    if arguments.command in TELLING:
        from infergate.cli.telling import tell

        return tell(arguments.command, arguments.admin, as_json=arguments.json)
    from infergate.cli.serving import serve

    return serve(arguments)
