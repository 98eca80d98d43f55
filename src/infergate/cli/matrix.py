"""``infergate matrix``: every protocol to every protocol, tried here and now."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from infergate.matrix import table
from infergate.matrix.clients import SPEAKERS
from infergate.matrix.findings import Mark
from infergate.matrix.run import Pair, run
from infergate.matrix.site import BACKENDS
from infergate.terminal import Progress


def show(*, page: bool) -> int:
    """Print it row by row, or as a ``page`` once it is done. Returns 1 where anything is wrong."""
    pairs = asyncio.run(_paged() if page else _told())
    return int(any(found.mark is Mark.WRONG for pair in pairs for found in pair.findings))


async def _paged() -> tuple[Pair, ...]:
    pairs = tuple([pair async for pair in _found()])
    print(table.page(pairs), end="")
    return pairs


async def _told() -> tuple[Pair, ...]:
    began = time.monotonic()
    print(table.heading())
    pairs: list[Pair] = []
    async with aclosing(_found()) as found:
        async for pair in found:
            pairs.append(pair)
            if pair.backend == BACKENDS[-1]:
                print(table.row(pairs[-len(BACKENDS) :]), flush=True)
    print(table.notes(pairs))
    tried = sum(len(pair.findings) for pair in pairs)
    print(f"\n{tried} cases in {time.monotonic() - began:.1f} s; by pair and case: --page")
    return tuple(pairs)


async def _found() -> AsyncGenerator[Pair, None]:
    """Every pair as it is done; a terminal shows how many."""
    with Progress("every protocol to every protocol", len(SPEAKERS) * len(BACKENDS)) as progress:
        async with aclosing(run()) as found:
            async for pair in found:
                progress.step()
                yield pair
