"""Servers and clients for the transport tests. A request that stays admitted fails the test."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from transport_kit import (
    ENGINES,
    LIMITS,
    QUICK,
    RPC_LIMITS,
    Engine,
    GrpcHarness,
    HttpHarness,
    HttpServe,
    Peer,
    RpcServe,
    http_harness,
    rpc_harness,
)

from infergate.core.limits import Limits
from infergate.transport.base import RpcUpstream
from infergate.transport.http1.upstream import Http1Upstream


@pytest.fixture
async def serve_http(engine: Engine) -> AsyncIterator[HttpServe]:
    """Yield a function that starts an HTTP server with the given limits."""
    async with AsyncExitStack() as stack:

        async def serve(limits: Limits) -> HttpHarness:
            return await stack.enter_async_context(http_harness(engine, limits))

        yield serve


@pytest.fixture
async def harness(serve_http: HttpServe) -> HttpHarness:
    return await serve_http(LIMITS)


@pytest.fixture
async def peer(harness: HttpHarness) -> Peer:
    """A client of ``harness``."""
    return await harness.connect()


@pytest.fixture
async def quick(serve_http: HttpServe) -> HttpHarness:
    """A server whose timeouts are 0.2 s."""
    return await serve_http(QUICK)


@pytest.fixture
async def http_upstream(engine: Engine) -> AsyncIterator[Http1Upstream]:
    upstream = engine.http_upstream(LIMITS)
    yield upstream
    await upstream.close()


@pytest.fixture(params=ENGINES, ids=str)
def engine(request: pytest.FixtureRequest) -> Engine:
    result: Engine = request.param
    return result


@pytest.fixture
async def serve_grpc(engine: Engine) -> AsyncIterator[RpcServe]:
    """Yield a function that starts a gRPC server with the given limits."""
    async with AsyncExitStack() as stack:

        async def serve(limits: Limits) -> GrpcHarness:
            return await stack.enter_async_context(rpc_harness(engine, limits))

        yield serve


@pytest.fixture
async def grpc_harness(serve_grpc: RpcServe) -> GrpcHarness:
    return await serve_grpc(RPC_LIMITS)


@pytest.fixture
async def rpc_upstream(engine: Engine) -> AsyncIterator[RpcUpstream]:
    upstream = engine.upstream(RPC_LIMITS)
    yield upstream
    await upstream.close()
