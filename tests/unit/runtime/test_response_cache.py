"""The response cache of a configuration: its scope, reloads, keys and invalidation."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from infergate.caching.store import StoredValue
from infergate.config.cache import CacheConfig
from infergate.config.load import load
from infergate.config.schema import Config
from infergate.config.tracked_files import TrackedFiles
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.request_context import RequestContext
from infergate.runtime import response_cache
from infergate.runtime.response_cache import (
    ConfiguredCache,
    _forwarded_headers,
    _scope,
    make_cache,
    make_cache_layer,
)
from infergate.runtime.worker_group import WorkerGroup
from running_gateways import quiet_config, serving
from waiting import until

VALID_CONFIGS = Path(__file__).parents[2] / "config" / "good"
SCOPES = """
import sys
sys.path[:0] = sys.argv[2:3]
from pathlib import Path
from infergate.config.load import load
from infergate.config.tracked_files import TrackedFiles
from infergate.runtime.response_cache import _scope
config = load(Path(sys.argv[1]), {}, TrackedFiles())
print(*[_scope(config, route).hex() for route in config.routes])
"""


def config(route: Mapping[str, Any] | None = None, **fields: Any) -> Config:
    server = {"protocol": "v2-rest", "endpoints": ("http://127.0.0.1:9/a",)}
    cached = {"idempotent": True, "cache": {"ttl": "1m"}}
    sections = {
        "backends": {"one": server, "two": server},
        "routes": ({"model": "m", "backend": "one", **cached, **(route or {})},),
    }
    return quiet_config(**sections | fields)


def scope(configuration: Config) -> bytes:
    return _scope(configuration, configuration.routes[0])


@pytest.mark.parametrize(
    "other",
    [
        config({"backend": "two"}),
        config({"rewrite": {"model": "n"}}),
        config({"cache": {"ttl": "2m"}}),
        config({"cast": {"BOOL": "UINT8"}}),
        config(models={"m": {"platform": "x"}}),
        config(
            backends={"one": {"protocol": "v2-rest", "endpoints": ("http://127.0.0.1:9/secret",)}}
        ),
    ],
)
def test_a_change_that_can_change_responses_changes_the_scope(other: Config) -> None:
    assert scope(other) != scope(config())


def test_other_changes_keep_the_scope() -> None:
    other = config(cache={"max_bytes": "1MiB"}, limits={"in_flight": 7})
    assert scope(other) == scope(config())


def test_all_processes_have_the_same_scopes() -> None:
    """Workers and gateways share responses, so no scope may depend on a hash seed or on a memory
    address."""
    file = VALID_CONFIGS / "everything.yaml"
    source = str(Path(sys.modules["infergate"].__file__ or "").parents[1])
    printed = subprocess.run(
        [sys.executable, "-c", SCOPES, str(file), source],
        capture_output=True, check=True, env={**os.environ, "PYTHONHASHSEED": "1"},
    ).stdout  # fmt: skip
    loaded = load(file, {}, TrackedFiles())
    expected = " ".join(_scope(loaded, route).hex() for route in loaded.routes)
    assert printed == f"{expected}\n".encode()


def test_headers_that_backends_receive_are_selected_except_those_of_tracing() -> None:
    server = {"protocol": "v2-rest", "endpoints": ("http://127.0.0.1:9",)}
    backends = {
        "one": {**server, "forward_headers": ("x-tenant-*", "traceparent")},
        "two": {**server, "forward_headers": ("x-user",)},
    }
    with_fallback = config({"fallback": "two"}, backends=backends)
    headers = {"x-tenant-a": "1", "x-user": "2", "traceparent": "3", "x-other": "4"}
    selected = _forwarded_headers(with_fallback, with_fallback.routes[0])(headers)
    assert selected == {"x-tenant-a": "1", "x-user": "2"}


async def test_cached_responses_survive_reloads_and_are_freed_without_cached_routes() -> None:
    group = WorkerGroup()
    async with serving(config(), group=group) as running:
        store = group.response_store()
        await store.put(bytes(32), StoredValue(b"x", 0.0, 1e9))
        await running.reload(config({"timeout": "3s"}))
        assert store.usage().entries == 1
        assert "infergate_cache_entries 1.0" in group.metrics.text().decode()
        await running.reload(config(cache={"max_bytes": "100KiB"}))
        assert store.usage().entries == 1
        await running.reload(config({"cache": None}))
        await until(lambda: not store.usage().entries, "the memory is freed")
        assert "infergate_cache_entries 1" not in group.metrics.text().decode()


class Server:
    """A server that counts inferences."""

    def __init__(self) -> None:
        self.calls = 0

    async def infer(self, request: InferRequest, context: RequestContext) -> InferResponse:
        self.calls += 1
        context.record.backend = "one"
        return InferResponse(request.model, "1")

    def stream(self, request: InferRequest, context: RequestContext) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(("name", "calls"), [("x-request-id", 1), ("x-tenant", 2)])
@pytest.mark.parametrize("glob", ["x-*", "*"])
async def test_headers_that_identify_a_request_are_no_part_of_keys(
    glob: str, name: str, calls: int
) -> None:
    """A glob also selects the generated ``x-request-id``, which differs in every request."""
    backends = {"one": {"protocol": "builtin", "forward_headers": (glob,)}}
    cached_config = config(backends=backends)
    group, server = WorkerGroup(), Server()
    cache = make_cache(cached_config, group, None)
    assert cache is not None
    cache.activate()
    layer = make_cache_layer(cached_config, cache, group, cached_config.routes[0])
    assert layer is not None
    cached = layer(server)
    for number in range(2):
        await cached.infer(InferRequest("m"), RequestContext("peer", headers={name: str(number)}))
    assert server.calls == calls


@pytest.mark.usefixtures("virtual_time")
async def test_responses_stay_obsolete_while_an_abandoned_load_may_continue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client that requests a load disconnects before the server has loaded the model."""
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
