"""The process beside: does one job after another until its input ends.

A job is a function of a module of this package and its arguments; the answer tells whether it
returned or raised, and what. On both pipes a ``HEAD`` goes before each pickle.
"""

from __future__ import annotations

import functools
import os
import pickle
import select
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO, Final

from infergate.core.errors import GatewayError
from infergate.core.tensor import Buffer
from infergate.runtime.aside.mapped import Mapped, whole_pages
from infergate.runtime.aside.parcel import HEAD, pack, unpack
from infergate.runtime.memory import keep_freed_memory, release_freed_memory

_NICE: Final = 5
"""Whoever asks for little is not to wait for long text: the process that serves goes first."""
IDLE: Final = 2.0
"""Seconds without a job after which a process gives back memory: starting another costs more than
keeping it, but the documents that it read may have left hundreds of MiB."""
_ALIGNED: Final = 64
"""Where each buffer begins, so that numpy reads numbers where they are."""


def main(fd: int) -> None:
    """Serve the process that has started this one and shares the file ``fd`` with it."""
    # A signal to the whole group is for the process that serves, which ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.nice(_NICE)
    keep_freed_memory()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed must not be taken for an answer
    _serve(Mapped(fd), sys.stdin.buffer, answers)


def _serve(mapped: Mapped, jobs: BinaryIO, answers: BinaryIO) -> None:
    """Until ``jobs`` ends: then the process that asks is gone."""
    while head := _next_head(jobs):
        length, known, place, size, had = HEAD.unpack(head)
        block = _Block(mapped, place, size, had)
        function = _function(jobs.read(known))
        pickled = pack(_outcome(function, jobs.read(length - known), mapped), block.lay)
        answers.write(HEAD.pack(len(pickled), 0, place, size, block.had) + pickled)
        answers.flush()


def _next_head(jobs: BinaryIO) -> bytes:
    """The head of the next job; empty at the end. Where none comes for a while, freed memory goes
    back to the kernel."""
    # A job is written whole and only after the answer to the one before: nothing is buffered.
    if not select.select([jobs], [], [], IDLE)[0]:
        release_freed_memory()
    return jobs.read(HEAD.size)


class _Block:
    """Where the answer's long buffers go: ``size`` bytes from ``place``, of which ``had`` have
    memory."""

    def __init__(self, mapped: Mapped, place: int, size: int, had: int) -> None:
        self._mapped = mapped
        self._place = place
        self._size = size
        self._filled = 0
        self.had = had

    def lay(self, buffer: Buffer) -> int | None:
        """See ``parcel.Lay``."""
        begin = -(-self._filled // _ALIGNED) * _ALIGNED
        end = begin + len(buffer)
        if end > self._size:
            return None
        if end > self.had:
            had = whole_pages(end)
            self._mapped.have(self._place + self.had, self._place + had)
            self.had = had
        self._filled = end
        self._mapped.view(self._place + begin, len(buffer))[:] = buffer
        return self._place + begin


@functools.lru_cache
def _function(pickled: bytes) -> Callable[..., Any]:
    found: Callable[..., Any] = pickle.loads(pickled)  # noqa: S301 - from the process that serves
    return found


def _outcome(
    function: Callable[..., Any], pickled: bytes, mapped: Mapped
) -> tuple[Any, Exception | None]:
    arguments = unpack(pickled, mapped.view)
    try:
        return function(*arguments), None
    except GatewayError as error:
        return None, error.with_traceback(None)
    except Exception:  # noqa: BLE001 - told to the process that asked, which logs it
        return None, RuntimeError(traceback.format_exc())
