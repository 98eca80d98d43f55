from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infergate.config import values
from infergate.config.values import Url
from infergate.core.route_policy import HedgePolicy
from infergate.transport.base import Address

NO_DEADLINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


SIZES = {0: 0, 17: 17, "17": 17, "100B": 100, "64KiB": 65536, "1 GiB": 1 << 30}
DURATIONS = {0: 0, "250ms": 0.25, "1.5s": 1.5, "5m": 300, "1 h": 3600}
INVALID_SIZES = (True, None, 1.5, -1, "1.5MiB", "1kib", "MiB", "", "1e3", {}, "٣B")
INVALID_DURATIONS = (False, None, 30, 1.5, "30", "s", "-1s", "1m30s", "inf", "٣s")
INVALID_HEDGES = ("p0", "p100", "p", "95", 95, None, "P95", "p95.123", "-1s")


def test_sizes_and_durations_are_parsed() -> None:
    assert {text: values.parse_size(text) for text in SIZES} == SIZES
    assert {text: values.parse_duration(text) for text in DURATIONS} == DURATIONS


@pytest.mark.parametrize(
    ("parse", "text", "error"),
    [
        *((values.parse_size, text, "expected a size") for text in INVALID_SIZES),
        *((values.parse_duration, text, "expected a duration") for text in INVALID_DURATIONS),
        *((values.parse_hedge, text, "50ms or a percentile") for text in INVALID_HEDGES),
    ],
)
def test_invalid_values_are_rejected(parse: Any, text: Any, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        parse(text)


@pytest.mark.parametrize(("text", "percent"), [("p95", 95), ("p99.9", 99.9), ("p5", 5)])
def test_hedge_percentiles_are_parsed(text: str, percent: float) -> None:
    hedge = values.parse_hedge(text)
    assert (hedge.after_seconds, hedge.percentile) == (None, pytest.approx(percent / 100))
    assert values.hedge_text(hedge) == text
    assert values.parse_hedge("50ms") == HedgePolicy(0.05)
    assert values.hedge_text(HedgePolicy(0.05)) == "50ms"


@NO_DEADLINE
@given(st.integers(0, 1 << 40), st.integers(0, 10**8))
def test_formatted_sizes_and_durations_round_trip(size: int, milliseconds: int) -> None:
    assert values.parse_size(values.size_text(size)) == size
    duration = values.parse_duration(values.duration_text(milliseconds / 1000))
    assert duration == pytest.approx(milliseconds / 1000, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:8000", "127.0.0.1", 8000),
        ("0.0.0.0:0", "0.0.0.0", 0),
        ("[::1]:8000", "::1", 8000),
        ("gateway.local:65535", "gateway.local", 65535),
    ],
)
def test_addresses_are_parsed(text: str, host: str, port: int) -> None:
    assert values.parse_address(text) == Address(host, port)
    assert str(Address(host, port)) == text


@pytest.mark.parametrize(
    "text", ["http://a", "http://a:1", "https://[::1]:8443/base", "grpc://triton:8001"]
)
def test_urls_round_trip(text: str) -> None:
    assert str(values.parse_url(text)) == text


def test_a_url_is_split_into_its_parts() -> None:
    assert values.parse_url("HTTP://Models.Example/a/b//") == Url(
        "http", "Models.Example", None, "/a/b"
    )


@NO_DEADLINE
@given(st.text(max_size=20) | st.none() | st.integers() | st.booleans() | st.floats())
@pytest.mark.parametrize(
    "parse",
    [
        values.parse_size,
        values.parse_duration,
        values.parse_address,
        values.parse_url,
        values.parse_pattern,
        values.parse_header_glob,
    ],
)
def test_any_value_parses_or_raises_a_value_error(parse: Any, value: Any) -> None:
    with suppress(ValueError):
        parse(value)


@NO_DEADLINE
@given(st.text("/:[]@?#.a1%", max_size=12))
def test_any_url_parses_or_raises_a_value_error(text: str) -> None:
    with suppress(ValueError):
        values.parse_url(f"http://{text}")


def test_a_secret_in_a_url_is_not_shown() -> None:
    with pytest.raises(ValueError, match="must not have a user") as caught:
        values.parse_url("http://me:secret@triton:8000")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("text", ["me:secret@triton", "triton:8000/secret", "triton?key=secret"])
def test_a_secret_in_a_url_without_a_scheme_is_not_shown(text: str) -> None:
    with pytest.raises(ValueError, match="expected a URL like") as caught:
        values.parse_url(text)
    assert "secret" not in str(caught.value).removesuffix("because it may contain secrets")
