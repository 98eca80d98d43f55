"""The response cache that a configuration describes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from infergate.config.cache import CacheConfig
from infergate.config.load import from_mapping
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.request_context import RequestContext
from infergate.runtime import response_cache
from infergate.runtime.response_cache import ConfiguredCache, make_cache, make_cache_layer
from infergate.runtime.worker_group import WorkerGroup


class Server:
    """Counts inferences."""

    def __init__(self) -> None:
        self.calls = 0

    async def infer(self, request: InferRequest, context: RequestContext) -> InferResponse:
        self.calls += 1
        context.record.backend = "own"
        return InferResponse(request.model, "1")

    def stream(self, request: InferRequest, context: RequestContext) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(("name", "calls"), [("x-request-id", 1), ("x-tenant", 2)])
@pytest.mark.parametrize("glob", ["x-*", "*"])
async def test_headers_that_identify_a_request_are_no_part_of_keys(
    glob: str, name: str, calls: int
) -> None:
    """A glob also selects the generated ``x-request-id``, which differs in every request."""
    backend = {"protocol": "builtin", "forward_headers": [glob]}
    route = {"model": "*", "backend": "own", "idempotent": True, "cache": {"ttl": "1m"}}
    config = from_mapping({"backends": {"own": backend}, "routes": [route]}, Path())
    group, server = WorkerGroup(), Server()
    cache = make_cache(config, group, None)
    assert cache is not None
    cache.activate()
    layer = make_cache_layer(config, cache, group, config.routes[0])
    assert layer is not None
    cached = layer(server)
    for number in range(2):
        await cached.infer(InferRequest("m"), RequestContext("peer", headers={name: str(number)}))
    assert server.calls == calls


@pytest.mark.usefixtures("virtual_time")
async def test_responses_stay_obsolete_while_an_abandoned_load_may_continue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client of a load leaves before the server has loaded the model."""
    monkeypatch.setattr(response_cache, "LATER_SECONDS", (0.0, 0.0))
    cache = ConfiguredCache(CacheConfig(), WorkerGroup())
    memory = cache.responses.memory
    await cache.models_changed("own", True)
    await asyncio.sleep(0.05)
    assert memory.epoch("own") == 1
    await cache.models_changed("own", False)
    await asyncio.sleep(0.05)
    assert memory.epoch("own") == 4
    await cache.models_changed("own", False)
    await cache.close(is_last=True)
    await asyncio.sleep(0.05)
    assert memory.epoch("own") == 5
