"""Both ends of a channel between processes, in one process."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from infergate.runtime.workers.channel import (
    ChannelClosedError,
    RequestFailedError,
    WorkerChannel,
    receive_descriptors,
    send_descriptors,
)


async def handle(request: Any) -> Any:
    match request:
        case "echo", value:
            return value
        case "wait":
            await asyncio.Event().wait()
        case "cannot":
            raise RequestFailedError("it is not possible")
    raise ZeroDivisionError


@asynccontextmanager
async def channel_pair() -> AsyncIterator[tuple[WorkerChannel, WorkerChannel]]:
    loop = asyncio.get_running_loop()
    ends = []
    for each in socket.socketpair():
        _, channel = await loop.create_unix_connection(lambda: WorkerChannel(handle), sock=each)
        ends.append(channel)
    try:
        yield ends[0], ends[1]
    finally:
        for end in ends:
            end.close()
            await end.closed


async def test_both_ends_send_concurrent_requests() -> None:
    async with channel_pair() as (first, second), asyncio.timeout(20):
        waiting = asyncio.ensure_future(first.request("wait"))
        large = b"x" * 3_000_000
        assert await first.request(("echo", large)) == large
        requests = [first.request(("echo", each)) for each in range(50)]
        requests += [second.request(("echo", each)) for each in range(50)]
        assert await asyncio.gather(*requests) == [*range(50), *range(50)]
        assert not waiting.done()
        waiting.cancel()


async def test_failures_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    async with channel_pair() as (first, _), asyncio.timeout(20):
        with pytest.raises(RequestFailedError, match="it is not possible"):
            await first.request("cannot")
        assert not caplog.records
        with pytest.raises(RequestFailedError, match="see the log"):
            await first.request("a bug")
        assert "ZeroDivisionError" in caplog.text
        assert await first.request(("echo", 1)) == 1


async def test_closing_one_end_fails_the_requests_of_the_other() -> None:
    async with channel_pair() as (first, second), asyncio.timeout(20):
        pending = asyncio.ensure_future(first.request("wait"))
        await first.request(("echo", 1))
        second.close()
        with pytest.raises(ChannelClosedError):
            await pending
        with pytest.raises(ChannelClosedError):
            await first.request(("echo", 1))


def test_descriptors_arrive_in_order() -> None:
    files = [os.memfd_create(f"file-{number}") for number in range(450)]
    sender, receiver = socket.socketpair()
    with sender, receiver:
        send_descriptors(sender, files)
        fds = receive_descriptors(receiver, len(files))
        try:
            names = [str(Path(f"/proc/self/fd/{each}").readlink()).split(":")[1] for each in fds]
            assert [name.split()[0] for name in names] == [f"file-{n}" for n in range(450)]
            assert not any(map(os.get_inheritable, fds))
        finally:
            for each in (*files, *fds):
                os.close(each)
        sender.close()
        with pytest.raises(ConnectionError):
            receive_descriptors(receiver, 1)
