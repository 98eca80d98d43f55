"""Repeats a query of a running gateway, for ``--watch`` and ``infergate top``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator

from infergate.cli.admin_client import AdminQueryError
from infergate.cli.output import CommandResult
from infergate.terminal import Table, print_tables, show_live


def follow(
    query: Callable[[], CommandResult], interval: float, count: int | None, *, as_json: bool
) -> int:
    """Show the result of ``query`` every ``interval`` seconds until Ctrl-C, or ``count`` times.
    Return the exit code, which is 1 if the first query fails. A later failure is only shown,
    because the gateway may be restarting."""
    results = _repeat(query, interval, count)
    try:
        if as_json:
            for result in results:
                print(json.dumps(result.data, ensure_ascii=False), flush=True)
        elif count is None:
            show_live(result.tables for result in results)
        else:
            for result in results:
                print_tables(result.tables)
                print(flush=True)
    except AdminQueryError as error:
        print(f"infergate: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # the normal end
        pass
    return 0


def _repeat(
    query: Callable[[], CommandResult], interval: float, count: int | None
) -> Iterator[CommandResult]:
    yield query()
    shown = 1
    while count is None or shown < count:
        time.sleep(interval)
        try:
            yield query()
        except AdminQueryError as error:
            yield CommandResult([Table(str(error), (), [])], {"error": str(error)})
        shown += 1
