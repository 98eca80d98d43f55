"""``infergate matrix``: tests translation between all pairs of protocols."""

from __future__ import annotations

import asyncio
import time

from infergate.cli.command import Arguments
from infergate.matrix import table
from infergate.matrix.client_kinds import CLIENT_KINDS
from infergate.matrix.findings import Mark
from infergate.matrix.run import ClientResult, run_clients
from infergate.terminal import Progress, print_tables


def run(arguments: Arguments) -> int:
    """Run the matrix and print a summary or, with ``--page``, a Markdown page. Return the exit
    code, which is 1 if any result is wrong."""
    started = time.monotonic()
    results = asyncio.run(_results())
    findings = [finding for result in results for case in result.findings for finding in case]
    if arguments.page:
        print(table.page(results), end="")
    else:
        print_tables([table.summary(results)])
        seconds = time.monotonic() - started
        print(f"\n{table.notes(results)}")
        print(f"\n{len(findings)} results in {seconds:.1f} s; --page prints every pair")
    return int(any(finding.mark is Mark.WRONG for finding in findings))


async def _results() -> list[ClientResult]:
    results: list[ClientResult] = []
    with Progress("all pairs of protocols", len(CLIENT_KINDS)) as progress:
        async for result in run_clients():
            results.append(result)
            progress.step()
    return results
