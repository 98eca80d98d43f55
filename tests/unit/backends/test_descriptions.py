"""The cache of model metadata, by name and version, with a limited number of entries."""

from __future__ import annotations

import asyncio
import time

import pytest

from infergate.backends import metadata_cache
from infergate.backends.metadata_cache import LIFETIME_SECONDS, ModelMetadataCache
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import ModelMetadata
from infergate.core.request_context import RequestContext


def call() -> RequestContext:
    return RequestContext("test", time.monotonic() + 60)


class Server:
    def __init__(self) -> None:
        self.now = 0.0
        self.requests: list[tuple[str, str]] = []
        self.down = False
        self.descriptions = ModelMetadataCache(self.describe, lambda: self.now)

    async def describe(
        self, model: str, version: str, context: RequestContext
    ) -> tuple[ModelMetadata, float]:
        self.requests.append((model, version))
        await asyncio.sleep(0)
        if self.down:
            raise GatewayError(Kind.CONNECT, "down")
        if model.startswith("unknown"):
            raise GatewayError(Kind.NOT_FOUND, f"unknown model '{model}'")
        return ModelMetadata(model, (version,)), LIFETIME_SECONDS

    async def get(self, model: str, version: str = "", *, refresh: bool = False) -> ModelMetadata:
        return await self.descriptions.get(model, version, call(), refresh=refresh)

    @property
    def cached(self) -> list[str]:
        return [model for model, _ in self.descriptions._entries]


async def test_each_version_is_described_for_a_minute() -> None:
    server = Server()
    for _ in range(3):
        assert await server.get("m", "1") == ModelMetadata("m", ("1",))
        assert await server.get("m", "2") == ModelMetadata("m", ("2",))
    assert server.requests == [("m", "1"), ("m", "2")]
    server.now += LIFETIME_SECONDS
    await server.get("m", "1")
    assert server.requests == [("m", "1"), ("m", "2"), ("m", "1")]


async def test_refreshed_and_stale_entries_are_fetched_again() -> None:
    server = Server()
    server.descriptions.mark_stale("m", "")  # an unknown model has no entry to invalidate
    await server.get("m")
    server.now += 2
    await server.get("m", refresh=True)
    assert len(server.requests) == 2
    server.descriptions.mark_stale("m", "")
    await server.get("m")
    assert len(server.requests) == 2
    server.now += 1.5
    await server.get("m")
    assert len(server.requests) == 3


async def test_the_least_recently_used_entry_is_evicted_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metadata_cache, "MAX_ENTRIES", 3)
    server = Server()
    for model in ("a", "b", "c", "a", "d"):
        await server.get(model)
    assert server.cached == ["c", "a", "d"]


async def test_unknown_models_are_not_cached_as_known() -> None:
    server = Server()
    for number in range(5):
        with pytest.raises(GatewayError, match="unknown"):
            await server.get(f"unknown{number}")
    assert server.cached == []
    results = await asyncio.gather(
        *(server.get("unknown") for _ in range(5)), return_exceptions=True
    )
    assert all(isinstance(each, GatewayError) for each in results)
    assert server.requests.count(("unknown", "")) == 1
    assert server.cached == []


async def test_a_known_model_survives_a_failed_refresh() -> None:
    server = Server()
    await server.get("m")
    server.now += LIFETIME_SECONDS
    server.down = True
    with pytest.raises(GatewayError, match="down"):
        await server.get("m")
    assert server.cached == ["m"]
