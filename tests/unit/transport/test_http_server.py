"""The HTTP server: requests, responses, connections and shutdown."""

import asyncio
import dataclasses
import time
from contextlib import suppress

import aiohttp
import pytest
from transport_kit import LIMITS, Engine, HttpEcho, HttpHarness, HttpServe, Peer

from infergate.transport.base import Address
from infergate.transport.server.admission import Admission
from waiting import until


async def test_requests_of_an_aiohttp_client_are_served(harness: HttpHarness) -> None:
    url = f"http://127.0.0.1:{harness.server.address.port}/v2/a%2Fb?x=1&y=%20"
    async with aiohttp.ClientSession() as session:
        for _ in range(3):
            async with session.post(url, data=b"hello", headers={"X-A": "1"}) as response:
                assert (response.status, await response.read()) == (200, b"POST hello")
                assert response.headers["Server"] == "infergate"
                assert response.headers["X-Name"] == "é"
                assert "Connection" not in response.headers
    (wire, *_), (call, *_) = harness.app.requests, harness.app.calls
    assert (wire.method, wire.path, wire.query) == ("POST", "/v2/a%2Fb", "x=1&y=%20")
    assert wire.headers["x-a"] == "1"
    assert call.headers is wire.headers
    assert call.record.bytes_in == 5
    assert call.peer.startswith("127.0.0.1:")
    assert call.record.started_at <= time.monotonic()
    assert len({call.peer for call in harness.app.calls}) == 1, "the connection is reused"


@pytest.mark.parametrize(
    ("peername", "peer"),
    [(("127.0.0.1", 5), "127.0.0.1:5"), (("::1", 5, 0, 0), "[::1]:5"), ("", "unix")],
)
async def test_peers_are_formatted_as_over_grpc(
    harness: HttpHarness, peername: object, peer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = asyncio.selector_events._SelectorSocketTransport
    get_extra_info = transport.get_extra_info

    def with_peername(self: asyncio.Transport, name: str, default: object = None) -> object:
        return peername if name == "peername" else get_extra_info(self, name, default)

    monkeypatch.setattr(transport, "get_extra_info", with_peername)
    client = await harness.connect()
    await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    await client.read_response()
    assert harness.app.calls[-1].peer == peer
    monkeypatch.undo()


async def test_repeated_headers_are_joined(harness: HttpHarness, peer: Peer) -> None:
    await peer.send(b"GET / HTTP/1.1\r\nHost: x\r\nX-A: 1\r\nx-a: 2\r\nB: caf\xe9\r\n\r\n")
    assert (await peer.read_response()).status == 200
    assert harness.app.requests[0].headers == {"host": "x", "x-a": "1, 2", "b": "café"}


async def test_absolute_targets_override_the_host(harness: HttpHarness, peer: Peer) -> None:
    assert (await peer.request(b"GET http://other/p?q HTTP/1.1\r\nHost: x\r\n\r\n")).status == 200
    assert (harness.app.requests[0].path, harness.app.requests[0].query) == ("/p", "q")
    assert harness.app.requests[0].headers["host"] == "other", (
        "RFC 9112, 3.2.2: the target overrides the Host field"
    )


async def test_pipelined_requests_get_responses_in_order(peer: Peer) -> None:
    count = 50
    body = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n%02d"
    await peer.send(b"".join(body % i for i in range(count)))
    for i in range(count):
        assert (await peer.read_response()).body == b"POST %02d" % i


async def test_pipelined_requests_wait_for_a_slow_request(harness: HttpHarness, peer: Peer) -> None:
    await peer.send(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
    await harness.app.entered.wait()
    request = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n" + b"b" * 900
    count = 200
    sending = asyncio.ensure_future(peer.send(request * count))
    await harness.check_serving()
    harness.app.release.set()
    for _ in range(count + 1):
        assert (await peer.read_response()).status == 200
    await sending


async def test_garbage_after_a_request_is_refused(peer: Peer) -> None:
    assert (await peer.request(b"GET / HTTP/1.1\r\nHost: x\r\n\r\nrubbish\r\n\r\n")).status == 200
    assert (await peer.read_response()).status == 400
    assert await peer.reads_eof()


@pytest.mark.parametrize("step", [1, 7])
async def test_requests_may_be_split_anywhere(peer: Peer, step: int) -> None:
    wire = (
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    )
    for i in range(0, len(wire), step):
        await peer.send(wire[i : i + step])
        await asyncio.sleep(0)
    assert (await peer.read_response()).body == b"POST abcde"


async def test_a_body_in_many_reads_is_complete(serve_http: HttpServe) -> None:
    harness = await serve_http(dataclasses.replace(LIMITS, body=3_000_000))
    peer = await harness.connect()
    body = bytes(range(256)) * 8000
    await peer.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body))
    assert (await peer.request(body)).body == b"POST " + body
    assert harness.app.calls[0].record.bytes_in == len(body)


async def test_http_1_0_connections_stay_open_only_on_request(peer: Peer) -> None:
    await peer.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert (await peer.read_response()).headers["connection"] == "keep-alive"
    response = await peer.request(b"GET / HTTP/1.0\r\n\r\n")
    assert (response.status, response.headers["connection"]) == (200, "close")
    assert await peer.reads_eof()


