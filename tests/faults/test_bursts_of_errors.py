"""Tests that one of several endpoints is ejected while it responds with errors, for example because
of a full disk, and is used again afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from faults.replicas import Replica, gateway, replicas
from faults.test_endpoints import FAILURES_BEFORE_EJECTION, LOCAL
from infergate.core.errors import GatewayError, Kind
from waiting import until


@asynccontextmanager
async def burst(replica: Replica) -> AsyncIterator[None]:
    """Make ``replica`` fail every request in the block."""
    backend = replica.backend
    perform = backend.perform

    async def fail(*_: object) -> None:
        raise GatewayError(Kind.NO_BACKEND, "the disk is full")

    backend.perform = fail  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        backend.perform = perform  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("transport", "engine"), [("http", "own"), ("grpc", "own"), ("grpc", "compat")]
)
async def test_an_endpoint_is_ejected_and_recovers(transport: str, engine: str) -> None:
    async with replicas(LOCAL, LOCAL, LOCAL) as servers:
        urls = [each.url(transport) for each in servers]
        async with gateway(
            transport,
            engine,
            urls,
            health={"checks": "never"},
            outliers={"base_ejection_time": "200ms"},
            balance={"slow_start": "0s"},
        ) as load:
            async with load.callers(4):
                await load.wait_for_responses(20)
                async with burst(servers[1]):
                    await until(lambda: load.stats()[1].ejected == 1, "the endpoint is ejected")
                    assert await load.metric("infergate_endpoint_ejections_total", 1) >= 1
                    await load.wait_for_responses(20)
                await until(lambda: load.stats()[1].ejected == 0, "the ejection has ended")
                ok = load.stats()[1].ok
                await until(lambda: load.stats()[1].ok > ok + 10, "the endpoint is used again")
            failed, ejections = sum(load.failed.values()), load.stats()[1].ejections
            assert set(load.failed) == {"NO_BACKEND"}
            assert failed <= (4 + FAILURES_BEFORE_EJECTION) * (ejections + 1), (
                "requests failed that were not in progress at an ejection"
            )
            assert await load.metric("infergate_endpoint_requests_total", 1) > 10
            await until(
                lambda: not any(each.active for each in load.stats()), "no request is active"
            )
