"""``infergate matrix``: tests translation between all pairs of protocols."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from infergate.matrix import table
from infergate.matrix.client_kinds import CLIENT_KINDS
from infergate.matrix.findings import Mark
from infergate.matrix.run import ClientResult, run_clients
from infergate.terminal import Progress
from infergate.terminal.columns import output_width


def show_matrix(*, page: bool) -> int:
    """Run the matrix and print each row when it is complete or, with ``page``, a Markdown page at
    the end.

    Return the exit code, which is 1 if any result is wrong, and otherwise 0.
    """
    results = asyncio.run(_print_page() if page else _print_rows())
    marks = (finding.mark for result in results for case in result.findings for finding in case)
    return int(Mark.WRONG in marks)


async def _print_page() -> list[ClientResult]:
    results = [result async for result in _results()]
    print(table.page(results), end="")
    return results


async def _print_rows() -> list[ClientResult]:
    started = time.monotonic()
    width = output_width(sys.stdout)
    print(table.heading(width))
    results: list[ClientResult] = []
    async with aclosing(_results()) as finished:
        async for result in finished:
            results.append(result)
            print(table.row(result, width), flush=True)
    print(table.notes(results))
    cases = sum(len(case) for result in results for case in result.findings)
    print(
        f"\n{cases} cases in {time.monotonic() - started:.1f} s; for details of each pair: --page"
    )
    return results


async def _results() -> AsyncGenerator[ClientResult, None]:
    with Progress("all pairs of protocols", len(CLIENT_KINDS)) as progress:
        async with aclosing(run_clients()) as results:
            async for result in results:
                progress.step()
                yield result
