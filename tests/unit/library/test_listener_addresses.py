"""The URLs of listeners."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infergate.config.load import from_mapping
from infergate.library.addresses import listener_addresses
from infergate.transport.base import Address
from tls_kit import Authority


def urls(listeners: dict[str, Any], bound: dict[str, Address]) -> dict[str, str]:
    data = {
        "listeners": listeners,
        "backends": {"b": {"protocol": "builtin"}},
        "routes": [{"model": "*", "backend": "b"}],
    }
    addresses = listener_addresses(from_mapping(data, Path()), bound)
    assert all(str(addresses[name]) == str(address) for name, address in bound.items())
    return {name: address.url for name, address in addresses.items()}


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        (Address("127.0.0.1", 5), "127.0.0.1:5"),
        (Address("0.0.0.0", 5), "127.0.0.1:5"),
        (Address("::", 5), "[::1]:5"),
        (Address("2001:db8::1", 5), "[2001:db8::1]:5"),
    ],
)
def test_a_url_reaches_the_listener_from_this_machine(bound: Address, expected: str) -> None:
    listeners = {"additional": {"v1": {"address": "127.0.0.1:0", "protocols": ["kserve-v1"]}}}
    names = {"http": "http", "grpc": "grpc", "admin": "http", "additional.v1": "http"}
    assert urls(listeners, dict.fromkeys(names, bound)) == {
        name: f"{scheme}://{expected}" for name, scheme in names.items()
    }


def test_listeners_with_tls_and_sockets_have_their_own_schemes(tmp_path: Path) -> None:
    pair = Authority(tmp_path).server()
    tls = {"certificate": str(pair.certificate), "key": str(pair.key)}
    framed = {"address": "127.0.0.1:0", "model": "m", "framing": "size-prefixed"}
    listeners = {
        "http": {"tls": tls},
        "grpc": {"tls": tls},
        "graphpipe": [framed, {**framed, "framing": "http"}, framed],
    }
    bound = {
        "http": Address("127.0.0.1", 1),
        "grpc": Address("127.0.0.1", 2),
        "graphpipe[0]": Address("127.0.0.1", 3),
        "graphpipe[1]": Address(unix="/s"),
        "graphpipe[2]": Address(unix="/s"),
    }
    assert list(urls(listeners, bound).values()) == [
        "https://127.0.0.1:1",
        "grpcs://127.0.0.1:2",
        "tcp://127.0.0.1:3",
        "http+unix:/s",
        "unix:/s",
    ]
