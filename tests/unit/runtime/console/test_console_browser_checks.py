from __future__ import annotations

import pytest

from infergate.runtime.console.browser_checks import (
    CONSOLE_HEADER,
    is_from_browser,
    rejection_reason,
    untrusted_host,
)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:8002", "localhost:8002", "[::1]:8002", "10.0.0.7", "gateway:8002", "",
        "infergate.prod.svc:8002", "x.svc.cluster.local", "box.local", "Gate.Example:8002",
        "gate.example.", "console.localhost",
    ],
)  # fmt: skip
def test_local_and_configured_hosts_are_trusted(host: str) -> None:
    assert untrusted_host({"host": host} if host else {}, ("gate.example",)) == ""


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("evil.example:8002", "evil.example"),
        ("127.0.0.1.evil.example", "127.0.0.1.evil.example"),
        ("localhost.evil.example", "localhost.evil.example"),
        ("gate.example.evil.test.com", "gate.example.evil.test.com"),
        ("user@evil.example", "evil.example"),
        ("[bro.ken", "[bro.ken"),
    ],
)
def test_public_names_are_not_trusted(host: str, name: str) -> None:
    assert untrusted_host({"host": host}, ("gate.example",)) == name


CONSOLE_HEADERS = {"host": "127.0.0.1:8002", CONSOLE_HEADER: "1"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://127.0.0.1:8002", "sec-fetch-site": "same-origin"},
        {"origin": "http://127.0.0.1:8002"},
    ],
)
def test_the_consoles_requests_are_accepted(headers: dict[str, str]) -> None:
    assert rejection_reason(CONSOLE_HEADERS | headers) == ""


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://[bro.ken"},
        {"origin": "http://127.0.0.1:8000"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"origin": "http://127.0.0.1:8002", "sec-fetch-site": "cross-site"},
    ],
)
def test_requests_of_other_origins_are_rejected(headers: dict[str, str]) -> None:
    assert "another origin" in rejection_reason(CONSOLE_HEADERS | headers)
    assert is_from_browser(headers)


def test_requests_without_the_console_header_are_rejected() -> None:
    headers = {"host": "a", "origin": "http://a", "sec-fetch-site": "same-origin"}
    assert CONSOLE_HEADER in rejection_reason(headers)
    assert not is_from_browser({"host": "a"})
