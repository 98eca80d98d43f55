"""The gRPC servers and clients with each other, with grpcio and with raw sockets."""

import asyncio
import base64
import dataclasses
import errno
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from transport_kit import (
    RPC_LIMITS,
    Engine,
    GrpcHarness,
    RpcEcho,
    RpcServe,
    Script,
    error_kind,
    fake_backend,
    never_responding,
    until_idle,
)

from faults import h2
from gateway_errors import raises_kind
from infergate.core.errors import GatewayError, Kind
from infergate.core.wire import RpcRequest, RpcResponse, join_parts
from infergate.transport.base import Address, Endpoint, RpcUpstream
from infergate.transport.compat.grpcio_client import GrpcioUpstream
from infergate.transport.compat.grpcio_server import GrpcioServer
from infergate.transport.server import admission as admission_module
from infergate.transport.server.admission import Admission
from memory_budget import Budget
from waiting import until


def request(method: str, message: bytes = b"", **metadata: str) -> RpcRequest:
    return RpcRequest(f"/t.T/{method}", (message,), metadata)


@dataclasses.dataclass
class Pair(GrpcHarness):
    """A server, and an upstream of the same engine."""

    upstream: RpcUpstream

    async def exchange(
        self, method: str, message: bytes = b"", seconds: float = 5, **metadata: str
    ) -> RpcResponse:
        wire = request(method, message, **metadata)
        return await self.upstream.exchange(wire, self.endpoint, seconds)

    def stream(
        self, method: str, message: bytes = b"", seconds: float | None = 30, **metadata: str
    ) -> AsyncGenerator[RpcResponse, None]:
        return self.upstream.stream(request(method, message, **metadata), self.endpoint, seconds)


@pytest.fixture
def pair(grpc_harness: GrpcHarness, rpc_upstream: RpcUpstream) -> Pair:
    return Pair(grpc_harness.server, grpc_harness.app, grpc_harness.admission, rpc_upstream)


