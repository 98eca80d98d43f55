"""Tests of rate limits and cached responses that gateways share through a real Redis, with and
without an outage of Redis."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from e2e.running import Infergate, started_infergate
from faults.payloads import document, tensor
from faults.peer import post
from faults.watch import until
from infergate.access.keys import digest_of
from peers.support.process import Launch, Running, free_ports, started

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(
        shutil.which("redis-server") is None,
        reason="there is no redis-server (Debian: apt install redis-server)",
    ),
]
SECRET = "infergate_of-redis"
CONFIG = """
backends: {{demo: {{protocol: builtin}}}}
routes: [{{model: '*', backend: demo}}]
access:
  keys: [{{name: a, sha256: "{digest}"}}]
  rules: [{{who: ["key:a"]}}]
  rates: [{{requests: 4/h}}]
  redis: {{url: "redis://127.0.0.1:{port}/0", timeout: 2s, when_unavailable: {when_unavailable}}}
"""


@contextmanager
def redis_server(port: int) -> Iterator[Running]:
    def prepare(folder: Path) -> Launch:
        argv = ["redis-server", "--port", str(port), "--bind", "127.0.0.1"]
        argv += ["--save", "", "--dir", str(folder)]
        return Launch("redis", argv, dict(os.environ), [port], ready="")

    with started(prepare) as running:
        yield running


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


@contextmanager
def gateway(port: int, when_unavailable: str) -> Iterator[Infergate]:
    digest = digest_of(SECRET).hex()
    config = CONFIG.format(digest=digest, port=port, when_unavailable=when_unavailable)
    with started_infergate(config) as running:
        yield running


def send_request(running: Infergate) -> int:
    body = document(tensor())
    return post(running.http, "/v2/models/identity/infer", body, {"x-api-key": SECRET}).status


def test_two_gateways_share_counters(port: int) -> None:
    with redis_server(port), gateway(port, "closed") as first, gateway(port, "closed") as second:
        assert [send_request(each) for each in (first, second, first, second)] == [200] * 4
        assert [send_request(first), send_request(second)] == [429, 429]


@pytest.mark.parametrize(
    ("when_unavailable", "expected"),
    [("closed", [503] * 6), ("open", [200] * 6), ("local", [200] * 4 + [429] * 2)],
)
def test_when_unavailable_selects_the_result_without_redis(
    port: int, when_unavailable: str, expected: list[int]
) -> None:
    with gateway(port, when_unavailable) as running:
        assert [send_request(running) for _ in range(6)] == expected
        assert 'infergate_access_failures_total{source="redis"}' in running.metrics()
        with redis_server(port):
            line = "Redis is available again; rate limits use Redis"
            until(lambda: send_request(running) == 429 and line in running.log.read_text(), line)


def test_a_hanging_redis_counts_as_unavailable(port: int) -> None:
    with redis_server(port) as server, gateway(port, "closed") as running:
        assert send_request(running) == 200
        os.kill(server.pid, signal.SIGSTOP)
        try:
            assert send_request(running) == 503
        finally:
            os.kill(server.pid, signal.SIGCONT)
        until(lambda: send_request(running) == 200, "the limiter uses Redis again")


CACHED = """
backends: {{demo: {{protocol: builtin}}}}
routes: [{{model: '*', backend: demo, idempotent: true, cache: {{ttl: 1h}}}}]
cache: {{redis: {{url: "redis://127.0.0.1:{port}/0", timeout: 2s}}}}
"""


def cache_status(running: Infergate, data: int) -> str:
    body = document(tensor(data=[data]))
    response = post(running.http, "/v2/models/identity/infer", body)
    assert response.status == 200
    return response.headers["cache-status"].partition("; ttl")[0]


def test_gateways_share_cached_responses_and_serve_without_redis(port: int) -> None:
    config = CACHED.format(port=port)
    hit, miss = "infergate; hit", "infergate; fwd=miss; stored"
    with started_infergate(config) as first, started_infergate(config) as second:
        with redis_server(port):
            assert cache_status(first, 1) == miss
            with redis.Redis.from_url(f"redis://127.0.0.1:{port}/0") as client:
                until(lambda: client.dbsize() == 2, "the response and the epoch are in Redis")
            assert cache_status(second, 1) == hit
            with started_infergate(config) as third:
                assert cache_status(third, 1) == hit
        assert cache_status(second, 1) == hit  # from the gateway's memory
        assert cache_status(second, 2) == miss
        assert "infergate_cache_redis_failures_total 1" in second.metrics()
