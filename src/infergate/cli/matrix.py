"""``infergate matrix``: every protocol to every protocol, tried here and now."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing

from infergate.matrix import table
from infergate.matrix.findings import Mark
from infergate.matrix.run import Pair, matrix, run
from infergate.matrix.site import BACKENDS


def show(*, page: bool) -> int:
    """Print it row by row, or as a ``page`` once it is done. Returns 1 where anything is wrong."""
    pairs = asyncio.run(_paged() if page else _told())
    return int(any(found.mark is Mark.WRONG for pair in pairs for found in pair.findings))


async def _paged() -> tuple[Pair, ...]:
    pairs = await matrix()
    print(table.page(pairs), end="")
    return pairs


async def _told() -> tuple[Pair, ...]:
    began = time.monotonic()
    print(table.heading())
    pairs: list[Pair] = []
    async with aclosing(run()) as found:
        async for pair in found:
            pairs.append(pair)
            if pair.backend == BACKENDS[-1]:
                print(table.row(pairs[-len(BACKENDS) :]), flush=True)
    print(table.notes(pairs))
    tried = sum(len(pair.findings) for pair in pairs)
    print(f"\n{tried} cases in {time.monotonic() - began:.1f} s; by pair and case: --page")
    return tuple(pairs)