@asynccontextmanager
async def grpcio_server(**handlers: Any) -> AsyncIterator[Endpoint]:
    """Start a grpcio server with ``handlers`` as the methods of the service ``t.T``."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", handlers),))
    endpoint = Endpoint("127.0.0.1", server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    try:
        yield endpoint
    finally:
        await server.stop(None)


async def test_a_unary_call_transfers_message_and_metadata(pair: Pair) -> None:
    before = time.monotonic()
    wire = RpcRequest("/t.T/Echo", (b"a", memoryview(b"b")), {"x-a": "1", "x-b-bin": "AP8"})
    response = await pair.upstream.exchange(wire, pair.endpoint, 5)
    assert (response.code, list(response.message)) == (0, [b"ab"])
    assert dict(response.metadata) == {"x-ok": "1"}
    call = pair.app.calls[0]
    assert call.deadline is not None
    assert before + 3 < call.deadline < time.monotonic() + 5.5
    assert call.record.bytes_in == 2
    assert re.fullmatch(r"127\.0\.0\.1:\d+", call.peer)
    headers = dict(call.headers)
    assert headers.pop("user-agent").startswith(("grpc-python-asyncio/", "infergate/"))
    assert headers == {"x-a": "1", "x-b-bin": "AP8", "infergate-hops": "1"}


async def test_calls_without_a_deadline_have_their_metadata(grpc_harness: GrpcHarness) -> None:
    async with grpc.aio.insecure_channel(grpc_harness.endpoint.authority) as channel:
        assert await channel.unary_unary("/t.T/Echo")(b"x") == b"x"
        await channel.unary_unary("/t.T/Echo", request_serializer=None)(
            b"y", metadata=(("k", "1"), ("k", "2"), ("r-bin", b"\0\xff"))
        )
    first, second = grpc_harness.app.calls
    assert first.deadline is None
    assert second.headers["k"] == "1, 2"
    assert second.headers["r-bin"] == base64.b64encode(b"\0\xff").decode().rstrip("=")


@pytest.mark.parametrize(("method", "expected"), [("Parts", b"abcd"), ("View", b"view")])
async def test_parts_of_responses_are_joined(pair: Pair, method: str, expected: bytes) -> None:
    response = await pair.upstream.exchange(request(method), pair.endpoint, 5)
    assert join_parts(response.message) == expected


@pytest.mark.parametrize("code", range(1, 17))
async def test_every_status_of_the_server_is_a_response(pair: Pair, code: int) -> None:
    """A client also reports failures of its own with the codes 4 and 14."""
    response = await pair.exchange("Fail", b"%d" % code)
    assert (response.code, response.details) == (code, "näh\nso")
    assert dict(response.metadata) == {"x-why": "because", "x-raw-bin": "AP8"}


async def test_an_invalid_status_code_becomes_unknown(pair: Pair) -> None:
    response = await pair.exchange("Fail", b"99")
    assert response.code == grpc.StatusCode.UNKNOWN.value[0]


async def test_the_application_handles_unknown_methods(pair: Pair) -> None:
    response = await pair.upstream.exchange(RpcRequest("/no.such/Unknown"), pair.endpoint, 5)
    assert (response.code, response.details) == (12, "no such method")


async def test_a_bug_is_an_internal_error(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    response = await pair.exchange("Bug")
    assert (response.code, response.details) == (13, "internal error")
    assert "ZeroDivisionError" in caplog.text
    assert (await pair.exchange("Echo")).code == 0


async def test_cancellation_reaches_the_server(pair: Pair) -> None:
    exchange = asyncio.ensure_future(pair.exchange("Wait", b"abc", seconds=30))
    await pair.app.entered.wait()
    assert (pair.admission.requests, pair.admission.bytes) == (1, 3)
    exchange.cancel()
    with pytest.raises(asyncio.CancelledError):
        await exchange
    async with asyncio.timeout(10):
        await pair.app.cancelled.wait()
        await until(lambda: not pair.admission.requests)
    assert (await pair.exchange("Echo")).code == 0


async def test_an_expired_deadline_is_a_timeout(pair: Pair) -> None:
    with raises_kind(Kind.TIMEOUT):
        await pair.exchange("Wait", seconds=0.1)


async def test_concurrent_calls_share_a_connection(pair: Pair) -> None:
    responses = await asyncio.gather(
        *(pair.exchange("Echo", b"%d" % i, seconds=30) for i in range(50))
    )
    assert [join_parts(response.message) for response in responses] == [
        b"%d" % i for i in range(50)
    ]
    assert len({call.peer for call in pair.app.calls}) == 1


async def test_calls_beyond_the_stream_limit_wait(
    serve_grpc: RpcServe, rpc_upstream: RpcUpstream
) -> None:
    harness = await serve_grpc(dataclasses.replace(RPC_LIMITS, streams=10))
    wire = request("Echo", b"x" * 10_000)
    await rpc_upstream.exchange(wire, harness.endpoint, 30)  # now the client knows the limit
    responses = await asyncio.gather(
        *(rpc_upstream.exchange(wire, harness.endpoint, 30) for _ in range(200))
    )
    assert {response.code for response in responses} == {0}


async def test_a_request_over_the_servers_limit_is_refused(
    serve_grpc: RpcServe, rpc_upstream: RpcUpstream
) -> None:
    harness = await serve_grpc(dataclasses.replace(RPC_LIMITS, body=1000))
    response = await rpc_upstream.exchange(request("Echo", b"x" * 1000), harness.endpoint, 5)
    assert response.code == 0
    response = await rpc_upstream.exchange(request("Echo", b"x" * 200_000), harness.endpoint, 5)
    assert response.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    assert len(harness.app.calls) == 1


async def test_a_request_over_the_clients_limit_is_not_sent(pair: Pair) -> None:
    with raises_kind(Kind.TOO_LARGE):
        await pair.exchange("Echo", b"x" * 2_000_000)
    with raises_kind(Kind.TOO_LARGE):
        await anext(pair.stream("Repeat", b"x" * 2_000_000))
    assert not pair.app.calls


async def test_a_response_over_the_limit_is_refused(
    engine: Engine, grpc_harness: GrpcHarness
) -> None:
    upstream = engine.upstream(dataclasses.replace(RPC_LIMITS, body=1000))
    assert await error_kind(upstream, grpc_harness.endpoint, request("Large")) is Kind.TOO_LARGE
    await upstream.close()


async def test_long_metadata_is_refused(serve_grpc: RpcServe, rpc_upstream: RpcUpstream) -> None:
    harness = await serve_grpc(dataclasses.replace(RPC_LIMITS, headers=4096))
    for _ in range(5):
        response = await rpc_upstream.exchange(request("Echo", a="x" * 3000), harness.endpoint, 5)
        assert response.code == 0
        response = await rpc_upstream.exchange(request("Echo", a="x" * 4200), harness.endpoint, 5)
        assert response.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]


async def test_overload_is_unavailable(serve_grpc: RpcServe, rpc_upstream: RpcUpstream) -> None:
    harness = await serve_grpc(dataclasses.replace(RPC_LIMITS, in_flight=1))
    first = asyncio.ensure_future(rpc_upstream.exchange(request("Wait"), harness.endpoint, 30))
    await harness.app.entered.wait()
    response = await rpc_upstream.exchange(request("Echo"), harness.endpoint, 5)
    assert (response.code, "limit of 1 requests" in response.details) == (14, True)
    harness.app.release.set()
    assert (await first).code == 0
    assert (await rpc_upstream.exchange(request("Echo"), harness.endpoint, 5)).code == 0


async def test_a_port_in_use_is_an_error(engine: Engine, pair: Pair) -> None:
    other = engine.server(pair.server.address, RpcEcho(), RPC_LIMITS, Admission(RPC_LIMITS))
    with pytest.raises(OSError, match="in use"):
        await other.start()
    await other.stop(0)
    assert (await pair.exchange("Echo")).code == 0


async def test_an_address_of_another_machine_is_an_error(engine: Engine) -> None:
    other = engine.server(Address("192.0.2.1", 0), RpcEcho(), RPC_LIMITS, Admission(RPC_LIMITS))
    with pytest.raises(OSError, match=r"(?i)cannot assign requested address") as caught:
        await other.start()
    assert caught.value.errno == errno.EADDRNOTAVAIL


async def test_a_failed_bind_of_grpcio_is_an_os_error(
    unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(address: Address) -> None:
        raise RuntimeError(f"Failed to bind to address {address}")

    local = Address("127.0.0.1", unused_tcp_port)
    other = GrpcioServer(local, RpcEcho(), RPC_LIMITS, Admission(RPC_LIMITS))
    with monkeypatch.context() as patch:
        server = grpc.aio.server()
        patch.setattr(server, "add_insecure_port", refuse)
        patch.setattr(grpc.aio, "server", lambda **_: server)
        with pytest.raises(OSError, match=f"Failed to bind .*:{unused_tcp_port}"):
            await other.start()
    await other.start()
    await other.stop(0)


async def test_a_bidirectional_stream_responds_to_each_message(grpc_harness: GrpcHarness) -> None:
    async with open_stream(grpc_harness, "Stream") as stream:
        for message in (b"a", b"b"):
            await stream.write(message)
            assert await stream.read() == message + b"!"
        assert (grpc_harness.admission.streams, grpc_harness.admission.requests) == (1, 0)
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
    assert grpc_harness.app.calls[0].deadline is not None


@pytest.mark.parametrize(
    ("message", "code", "details"), [(b"fail", 3, "enough"), (b"bug", 13, "internal error")]
)
async def test_a_failed_stream_ends_with_its_status(
    grpc_harness: GrpcHarness, message: bytes, code: int, details: str
) -> None:
    async with open_stream(grpc_harness, "Stream") as stream:
        await stream.write(b"a")
        assert await stream.read() == b"a!"
        await stream.write(message)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
    assert (caught.value.code().value[0], caught.value.details()) == (code, details)


async def read_all(stream: Any) -> list[bytes]:
    messages = []
    while (message := await stream.read()) is not grpc.aio.EOF:
        messages.append(message)
    return messages


@asynccontextmanager
async def open_stream(harness: GrpcHarness, method: str = "Repeat") -> AsyncIterator[Any]:
    # Keep the window at HTTP/2's default of 64 KiB.
    options = [("grpc.http2.bdp_probe", 0)]
    async with grpc.aio.insecure_channel(harness.endpoint.authority, options) as channel:
        yield channel.stream_stream(f"/t.T/{method}")(timeout=30, metadata=(("x-a", "1"),))
    await until(lambda: not harness.admission.streams)


async def test_requests_of_a_stream_run_concurrently(grpc_harness: GrpcHarness) -> None:
    async with open_stream(grpc_harness) as stream:
        for message in (b"wait", b"wait", b"b 1"):
            await stream.write(message)
        assert await stream.read() == b"b"
        assert (grpc_harness.admission.streams, grpc_harness.admission.requests) == (1, 2)
        assert grpc_harness.admission.bytes == 8
        await stream.write(b"wait")
        await stream.write(b"last 0")
        await until(lambda: grpc_harness.app.serving == 3)
        assert len(grpc_harness.app.calls) == 4  # one of five messages is unread
        grpc_harness.app.release.set()
        await stream.done_writing()
        assert await read_all(stream) == [b"wait"] * 6
    assert len(grpc_harness.app.calls) == 5
    call = grpc_harness.app.calls[0]
    assert call.deadline is not None
    assert call.headers["x-a"] == "1"


async def test_requests_of_an_ordered_stream_run_one_at_a_time(grpc_harness: GrpcHarness) -> None:
    async with open_stream(grpc_harness, "RepeatInOrder") as stream:
        for message in (b"wait", b"b"):
            await stream.write(message)
        await until(lambda: grpc_harness.app.serving == 1)
        assert len(grpc_harness.app.calls) == 1
        grpc_harness.app.release.set()
        await stream.done_writing()
        assert await read_all(stream) == [b"wait", b"wait", b"b", b"b"]


async def test_responses_are_produced_as_the_client_reads(grpc_harness: GrpcHarness) -> None:
    async with open_stream(grpc_harness) as stream:
        size = 100_000
        await stream.write(b"x" * size + b" 1000")
        assert len(await stream.read()) == size
        assert await until_idle(lambda: grpc_harness.app.produced) < 10
        await stream.done_writing()
        assert len(await read_all(stream)) == 999


@pytest.mark.parametrize(("message", "details"), [(b"fail", "enough"), (b"bug", "internal error")])
async def test_a_failed_request_ends_its_stream(
    grpc_harness: GrpcHarness, caplog: pytest.LogCaptureFixture, message: bytes, details: str
) -> None:
    async with open_stream(grpc_harness) as stream:
        await stream.write(b"wait")
        await stream.write(message)
        with pytest.raises(grpc.aio.AioRpcError, match=details):
            await stream.read()
    assert ("ZeroDivisionError" in caplog.text) is (message == b"bug")
    await until(lambda: not grpc_harness.app.serving)


async def test_cancelling_a_stream_cancels_its_requests(grpc_harness: GrpcHarness) -> None:
    async with open_stream(grpc_harness) as stream:
        await stream.write(b"wait")
        await until(lambda: grpc_harness.app.serving == 1)
        stream.cancel()
    await until(lambda: not grpc_harness.app.serving)


async def test_requests_of_a_stream_are_refused_individually(serve_grpc: RpcServe) -> None:
    harness = await serve_grpc(dataclasses.replace(RPC_LIMITS, in_flight=1))
    async with open_stream(harness) as stream:
        await stream.write(b"wait 1")
        await until(lambda: harness.app.serving == 1)
        await stream.write(b"b")
        assert "limit of 1 requests" in (await stream.read()).decode()
        harness.app.release.set()
        assert await stream.read() == b"wait"
        await stream.write(b"c 1")
        assert await stream.read() == b"c"


async def test_responses_are_read_as_they_are_consumed(pair: Pair) -> None:
    size = 100_000
    responses = pair.stream("Repeat", b"x" * size + b" 1000")
    assert len(join_parts((await anext(responses)).message)) == size
    assert await until_idle(lambda: pair.app.produced) < 500  # the HTTP/2 window limits them
    assert len([response async for response in responses]) == 999


async def test_streams_may_have_any_number_of_responses(pair: Pair) -> None:
    for count in (0, 3):
        wire = request("Repeat", b"a %d" % count, **{"x-b": "2"})
        responses = [each async for each in pair.upstream.stream(wire, pair.endpoint, None)]
        assert [list(response.message) for response in responses] == [[b"a"]] * count
    call = pair.app.calls[-1]
    assert (call.deadline, call.headers["x-b"]) == (None, "2")


async def test_a_refused_stream_ends_before_any_request(grpc_harness: GrpcHarness) -> None:
    async with grpc.aio.insecure_channel(grpc_harness.endpoint.authority) as channel:
        stream = channel.stream_stream("/t.T/Repeat")(timeout=30, metadata=(("x-no-stream", "1"),))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    await until(lambda: not grpc_harness.admission.streams)


async def test_a_streams_trailers_are_sent_at_its_end(pair: Pair) -> None:
    responses = [each async for each in pair.stream("Repeat", b"header 7")]
    assert [(list(each.message), dict(each.metadata)) for each in responses] == [
        ([b"header"], {}),
        ([], {"x-header": "7", "x-b-bin": "AP8"}),
    ]
    async with open_stream(pair) as stream:
        await stream.write(b"header 8")
        assert await stream.read() == b"header"
        await stream.write(b"fail")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
    trailers = dict(caught.value.trailing_metadata())
    assert trailers == {"x-header": "8", "x-b-bin": b"\0\xff", "x-why": "because"}


async def test_a_status_message_may_end_with_a_space(rpc_upstream: RpcUpstream) -> None:
    """Triton sends "Expected [-1], got []. "."""

    async def serve(_: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "got []. ")
        return b""

    async with grpcio_server(U=grpc.unary_unary_rpc_method_handler(serve)) as endpoint:
        response = await rpc_upstream.exchange(request("U"), endpoint, 5)
    assert (response.code, response.details) == (3, "got []. ")


async def test_initial_metadata_of_a_stream_is_part_of_its_first_response(
    rpc_upstream: RpcUpstream,
) -> None:
    async def serve(message: bytes, context: Any) -> None:
        await context.send_initial_metadata((("x-first", "1"),))
        for _ in range(int(message)):
            await context.write(b"m")
        context.set_trailing_metadata((("x-last", "2"),))

    merged = {"x-first": "1", "x-last": "2"}
    async with grpcio_server(S=grpc.unary_stream_rpc_method_handler(serve)) as endpoint:
        for count, metadata in {2: [{"x-first": "1"}, {}, {"x-last": "2"}], 0: [merged]}.items():
            wire = request("S", str(count).encode())
            responses = [each async for each in rpc_upstream.stream(wire, endpoint, 30)]
            received = [dict(each.metadata) for each in responses]
            if not count and isinstance(rpc_upstream, GrpcioUpstream):
                # On a busy machine, grpcio may read the status first, and drop this metadata.
                received = [{"x-first": "1", **received[0]}]
            assert received == metadata
            assert [bool(each.message) for each in responses] == [True] * count + [False]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_responses_count_as_memory_of_the_request(pair: Pair, *, is_stream: bool) -> None:
    async def response_length(account: Budget) -> int:
        wire = RpcRequest("/t.T/Large", (b"x",), memory=account)
        if not is_stream:
            return len(join_parts((await pair.upstream.exchange(wire, pair.endpoint, 5)).message))
        async with aclosing(pair.upstream.stream(wire, pair.endpoint, 5)) as responses:
            return len(join_parts((await anext(responses)).message))

    assert await response_length(Budget(1_000_000)) == 900_000
    account = Budget(800_000)
    with pytest.raises(GatewayError, match="full") as caught:
        await response_length(account)
    assert (caught.value.kind, account.held) == (Kind.OVERLOADED, 0)


@pytest.mark.parametrize("fails", [False, True])
async def test_initial_and_trailing_metadata_are_merged(
    rpc_upstream: RpcUpstream, *, fails: bool
) -> None:
    async def serve(message: bytes, context: Any) -> bytes:
        await context.send_initial_metadata((("x-first", "1"), ("x-both", "a")))
        context.set_trailing_metadata((("x-last", "2"), ("x-both", "b")))
        if fails:
            await context.abort(grpc.StatusCode.ABORTED, "enough", context.trailing_metadata())
        return message

    async def serve_stream(message: bytes, context: Any) -> None:
        await serve(message, context)

    async with grpcio_server(
        U=grpc.unary_unary_rpc_method_handler(serve),
        S=grpc.unary_stream_rpc_method_handler(serve_stream),
    ) as endpoint:
        response = await rpc_upstream.exchange(request("U", b"m"), endpoint, 30)
        (end,) = [each async for each in rpc_upstream.stream(request("S", b"m"), endpoint, 30)]
    merged = {"x-first": "1", "x-both": "b", "x-last": "2"}
    for each in (response, end):
        assert each.code == (10 if fails else 0)
        if each is end and isinstance(rpc_upstream, GrpcioUpstream):
            # grpcio may drop initial metadata.
            assert dict(each.metadata).items() <= merged.items()
            assert {"x-both", "x-last"} <= dict(each.metadata).keys()
        else:
            assert dict(each.metadata) == merged


async def test_the_error_status_of_a_stream_is_its_last_response(pair: Pair) -> None:
    responses = [each async for each in pair.stream("Repeat", b"fail")]
    assert [(response.code, response.details) for response in responses] == [(3, "enough")]


async def test_closing_a_stream_cancels_it(pair: Pair) -> None:
    responses = pair.stream("Repeat", b"a 1000000")
    await anext(responses)
    await responses.aclose()
    await until(lambda: not pair.app.serving)


async def test_cancelling_a_read_cancels_the_stream(pair: Pair) -> None:
    responses = pair.stream("Repeat", b"wait")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await anext(responses)
    await until(lambda: not pair.app.serving)


async def test_an_expired_deadline_ends_a_stream(pair: Pair) -> None:
    with raises_kind(Kind.TIMEOUT):
        await anext(pair.stream("Repeat", b"wait", seconds=0.2))
    await until(lambda: not pair.app.serving)


async def test_a_stream_without_a_connection_is_a_connect_error(
    rpc_upstream: RpcUpstream, unused_tcp_port: int
) -> None:
    with raises_kind(Kind.CONNECT):
        await anext(
            rpc_upstream.stream(request("Repeat"), Endpoint("127.0.0.1", unused_tcp_port), 5)
        )


async def test_a_stream_ends_when_its_client_cancels_it(grpc_harness: GrpcHarness) -> None:
    async with open_stream(grpc_harness, "Stream") as stream:
        await stream.write(b"a")
        await stream.read()
        stream.cancel()
        async with asyncio.timeout(10):
            await grpc_harness.app.stream_ended.wait()


async def test_streams_have_their_own_limit(
    serve_grpc: RpcServe, rpc_upstream: RpcUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission_module, "MAX_STREAMS", 1)
    harness = await serve_grpc(dataclasses.replace(RPC_LIMITS, in_flight=1))
    async with grpc.aio.insecure_channel(harness.endpoint.authority) as channel:
        first = channel.stream_stream("/t.T/Stream")(timeout=30)
        await first.write(b"a")
        assert await first.read() == b"a!"
        assert (harness.admission.streams, harness.admission.requests) == (1, 0)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.stream_stream("/t.T/Stream")(timeout=30).read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "limit of 1 streams" in (caught.value.details() or "")
        # A stream does not count as a request.
        assert (await rpc_upstream.exchange(request("Echo"), harness.endpoint, 5)).code == 0
        await first.done_writing()
        assert await first.read() is grpc.aio.EOF
        await until(lambda: not harness.admission.streams)


async def test_idle_streams_do_not_delay_the_drain(pair: Pair) -> None:
    async with open_stream(pair, "Stream") as stream:
        await stream.write(b"a")
        assert await stream.read() == b"a!"
        pending = asyncio.ensure_future(pair.exchange("Wait", seconds=300))
        await pair.app.entered.wait()
        stopping = asyncio.ensure_future(pair.server.stop(300))
        async with asyncio.timeout(20):
            assert await stream.read() is grpc.aio.EOF
            assert await stream.code() is grpc.StatusCode.OK
            assert not pending.done()  # stop waits for the request
            pair.app.release.set()
            assert (await pending).code == 0
            await stopping


async def test_a_restarted_backend_is_reached_again(
    engine: Engine, rpc_upstream: RpcUpstream, unused_tcp_port: int
) -> None:
    endpoint = Endpoint("127.0.0.1", unused_tcp_port)
    assert await error_kind(rpc_upstream, endpoint, request("Echo")) is Kind.CONNECT
    local = Address("127.0.0.1", unused_tcp_port)
    server = engine.server(local, RpcEcho(), RPC_LIMITS, Admission(RPC_LIMITS))
    await server.start()
    try:
        async with asyncio.timeout(20):
            # grpcio may report a connection failure as a status, as if the server had sent it.
            while not await _responds(rpc_upstream, endpoint):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.05)
    finally:
        await server.stop(0)


async def _responds(upstream: RpcUpstream, endpoint: Endpoint) -> bool:
    try:
        return (await upstream.exchange(request("Echo"), endpoint, 5)).code == 0
    except GatewayError:
        return False


@pytest.mark.parametrize(
    "response", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\0\0\0\4\0\0\0\0"]
)
async def test_a_backend_must_speak_grpc(rpc_upstream: RpcUpstream, response: bytes) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(response)

    async with fake_backend(script) as fake:
        assert await error_kind(rpc_upstream, fake.endpoint, request("Echo")) is Kind.CONNECT
        await rpc_upstream.close()  # prevents a reconnect


async def test_a_missing_http2_handshake_is_a_connect_error(engine: Engine) -> None:
    upstream = engine.upstream(dataclasses.replace(RPC_LIMITS, connect_time=0.2))
    async with fake_backend(never_responding) as fake:
        assert await error_kind(upstream, fake.endpoint, request("Echo")) is Kind.CONNECT
        await upstream.close()  # prevents a reconnect


async def test_a_connection_lost_during_a_call_is_an_error(rpc_upstream: RpcUpstream) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\0\0\0\4\0\0\0\0\0")  # SETTINGS: the handshake is complete
        received = b""
        while b"/t.T/Echo" not in received and b"t.T" not in received:
            received += await reader.readexactly(1)
        writer.transport.abort()

    async with fake_backend(script) as fake:
        wire = RpcRequest("/t.T/Echo", (b"t.T",))
        assert await error_kind(rpc_upstream, fake.endpoint, wire) is Kind.BACKEND_GARBAGE
        await rpc_upstream.close()  # prevents a reconnect


async def test_stop_waits_for_requests_in_flight(pair: Pair) -> None:
    app, server, endpoint = pair.app, pair.server, pair.endpoint
    exchange = asyncio.ensure_future(pair.upstream.exchange(request("Wait", b"x"), endpoint, 30))
    await app.entered.wait()
    stopping = asyncio.ensure_future(server.stop(20))
    app.release.set()
    assert join_parts((await exchange).message) == b"x"
    await stopping
    # The channel may detect only during this call that its connection is closed.
    expected = {Kind.CONNECT, Kind.BACKEND_GARBAGE}
    assert await error_kind(pair.upstream, endpoint, request("Echo")) in expected


async def test_clients_get_unavailable_after_the_grace_period(grpc_harness: GrpcHarness) -> None:
    app, server = grpc_harness.app, grpc_harness.server
    async with grpc.aio.insecure_channel(str(server.address)) as channel:
        exchange = channel.unary_unary("/t.T/Wait")(b"")
        stream = channel.stream_stream("/t.T/Stream")()
        await stream.write(b"stay")
        await app.stream_waiting.wait()
        await app.entered.wait()
        await server.stop(0.01)
        for call in (exchange, stream.read()):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert caught.value.details() == "the gateway is shutting down"
    async with asyncio.timeout(10):
        await app.cancelled.wait()
        await app.stream_ended.wait()
        await until(lambda: not grpc_harness.admission.requests)


async def test_the_port_is_free_after_stop(engine: Engine, pair: Pair) -> None:
    first = pair.server
    assert (await pair.exchange("Echo")).code == 0
    await first.stop(0)
    second = engine.server(first.address, RpcEcho(), RPC_LIMITS, Admission(RPC_LIMITS))
    await second.start()
    assert second.address == first.address
    await second.stop(0)


_HEADERS = h2.frame(1, 4, 1, h2.fields((":status", "200"), ("content-type", "application/grpc")))
_OK = h2.frame(1, 5, 1, h2.fields(("grpc-status", "0")))


def _sending_frames(frames: bytes) -> Script:
    """Return a script that sends ``frames`` after a request, and keeps the connection open."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(h2.frame(4, 0, 0))
        await reader.readuntil(b"/t.T/Echo")
        writer.write(frames)
        await reader.read()

    return script


