"""A concurrency limit in front of an upstream that counts concurrent exchanges."""

import asyncio

import pytest

from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.wire import HttpRequest, HttpResponse
from infergate.transport.base import Endpoint
from infergate.transport.client.concurrency_limit import LimitedUpstream

FIRST, SECOND = (Endpoint("127.0.0.1", port) for port in (1, 2))
POST = HttpRequest("POST", "/")


class RecordingUpstream:
    """Responds when ``release`` is set, or fails if the path is ``/fail``."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.active = dict.fromkeys((FIRST, SECOND), 0)
        self.max_active = dict.fromkeys((FIRST, SECOND), 0)
        self.order: list[str] = []
        self.is_closed = False

    async def exchange(self, wire: HttpRequest, endpoint: Endpoint, timeout: float) -> HttpResponse:
        self.order.append(wire.path)
        self.active[endpoint] += 1
        self.max_active[endpoint] = max(self.max_active[endpoint], self.active[endpoint])
        try:
            await asyncio.wait_for(self.release.wait(), timeout)
            if wire.path == "/fail":
                raise GatewayError(Kind.CONNECT, "no")
            return HttpResponse(200)
        finally:
            self.active[endpoint] -= 1

    async def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("limit", [1, 3])
async def test_exchanges_with_each_endpoint_are_limited(limit: int) -> None:
    upstream = RecordingUpstream()
    limited = LimitedUpstream(upstream, limit)
    exchanges = [
        asyncio.ensure_future(limited.exchange(HttpRequest("POST", f"/{n}"), endpoint, 10))
        for n in range(10)
        for endpoint in (FIRST, SECOND)
    ]
    await asyncio.sleep(0)
    upstream.release.set()
    assert [response.status for response in await asyncio.gather(*exchanges)] == [200] * 20
    assert upstream.max_active == {FIRST: limit, SECOND: limit}
    assert upstream.order == sorted(upstream.order)


async def test_failed_and_cancelled_exchanges_free_their_slot() -> None:
    upstream = RecordingUpstream()
    limited = LimitedUpstream(upstream, 1)
    first = asyncio.ensure_future(limited.exchange(POST, FIRST, 10))
    waiting = asyncio.ensure_future(limited.exchange(POST, FIRST, 10))
    failing = asyncio.ensure_future(limited.exchange(HttpRequest("POST", "/fail"), FIRST, 10))
    last = asyncio.ensure_future(limited.exchange(POST, FIRST, 10))
    await asyncio.sleep(0)
    first.cancel()
    waiting.cancel()
    upstream.release.set()
    with pytest.raises(GatewayError, match="no"):
        await failing
    assert (await last).status == 200
    assert upstream.max_active[FIRST] == 1


async def test_waiting_ends_with_the_deadline() -> None:
    upstream = RecordingUpstream()
    limited = LimitedUpstream(upstream, 1)
    first = asyncio.ensure_future(limited.exchange(POST, FIRST, 10))
    await asyncio.sleep(0)
    with pytest.raises(GatewayError, match="busy") as caught:
        await limited.exchange(POST, FIRST, 0.01)
    assert (caught.value.kind, caught.value.origin) == (Kind.TIMEOUT, Origin.BACKEND)
    upstream.release.set()
    assert (await first).status == 200
    await limited.close()
    assert upstream.is_closed
