"""The response cache of a configuration: its scope, and reloads."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from infergate.caching.store import StoredValue
from infergate.config.load import load
from infergate.config.schema import Config
from infergate.config.tracked_files import TrackedFiles
from infergate.runtime.response_cache import _forwarded_headers, _scope
from infergate.runtime.worker_group import WorkerGroup
from running_gateways import quiet_config, serving
from waiting import until

GOOD = Path(__file__).parents[2] / "config" / "good"
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


def scope(of: Config) -> bytes:
    return _scope(of, of.routes[0])


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
    """Workers and gateways share responses, so no scope may depend on an address or a hash seed."""
    file = GOOD / "everything.yaml"
    source = str(Path(sys.modules["infergate"].__file__ or "").parents[1])
    found = subprocess.run(
        [sys.executable, "-c", SCOPES, str(file), source],
        capture_output=True, check=True, env={**os.environ, "PYTHONHASHSEED": "1"},
    ).stdout  # fmt: skip
    loaded = load(file, {}, TrackedFiles())
    expected = " ".join(_scope(loaded, route).hex() for route in loaded.routes)
    assert found == f"{expected}\n".encode()


def test_headers_that_backends_receive_are_selected_except_those_of_tracing() -> None:
    server = {"protocol": "v2-rest", "endpoints": ("http://127.0.0.1:9",)}
    backends = {
        "one": {**server, "forward_headers": ("x-tenant-*", "traceparent")},
        "two": {**server, "forward_headers": ("x-user",)},
    }
    both = config({"fallback": "two"}, backends=backends)
    headers = {"x-tenant-a": "1", "x-user": "2", "traceparent": "3", "x-other": "4"}
    selected = _forwarded_headers(both, both.routes[0])(headers)
    assert selected == {"x-tenant-a": "1", "x-user": "2"}


async def test_the_memory_stays_over_reloads_and_is_freed_without_cached_routes() -> None:
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