@pytest.mark.parametrize(
    "frames",
    [
        _HEADERS + _OK,
        _HEADERS + h2.frame(0, 0, 1, b"\0\0\0\0\x09half") + _OK,
        _HEADERS + h2.frame(0, 0, 1, b"\0\0\0\0\x01a") + h2.frame(1, 5, 1, h2.fields(("x", "y"))),
        _HEADERS + h2.frame(0, 0, 1, b"\1\0\0\0\x01a") + _OK,
    ],
    ids=["no message", "half a message", "no status", "compressed without encoding"],
)
async def test_invalid_grpc_responses_are_errors(rpc_upstream: RpcUpstream, frames: bytes) -> None:
    async with fake_backend(_sending_frames(frames)) as fake:
        with raises_kind(Kind.BACKEND_GARBAGE):
            await rpc_upstream.exchange(RpcRequest("/t.T/Echo", (b"x",)), fake.endpoint, 10)
        await rpc_upstream.close()


@pytest.mark.parametrize(
    "end",
    [
        h2.frame(3, 0, 1, (8).to_bytes(4)),
        h2.frame(1, 5, 1, h2.fields(("grpc-status", "1"))),
        h2.frame(1, 5, 1, h2.fields(("grpc-status", "1"), ("grpc-message", "CANCELLED"))),
    ],
    ids=["RST_STREAM", "status", "status of a stopping grpcio server"],
)
async def test_a_call_cancelled_by_the_server_fails(rpc_upstream: RpcUpstream, end: bytes) -> None:
    wire = RpcRequest("/t.T/Echo", (b"x",))
    frames = _HEADERS + h2.frame(0, 0, 1, b"\0\0\0\0\1a") + end
    async with fake_backend(_sending_frames(frames)) as fake:
        assert await error_kind(rpc_upstream, fake.endpoint, wire) is Kind.BACKEND_GARBAGE
        await rpc_upstream.disconnect(fake.endpoint)
        with raises_kind(Kind.BACKEND_GARBAGE):
            [each async for each in rpc_upstream.stream(wire, fake.endpoint, 10)]
        await rpc_upstream.close()
