from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infergate.config import values
from infergate.config.values import Url
from infergate.core.route_policy import HedgePolicy
from infergate.transport.base import Address

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize(
    ("text", "size"),
    [(0, 0), (17, 17), ("17", 17), ("100B", 100), ("64KiB", 65536), ("1 GiB", 1 << 30)],
)
def test_sizes(text: Any, size: int) -> None:
    assert values.parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"), [(0, 0), ("250ms", 0.25), ("1.5s", 1.5), ("5m", 300), ("1 h", 3600)]
)
def test_durations(text: Any, seconds: float) -> None:
    assert values.parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", [True, None, 1.5, -1, "1.5MiB", "1kib", "MiB", "", "1e3", {}, "٣B"]
)
def test_invalid_sizes(text: Any) -> None:
    with pytest.raises(ValueError, match="expected a size"):
        values.parse_size(text)


@pytest.mark.parametrize("text", [False, None, 30, 1.5, "30", "s", "-1s", "1m30s", "inf", "٣s"])
def test_invalid_durations(text: Any) -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        values.parse_duration(text)


@pytest.mark.parametrize(
    ("text", "hedge"),
    [
        ("50ms", HedgePolicy(0.05)),
        ("p95", HedgePolicy(percentile=0.95)),
        ("p99.9", HedgePolicy(percentile=0.999)),
        ("p5", HedgePolicy(percentile=0.05)),
    ],
)
def test_hedges(text: str, hedge: HedgePolicy) -> None:
    result = values.parse_hedge(text)
    assert result.after_seconds == hedge.after_seconds
    assert result.percentile == pytest.approx(hedge.percentile)
    assert values.hedge_text(result) == text


@pytest.mark.parametrize("text", ["p0", "p100", "p", "95", 95, None, "P95", "p95.123", "-1s"])
def test_invalid_hedges(text: Any) -> None:
    with pytest.raises(ValueError, match="expected a duration like 50ms or a percentile"):
        values.parse_hedge(text)


@UNHURRIED
@given(st.integers(0, 1 << 40))
def test_formatted_sizes_round_trip(size: int) -> None:
    assert values.parse_size(values.size_text(size)) == size


@UNHURRIED
@given(st.integers(0, 10**8))
def test_formatted_durations_round_trip(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    spelt = values.parse_duration(values.duration_text(seconds))
    assert math.isclose(spelt, seconds, rel_tol=1e-12)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8000", Address("127.0.0.1", 8000)),
        ("0.0.0.0:0", Address("0.0.0.0", 0)),
        ("[::1]:8000", Address("::1", 8000)),
        ("gateway.local:65535", Address("gateway.local", 65535)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert values.parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text", ["http://a", "http://a:1", "https://[::1]:8443/base", "grpc://triton:8001"]
)
def test_urls_round_trip(text: str) -> None:
    assert str(values.parse_url(text)) == text


def test_the_parts_of_a_url() -> None:
    assert values.parse_url("HTTP://Models.Example/a/b//") == Url(
        "http", "Models.Example", None, "/a/b"
    )


@UNHURRIED
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
def test_anything_parses_or_is_a_value_error(parse: Any, value: Any) -> None:
    assert outcome(parse, value)


@UNHURRIED
@given(st.text("/:[]@?#.a1%", max_size=12))
def test_any_url_parses_or_is_a_value_error(text: str) -> None:
    assert outcome(values.parse_url, f"http://{text}")


def outcome(parse: Any, value: Any) -> str:
    """Return the result or the error as text. Any other exception fails the test."""
    try:
        return repr(parse(value))
    except ValueError as error:
        return str(error)


def test_a_secret_in_a_url_is_not_shown() -> None:
    with pytest.raises(ValueError, match="must not have a user") as caught:
        values.parse_url("http://me:secret@triton:8000")
    assert "secret" not in str(caught.value)
