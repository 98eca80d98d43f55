"""Long gRPC messages are received through a buffer that all connections share."""

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator

import numpy as np
import pytest
import uvloop
from transport_kit import connected_pair

from infergate.core.limits import MIB, Limits
from infergate.core.wire import RpcRequest, join_parts
from infergate.transport.grpc import connection
from infergate.transport.grpc.connection import Http2Protocol, LargeReads
from waiting import until

LIMITS = Limits(body=64 * MIB, idle_body_time=5)
LARGE = np.arange(MIB, dtype=">u4").tobytes()  # 4 MiB


Run = Callable[[Coroutine[None, None, None]], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner.run


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the reads into the shared buffer, which is zeroed after each read."""
    sizes: list[int] = []
    buffer_updated = LargeReads.buffer_updated

    def record(self: LargeReads, nbytes: int) -> None:
        sizes.append(nbytes)
        buffer_updated(self, nbytes)
        self._buffer[:nbytes] = bytes(nbytes)

    monkeypatch.setattr(LargeReads, "buffer_updated", record)
    return sizes


def request(message: bytes, method: str = "Echo") -> RpcRequest:
    return RpcRequest(f"/t.T/{method}", (message,))


def test_long_messages_between_short_ones_are_complete(run: Run, reads: list[int]) -> None:
    """The server and the client share the buffer, because they run in one thread."""

    async def scenario() -> None:
        async with connected_pair(LIMITS) as (harness, upstream):
            for size in (1, len(LARGE), 2, 3, len(LARGE), 100_000, 4):
                response = await upstream.exchange(request(LARGE[:size]), harness.endpoint, 20)
                assert join_parts(response.message) == LARGE[:size]
            assert sum(reads) > 2 * len(LARGE)
            reads.clear()
            for _ in range(5):  # the first response ends the large reads
                await upstream.exchange(request(b"x"), harness.endpoint, 20)
            assert len(reads) <= 2

    run(scenario())


def test_closed_connections_are_freed_without_the_garbage_collector(run: Run) -> None:
    async def scenario() -> None:
        async with connected_pair(LIMITS) as (harness, upstream):
            for size in (len(LARGE), 1, 1):
                await upstream.exchange(request(LARGE[:size]), harness.endpoint, 20)
        await asyncio.sleep(0)

    gc.collect()
    gc.disable()
    try:
        run(scenario())
        assert not [each for each in gc.get_objects() if isinstance(each, Http2Protocol)]
    finally:
        gc.enable()


def test_concurrent_long_messages_are_complete(run: Run, reads: list[int]) -> None:
    async def scenario() -> None:
        async with connected_pair(LIMITS) as (harness, upstream):
            sizes = [len(LARGE) - 1000 * number for number in range(6)] + [10, 20, 30]
            responses = await asyncio.gather(
                *(upstream.exchange(request(LARGE[-size:]), harness.endpoint, 20) for size in sizes)
            )
            for size, response in zip(sizes, responses, strict=True):
                assert join_parts(response.message) == LARGE[-size:]
            assert reads

    run(scenario())


def test_closing_the_connection_cancels_a_long_request(run: Run, reads: list[int]) -> None:
    """Closing cancels and releases the request in progress, as during short reads."""

    async def scenario() -> None:
        async with connected_pair(LIMITS) as (harness, upstream):
            await upstream.exchange(request(LARGE), harness.endpoint, 20)
            waiting = asyncio.create_task(
                upstream.exchange(request(LARGE, "Wait"), harness.endpoint, 20)
            )
            await harness.app.entered.wait()
            assert reads
            await upstream.close()
            await harness.app.cancelled.wait()
            with pytest.raises(Exception, match="closed the connection"):
                await waiting
            await until(lambda: harness.admission.requests == 0)

    run(scenario())


def test_writing_can_be_paused_during_large_reads(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``pause_writing`` reaches a connection that receives into the shared buffer."""

    async def scenario() -> None:
        async with connected_pair(LIMITS) as (harness, upstream):
            paused: list[bool] = []
            pause = LargeReads.pause_writing

            def record(self: LargeReads) -> None:
                paused.append(True)
                pause(self)

            monkeypatch.setattr(LargeReads, "pause_writing", record)
            monkeypatch.setattr(connection, "_SMALL_READ", 0)
            responses = await asyncio.gather(
                *(upstream.exchange(request(LARGE), harness.endpoint, 20) for _ in range(8))
            )
            assert all(join_parts(response.message) == LARGE for response in responses)
            assert paused

    run(scenario())
