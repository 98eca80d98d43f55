"""``infergate matrix``: tests translation between all pairs of protocols."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from infergate.matrix import table
from infergate.matrix.client_kinds import CLIENT_KINDS
from infergate.matrix.findings import Mark
from infergate.matrix.gateways import BACKENDS
from infergate.matrix.run import Pair, run_pairs
from infergate.terminal import Progress


def show_matrix(*, page: bool) -> int:
    """Run the matrix and print it row by row, or as a Markdown ``page`` at the end.

    Return the exit code: 1 if any result is wrong, else 0.
    """
    pairs = asyncio.run(_print_page() if page else _print_rows())
    return int(any(finding.mark is Mark.WRONG for pair in pairs for finding in pair.findings))


async def _print_page() -> tuple[Pair, ...]:
    pairs = tuple([pair async for pair in _results()])
    print(table.page(pairs), end="")
    return pairs


async def _print_rows() -> tuple[Pair, ...]:
    started = time.monotonic()
    print(table.heading())
    pairs: list[Pair] = []
    async with aclosing(_results()) as results:
        async for pair in results:
            pairs.append(pair)
            if pair.backend == BACKENDS[-1]:
                print(table.row(pairs[-len(BACKENDS) :]), flush=True)
    print(table.notes(pairs))
    cases = sum(len(pair.findings) for pair in pairs)
    print(
        f"\n{cases} cases in {time.monotonic() - started:.1f} s; for details of each pair: --page"
    )
    return tuple(pairs)


async def _results() -> AsyncGenerator[Pair, None]:
    """Yield the pairs as they finish, with a progress bar on a terminal."""
    with Progress("all pairs of protocols", len(CLIENT_KINDS) * len(BACKENDS)) as progress:
        async with aclosing(run_pairs()) as results:
            async for pair in results:
                progress.step()
                yield pair
