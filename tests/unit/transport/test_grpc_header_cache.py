"""The header blocks of grpcio's client and server are decoded a few times per connection, not once
per call."""

import time

import grpc.aio
import pytest
from transport_kit import COMPAT, OWN, RPC_LIMITS, GrpcHarness

from infergate.core.wire import RpcRequest
from infergate.transport.grpc.client import H2Upstream
from infergate.transport.http2.hpack_decoder import HpackDecoder

CALLS = 40
MAX_DECODED = 6
"""Maximum number of decoded blocks: blocks are decoded again when the table is disabled, and when a
field changes for the first time."""


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The header blocks decoded by infergate's own engine."""
    blocks: list[bytes] = []
    decode = HpackDecoder.decode

    def record(self: HpackDecoder, block: bytes) -> list[tuple[bytes, bytes]]:
        blocks.append(block)
        return decode(self, block)

    monkeypatch.setattr(HpackDecoder, "decode", record)
    return blocks


@pytest.mark.parametrize("engine", [OWN], indirect=True)
async def test_client_headers_are_cached(grpc_harness: GrpcHarness, decoded: list[bytes]) -> None:
    async with grpc.aio.insecure_channel(grpc_harness.endpoint.authority) as channel:
        call = channel.unary_unary("/t.T/Echo")
        for number in range(CALLS):
            identifier = f"{number}-{'x' * number}"
            metadata = (("authorization", "Bearer x"), ("x-request-id", identifier))
            timeout, before = 100 + number * 7.3, time.monotonic()
            assert await call(b"x", timeout=timeout, metadata=metadata) == b"x"
            context = grpc_harness.app.calls[-1]
            assert context.headers["x-request-id"] == identifier
            assert context.headers["authorization"] == "Bearer x"
            assert context.deadline is not None
            assert context.deadline - before == pytest.approx(timeout, rel=0.05, abs=5)
    assert len(decoded) <= MAX_DECODED


@pytest.mark.parametrize("engine", [COMPAT], indirect=True)
@pytest.mark.parametrize("method", ["Echo", "Fail"])
async def test_server_headers_are_cached(
    grpc_harness: GrpcHarness, decoded: list[bytes], method: str
) -> None:
    upstream = H2Upstream(RPC_LIMITS)
    wire = RpcRequest(f"/t.T/{method}", (b"3",))
    for _ in range(CALLS):
        response = await upstream.exchange(wire, grpc_harness.endpoint, 5)
        assert (response.code, *response.metadata) == (
            (0, "x-ok") if method == "Echo" else (3, "x-why", "x-raw-bin")
        )
    await upstream.close()
    assert len(decoded) <= MAX_DECODED
