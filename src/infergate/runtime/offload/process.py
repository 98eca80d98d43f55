"""The helper process: runs one job after another until its input ends.

A job is a function of this package and its arguments; the response is the returned value or the
error. On both pipes a header precedes each pickle.
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
from infergate.runtime.memory import keep_freed_memory, release_freed_memory
from infergate.runtime.offload.ipc_message import HEADER, pack, unpack
from infergate.runtime.offload.mapped_file import MappedFile, round_to_pages

_NICENESS: Final = 5
"""Small requests must not wait for long text, so the serving process has priority."""
IDLE_SECONDS: Final = 2.0
"""Seconds without a job after which a helper releases memory: starting another process would cost
more than keeping this one, but past documents may have left hundreds of MiB."""
_ALIGNMENT_BYTES: Final = 64
"""Alignment of buffers, which lets numpy use them in place."""


def main(fd: int) -> None:
    """Serve the process that started this one and shares the file ``fd``."""
    # A signal to the process group is meant for the serving process, which ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.nice(_NICENESS)
    keep_freed_memory()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # printed text must not be mistaken for a response
    _run_jobs(MappedFile(fd), sys.stdin.buffer, answers)


def _run_jobs(mapped: MappedFile, jobs: BinaryIO, responses: BinaryIO) -> None:
    """Run jobs until the pipe ends, which means that the serving process is gone."""
    while header := _next_header(jobs):
        length, function_length, offset, size, allocated = HEADER.unpack(header)
        block = _ResponseBlock(mapped, offset, size, allocated)
        function = _load_function(jobs.read(function_length))
        pickled = pack(_run_job(function, jobs.read(length - function_length), mapped), block.store)
        responses.write(HEADER.pack(len(pickled), 0, offset, size, block.allocated) + pickled)
        responses.flush()


def _next_header(jobs: BinaryIO) -> bytes:
    """Return the header of the next job, empty at the end. Freed memory is returned to the kernel
    after a while without jobs."""
    # A job is sent whole and only after the previous response, so the reader buffers nothing.
    if not select.select([jobs], [], [], IDLE_SECONDS)[0]:
        release_freed_memory()
    return jobs.read(HEADER.size)


class _ResponseBlock:
    """The block of shared memory for a response: ``size`` bytes at ``offset``, of which the first
    ``allocated`` are allocated."""

    def __init__(self, mapped: MappedFile, offset: int, size: int, allocated: int) -> None:
        self._mapped = mapped
        self._offset = offset
        self._size = size
        self._used = 0
        self.allocated = allocated

    def store(self, buffer: Buffer) -> int | None:
        """Copy ``buffer`` into the block; a ``StoreBuffer``."""
        begin = -(-self._used // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        end = begin + len(buffer)
        if end > self._size:
            return None
        if end > self.allocated:
            allocated = round_to_pages(end)
            self._mapped.allocate(self._offset + self.allocated, self._offset + allocated)
            self.allocated = allocated
        self._used = end
        self._mapped.view(self._offset + begin, len(buffer))[:] = buffer
        return self._offset + begin


@functools.lru_cache
def _load_function(pickled: bytes) -> Callable[..., Any]:
    function: Callable[..., Any] = pickle.loads(pickled)  # noqa: S301 - from the serving process
    return function


def _run_job(
    function: Callable[..., Any], pickled: bytes, mapped: MappedFile
) -> tuple[Any, Exception | None]:
    arguments = unpack(pickled, mapped.view)
    try:
        return function(*arguments), None
    except GatewayError as error:
        return None, error.with_traceback(None)
    except Exception:  # noqa: BLE001 - the serving process logs it
        return None, RuntimeError(traceback.format_exc())
