"""``python -m faults.timed PORT ARGUMENT…`` runs infergate on asyncio's loop and measures its
callbacks.

A connection to PORT receives one line of JSON with the CPU seconds of the most expensive callback
since the last connection."""

from __future__ import annotations

import asyncio
import json
import socket
import statistics
import sys
import threading
import time
from typing import Any

from infergate.assembly import engines
from infergate.cli import main
from infergate.config import check

_CHEAP = 0.03
"""CPU seconds up to which a callback is cheap enough on any machine."""


class Costliest:
    """The most expensive callback so far: its seconds of CPU, and its name."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.what = ""


worst = Costliest()
_run = asyncio.Handle._run


def _timed(self: Any) -> None:
    began = time.thread_time()
    _run(self)
    spent = time.thread_time() - began
    if spent > worst.seconds:
        worst.seconds, worst.what = spent, repr(self)[:500]


def calibrated() -> float:
    """Return the CPU seconds of a fixed piece of work on this machine now: the median of several
    tries. The minimum would be too low: while other processes use the same caches, no callback of
    50 ms runs that fast throughout."""
    tries = []
    for _ in range(9):
        began = time.thread_time()
        total = 0
        for each in range(50_000):
            total += each % 7
        tries.append(time.thread_time() - began)
    return statistics.median(tries)


def serve_reports(listener: socket.socket) -> None:
    """Send each client the most expensive callback since the previous connection."""
    while True:
        accepted, _ = listener.accept()
        with accepted:
            fields = {"seconds": worst.seconds, "what": worst.what, "unit": 0.0}
            worst.seconds = 0.0
            if fields["seconds"] > _CHEAP:
                fields["unit"] = calibrated()
            accepted.sendall(json.dumps(fields).encode() + b"\n")


if __name__ == "__main__":
    asyncio.Handle._run = _timed  # type: ignore[method-assign]
    engines._uvloop_factory = lambda: None  # type: ignore[assignment]  # uvloop cannot be measured
    # The gateway is its own backend, which the configuration check would reject as a loop.
    check._loops = lambda *_: iter(())
    listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    threading.Thread(target=serve_reports, args=(listening,), daemon=True).start()
    sys.exit(main(sys.argv[2:]))
