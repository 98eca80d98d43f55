"""A limited upstream, in front of one that counts concurrent exchanges."""

import asyncio

import pytest

from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.wire import HttpRequest, HttpResponse
from infergate.transport.base import Endpoint
from infergate.transport.client.concurrency_limit import LimitedUpstream

HERE, THERE = (Endpoint("127.0.0.1", port) for port in (1, 2))
POST = HttpRequest("POST", "/")


class Noting:
    """Responds when ``go`` is set, or fails for the path of a failure."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.now = dict.fromkeys((HERE, THERE), 0)
        self.max_active = dict.fromkeys((HERE, THERE), 0)
        self.order: list[str] = []
        self.closed = False

    async def exchange(self, wire: HttpRequest, endpoint: Endpoint, timeout: float) -> HttpResponse:
        self.order.append(wire.path)
        self.now[endpoint] += 1
        self.max_active[endpoint] = max(self.max_active[endpoint], self.now[endpoint])
        try:
            await asyncio.wait_for(self.go.wait(), timeout)
            if wire.path == "/fail":
                raise GatewayError(Kind.CONNECT, "no")
            return HttpResponse(200)
        finally:
            self.now[endpoint] -= 1

    async def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("limit", [1, 3])
async def test_no_more_than_that_at_a_time_to_each(limit: int) -> None:
    upstream = Noting()
    limited = LimitedUpstream(upstream, limit)
    exchanges = [
        asyncio.ensure_future(limited.exchange(HttpRequest("POST", f"/{n}"), endpoint, 10))
        for n in range(10)
        for endpoint in (HERE, THERE)
    ]
    await asyncio.sleep(0)
    upstream.go.set()
    assert [answer.status for answer in await asyncio.gather(*exchanges)] == [200] * 20
    assert upstream.max_active == {HERE: limit, THERE: limit}
    assert upstream.order == sorted(upstream.order)


async def test_failed_and_cancelled_exchanges_free_their_slot() -> None:
    upstream = Noting()
    limited = LimitedUpstream(upstream, 1)
    first = asyncio.ensure_future(limited.exchange(POST, HERE, 10))
    waits = asyncio.ensure_future(limited.exchange(POST, HERE, 10))
    fails = asyncio.ensure_future(limited.exchange(HttpRequest("POST", "/fail"), HERE, 10))
    last = asyncio.ensure_future(limited.exchange(POST, HERE, 10))
    await asyncio.sleep(0)
    first.cancel()
    waits.cancel()
    upstream.go.set()
    with pytest.raises(GatewayError, match="no"):
        await fails
    assert (await last).status == 200
    assert upstream.max_active[HERE] == 1


async def test_the_wait_ends_with_the_deadline() -> None:
    upstream = Noting()
    limited = LimitedUpstream(upstream, 1)
    first = asyncio.ensure_future(limited.exchange(POST, HERE, 10))
    await asyncio.sleep(0)
    with pytest.raises(GatewayError, match="busy") as caught:
        await limited.exchange(POST, HERE, 0.01)
    assert (caught.value.kind, caught.value.origin) == (Kind.TIMEOUT, Origin.BACKEND)
    upstream.go.set()
    assert (await first).status == 200
    await limited.close()
    assert upstream.closed
