"""The process beside: does one job after another until its input ends.

A job is a function of a module of this package and its arguments; the answer tells whether it
returned or raised, and what. On both pipes a ``HEAD`` goes before each pickle.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from typing import Any, BinaryIO

from infergate.core.errors import GatewayError
from infergate.runtime.aside.parcel import HEAD, Arena, pack, unpack
from infergate.runtime.memory import keep_freed_memory


def main(fd: int) -> None:
    """Serve the process that has started this one and shares the arena's file ``fd`` with it."""
    # A signal to the whole group is for the process that serves, which ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    keep_freed_memory()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed must not be taken for an answer
    _serve(Arena(fd), sys.stdin.buffer, answers)


def _serve(arena: Arena, jobs: BinaryIO, answers: BinaryIO) -> None:
    """Until ``jobs`` ends: then the process that asks is gone."""
    while head := jobs.read(HEAD.size):
        length, size, taken = HEAD.unpack(head)
        arena.follow(size)
        pickled, end = pack(_outcome(jobs.read(length), arena), arena, taken)
        answers.write(HEAD.pack(len(pickled), arena.size, end) + pickled)
        answers.flush()


def _outcome(pickled: bytes, arena: Arena) -> tuple[Any, Exception | None]:
    function, arguments = unpack(pickled, arena, lambda view: view)
    try:
        return function(*arguments), None
    except GatewayError as error:
        return None, error.with_traceback(None)
    except Exception:  # noqa: BLE001 - told to the process that asked, which logs it
        return None, RuntimeError(traceback.format_exc())