async def test_no_request_after_connection_close_is_handled(
    harness: HttpHarness, peer: Peer
) -> None:
    await peer.send(
        b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        b"GET /late HTTP/1.1\r\nHost: x\r\n\r\n"
    )
    response = await peer.read_response()
    assert (len(response.body), response.headers["connection"]) == (5_000_301, "close")
    assert await peer.reads_eof()
    assert [wire.path for wire in harness.app.requests] == ["/large"]


async def test_head_responses_have_a_length_and_no_body(peer: Peer) -> None:
    await peer.send(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await peer.read_response(body=False)).headers["content-length"] == "5"
    assert (await peer.read_response()).body == b"GET "


async def test_an_upgrade_is_ignored(peer: Peer) -> None:
    upgrade = b"Connection: upgrade\r\nUpgrade: websocket\r\n"
    response = await peer.request(b"GET / HTTP/1.1\r\nHost: x\r\n" + upgrade + b"\r\n")
    assert response.status == 200
    assert await peer.reads_eof()


async def test_pipelined_large_responses_are_complete(peer: Peer) -> None:
    await peer.send(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
    for _ in range(2):
        response = await peer.read_response()
        assert response.body == b"x" * 300 + b"y" * 5_000_000 + b"z"


async def test_expect_continue_gets_100(peer: Peer) -> None:
    await peer.send(
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
    )
    assert (await peer.read_response()).status == 100
    assert (await peer.request(b"ok")).body == b"POST ok"


async def test_a_bug_is_500_and_keeps_the_connection(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    for path in (b"/bug", b"/selfcancel"):
        response = await peer.request(b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path)
        assert (response.status, response.body) == (500, b"internal error")
    assert "ZeroDivisionError" in caplog.text
    assert (await peer.request(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")).status == 200


async def test_headers_with_line_breaks_are_not_sent(peer: Peer) -> None:
    response = await peer.request(b"GET /split HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (response.status, "set-cookie" in response.headers) == (500, False)


async def test_a_disconnect_cancels_the_application(harness: HttpHarness, peer: Peer) -> None:
    await peer.send(b"POST /wait HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc")
    await harness.app.entered.wait()
    assert (harness.admission.requests, harness.admission.bytes) == (1, 3)
    await peer.close()
    async with asyncio.timeout(10):
        await harness.app.cancelled.wait()
        await until(lambda: not harness.admission.requests)


async def test_an_immediate_disconnect_releases_the_request(harness: HttpHarness) -> None:
    for _ in range(20):
        peer = await harness.connect()
        await peer.send(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        peer.writer.transport.abort()
    await harness.check_serving()
    await until(lambda: not harness.admission.requests)


async def test_a_port_in_use_is_an_error(engine: Engine, harness: HttpHarness) -> None:
    other = engine.http(harness.server.address, HttpEcho(), LIMITS, Admission(LIMITS))
    with pytest.raises(OSError, match="in use"):
        await other.start()
    await other.stop(0)


async def test_stop_waits_for_requests_in_flight(harness: HttpHarness) -> None:
    app, server = harness.app, harness.server
    idle, busy = await harness.connect(), await harness.connect()
    await idle.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    await idle.read_response()
    await busy.send(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
    await app.entered.wait()
    stopping = asyncio.ensure_future(server.stop(10))
    assert await idle.reads_eof()
    with pytest.raises(OSError, match="Connect call failed"):
        await harness.connect()
    assert not stopping.done()
    app.release.set()
    response = await busy.read_response()
    assert (response.status, response.headers["connection"]) == (200, "close")
    await stopping
    assert await busy.reads_eof()


async def test_stop_cancels_after_the_grace_period(harness: HttpHarness) -> None:
    app, server, peer = harness.app, harness.server, await harness.connect()
    await peer.send(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
    await app.entered.wait()
    await server.stop(0.01)
    assert app.cancelled.is_set()
    assert harness.admission.requests == 0
    response = await peer.read_response()
    assert (response.status, response.body) == (503, b"the gateway is shutting down")
    assert response.headers["connection"] == "close"
    assert await peer.reads_eof()


async def test_stop_drops_incomplete_requests_and_responses(harness: HttpHarness) -> None:
    app, server = harness.app, harness.server
    sends_head, sends_body, reads_slowly = [await harness.connect() for _ in range(3)]
    await sends_head.send(b"GET / HTTP/1.1\r\nHo")
    await sends_body.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc")
    reads_slowly.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await reads_slowly.send(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
    # The bytes include the announced body and the unsent part of the response.
    await until(lambda: bool(app.requests) and harness.admission.bytes > 9)
    await server.stop(0.01)
    assert (harness.admission.requests, harness.admission.bytes) == (0, 0)
    assert not server._connections
    for peer in (sends_head, sends_body):
        assert (await peer.read_response()).status == 503
        with suppress(ConnectionResetError):
            assert await peer.reads_eof()
    reads_slowly.writer.transport.abort()


async def test_the_port_is_free_after_stop(engine: Engine, harness: HttpHarness) -> None:
    server = harness.server
    await harness.connect()
    await server.stop(0)
    other = engine.http(server.address, HttpEcho(), LIMITS, harness.admission)
    await other.start()
    assert other.address == server.address
    await other.stop(0)


def test_ipv6_addresses_are_in_brackets() -> None:
    assert str(Address("::1", 80)) == "[::1]:80"
