from __future__ import annotations

import io
import shlex
from pathlib import Path

import pytest

from infergate.config import Config
from infergate.runtime.banner import print_banner
from infergate.transport.base import Address
from running_gateways import quiet_config

ADDRESSES = {
    name: Address("127.0.0.1", port)
    for name, port in (("http", 8000), ("grpc", 8001), ("admin", 8002))
}


def banner(config: Config, source: Path | None, **addresses: Address) -> str:
    out = io.StringIO()
    print_banner(config, ADDRESSES | addresses, source, out)
    return out.getvalue()


def test_the_demo_banner_has_addresses_and_three_commands() -> None:
    text = banner(Config.default(), None)
    for address in ("127.0.0.1:8000", "127.0.0.1:8001", "127.0.0.1:8002"):
        assert address in text
    commands = [
        line.strip()
        for line in text.splitlines()
        if line.startswith("  ") and "http" in line and ("curl" in line or "tritonclient" in line)
    ]
    assert len(commands) == 3
    for line in commands:
        assert shlex.split(line, comments=True)


def test_the_banner_of_a_file_has_its_routes() -> None:
    text = banner(Config.default(), Path("routes.yaml"))
    assert "routes.yaml" in text
    assert ["*", "demo", "builtin", "-", "-"] in [line.split() for line in text.splitlines()]
    assert "curl" not in text


def test_the_banner_shows_where_and_how_routes_send_requests() -> None:
    url = {"url": "http://a:1", "weight": 3}
    remote = {"protocol": "v2-rest", "endpoints": (url, "http://b:1")}
    route = {
        "model": "m", "backend": "a", "split": ({"backend": "b", "percent": 10},),
        "fallback": "b", "mirror": {"backend": "b", "percent": 5},
        "headers": {"x-t": "y*"}, "idempotent": True, "hedge": {"after": "p95"},
        "retry": {"times": 2}, "validate": False,
    }  # fmt: skip
    backends = {"a": remote, "b": {"protocol": "builtin"}}
    config = quiet_config(listeners={}, backends=backends, routes=(route,))
    (line,) = [x for x in banner(config, None).splitlines() if x.startswith("  m ")]
    columns = [column for column in line.strip().split("  ") if column]
    assert [each.strip() for each in columns] == [
        "m",
        "a, 10% b, else b, 5% mirrored to b",
        "v2-rest",
        "http://a:1 (weight 3) http://b:1",
        "only x-t: y*, retries: 2, idempotent, hedge after p95, not validated",
    ]


def test_the_banner_shows_the_source_of_watched_endpoints() -> None:
    watched = {"protocol": "v2-rest", "endpoints": ("http://triton:1",), "kubernetes": {}}
    config = quiet_config(listeners={}, backends={"demo": watched})
    assert "http://triton:1 (EndpointSlices)" in banner(config, None)


def test_a_long_list_of_routes_is_truncated() -> None:
    routes = tuple({"model": f"m{number}", "backend": "demo"} for number in range(23))
    text = banner(quiet_config(listeners={}, routes=routes), Path("routes.yaml"))
    assert "m19" in text
    assert "m20" not in text
    assert "and 3 more routes" in text


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", "http://127.0.0.1:8002/console"),
        ("0.0.0.0", "http://127.0.0.1:8002/console"),
        ("::", "http://[::1]:8002/console"),
    ],
)
def test_the_consoles_address_is_reachable_locally(host: str, expected: str) -> None:
    assert expected in banner(Config.default(), None, admin=Address(host, 8002))


def test_a_disabled_console_is_not_mentioned() -> None:
    assert "/console" not in banner(quiet_config(listeners={"admin": {"console": False}}), None)
