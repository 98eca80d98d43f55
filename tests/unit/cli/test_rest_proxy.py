"""The configuration of ``infergate rest-proxy`` from kserve/rest-proxy's environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from infergate.cli.rest_proxy import VARIABLES, rest_proxy_config
from infergate.config import compile as compiled
from infergate.config.mistakes import ConfigError
from tls_kit import Authority


def target(environ: Mapping[str, str]) -> str:
    return str(compiled.endpoints(rest_proxy_config(environ).backends["grpc-server"])[0])


def test_the_defaults_are_those_of_rest_proxy() -> None:
    config = rest_proxy_config({})
    addresses = compiled.addresses(config)
    assert {name: str(each) for name, each in addresses.items()} == {
        "additional.rest": "0.0.0.0:8008"
    }
    assert compiled.listener_protocols(config) == {"additional.rest": ("v2-rest",)}
    assert target({}) == "localhost:8033"
    assert compiled.client_tls(config.backends["grpc-server"]) is None
    assert config.limits.body == 16 * 2**20


def test_each_variable_sets_its_key(tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("localhost")
    environ = {
        "REST_PROXY_LISTEN_PORT": "9008",
        "REST_PROXY_GRPC_PORT": "9033",
        "REST_PROXY_USE_TLS": "true",
        "REST_PROXY_SKIP_VERIFY": "true",
        "REST_PROXY_GRPC_MAX_MSG_SIZE_BYTES": "1000000",
        "MM_TLS_KEY_CERT_PATH": str(pair.certificate),
        "MM_TLS_PRIVATE_KEY_PATH": str(pair.key),
    }
    assert environ.keys() == VARIABLES.keys()
    config = rest_proxy_config(environ)
    backend = config.backends["grpc-server"]
    assert compiled.addresses(config)["additional.rest"].port == 9008
    assert target(environ) == "localhost:9033"
    tls = compiled.client_tls(backend)
    assert tls is not None
    assert not tls.verify
    assert compiled.server_tls(config)["additional.rest"].certificate == pair.certificate
    assert config.limits.body == config.limits.json_ == 1_000_000


def test_the_certificate_is_verified_by_default() -> None:
    tls = compiled.client_tls(
        rest_proxy_config({"REST_PROXY_USE_TLS": "true"}).backends["grpc-server"]
    )
    assert tls is not None
    assert tls.verify


def test_the_older_name_of_the_message_size_is_accepted() -> None:
    assert rest_proxy_config({"REST_PROXY_GRPC_MAX_MSG_SIZE": "5"}).limits.body == 5


@pytest.mark.parametrize(("size", "budget"), [(2**29, 2**30), (2**31 - 1, 2**32 - 2)])
def test_the_memory_budget_is_twice_a_large_message(size: int, budget: int) -> None:
    config = rest_proxy_config({"REST_PROXY_GRPC_MAX_MSG_SIZE_BYTES": str(size)})
    assert config.limits.body == size
    assert config.limits.in_flight_bytes == budget


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("REST_PROXY_LISTEN_PORT", "0"),
        ("REST_PROXY_GRPC_PORT", "65536"),
        ("REST_PROXY_GRPC_PORT", "x"),
        ("REST_PROXY_GRPC_MAX_MSG_SIZE_BYTES", "-1"),
        ("REST_PROXY_GRPC_MAX_MSG_SIZE_BYTES", "9" * 5000),
    ],
)
def test_an_invalid_value_is_reported_with_the_name_of_its_variable(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"^environment: {name}: '.*' is not a whole number"):
        rest_proxy_config({name: value})


def test_a_missing_key_is_reported() -> None:
    with pytest.raises(ConfigError, match=r"tls\.key: expected the path of a file"):
        rest_proxy_config({"MM_TLS_KEY_CERT_PATH": "/no/${such}"})
