"""The helper process: runs one job after another until its input ends.

A job is a function and its arguments; the response is the returned value or the error. Jobs and
responses are messages (``ipc_message``)."""

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
from infergate.core.limits import MIB
from infergate.runtime.memory import keep_freed_memory, release_freed_memory
from infergate.runtime.offload.ipc_message import HEADER, message_parts, pack, unpack

_NICENESS: Final = 5
"""The niceness of a helper, which gives the serving process priority over helpers."""
_MAX_FREED_BYTES: Final = 128 * MIB
"""Maximum bytes of freed memory that a busy helper keeps. simdjson allocates 15 times the length of
a document."""
IDLE_SECONDS: Final = 2.0
"""Seconds without a job after which a helper releases the memory of earlier documents, which may be
hundreds of MiB."""


def main() -> None:
    """Run the jobs of the parent process."""
    # A signal to the process group is for the serving process, which then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.nice(_NICENESS)
    keep_freed_memory(_MAX_FREED_BYTES)
    responses = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of print must not be mistaken for a response
    _run_jobs(sys.stdin.buffer, responses)


def _run_jobs(jobs: BinaryIO, responses: BinaryIO) -> None:
    """Run jobs until the serving process closes the pipe."""
    while header := _next_header(jobs):
        parts = map(jobs.read, HEADER.unpack(header))
        responses.writelines(message_parts(*pack(_run_job(*parts))))
        responses.flush()


def _next_header(jobs: BinaryIO) -> bytes:
    """Return the header of the next job, or no bytes at the end of the pipe. While idle, release
    freed memory."""
    # A job is sent only after the previous response, so ``jobs`` has no buffered bytes here.
    if not select.select([jobs], [], [], IDLE_SECONDS)[0]:
        release_freed_memory()
    return jobs.read(HEADER.size)


@functools.lru_cache
def _load_function(pickled: bytes) -> Callable[..., Any]:
    function: Callable[..., Any] = pickle.loads(pickled)  # noqa: S301 - from the serving process
    return function


def _run_job(function: bytes, pickled: bytes, buffers: bytes) -> tuple[Any, Exception | None]:
    arguments = unpack(pickled, memoryview(buffers))
    try:
        return _load_function(function)(*arguments), None
    except GatewayError as error:
        return None, error.with_traceback(None)
    except Exception:  # noqa: BLE001 - the serving process logs it
        return None, RuntimeError(traceback.format_exc())
