import math

import pytest

from infergate.core.errors import (
    GatewayError,
    Kind,
    Origin,
    UnauthenticatedError,
    as_backend_error,
    backend_garbage,
    bad_request,
    error_headers,
    parse_retry_after,
    retry_after_headers,
)


def test_an_error_has_defaults() -> None:
    error = GatewayError(Kind.NOT_FOUND, "unknown model 'x'")
    assert (error.origin, error.detail, error.retry_after) == (Origin.GATEWAY, "", None)
    assert str(error) == error.public == "unknown model 'x'"


def test_the_detail_of_an_error_is_not_in_its_text() -> None:
    error = GatewayError(Kind.CONNECT, "no answer", detail="10.0.0.7:8000 refused", retry_after=2.5)
    assert error.retry_after == 2.5
    assert "10.0.0.7" not in str(error)
    assert repr(error) == "GatewayError(CONNECT, 'no answer', origin=GATEWAY)"


def test_shorthands_set_kind_and_origin() -> None:
    client = bad_request("field 'x'")
    assert (client.kind, client.origin) == (Kind.BAD_REQUEST, Origin.GATEWAY)
    backend = backend_garbage("not JSON", "<html>")
    assert (backend.kind, backend.origin) == (Kind.BACKEND_GARBAGE, Origin.BACKEND)
    assert backend.detail == "<html>"


def test_invalid_responses_are_blamed_on_the_backend() -> None:
    wrong = as_backend_error(bad_request("tensor 'x': no shape"))
    assert (wrong.kind, wrong.origin) == (Kind.BACKEND_GARBAGE, Origin.BACKEND)
    assert wrong.public == "the backend's response is invalid: tensor 'x': no shape"
    large = as_backend_error(GatewayError(Kind.TOO_LARGE, "tensor 'x'"))
    assert (large.kind, large.origin) == (Kind.TOO_LARGE, Origin.BACKEND)
    assert large.public == "the backend's response is too large: tensor 'x'"


@pytest.mark.parametrize(
    ("delay", "headers"),
    [
        (None, {}),
        (0.0, {"retry-after": "0"}),
        (1.2, {"retry-after": "2"}),
        (-1.0, {"retry-after": "0"}),
        (math.inf, {}),
        (math.nan, {}),
    ],
)
def test_a_delay_is_sent_in_whole_seconds(delay: float | None, headers: dict[str, str]) -> None:
    assert retry_after_headers(GatewayError(Kind.OVERLOADED, "full", retry_after=delay)) == headers


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("0", 0.0),
        ("12", 12.0),
        ("1" * 10, None),
        ("-1", None),
        ("", None),
        ("1.5", None),
        ("\u0663", None),
    ],
)
def test_only_whole_seconds_are_parsed(header: str, seconds: float | None) -> None:
    assert parse_retry_after({"retry-after": header}) == seconds
    assert parse_retry_after({}) is None


def test_an_error_has_headers() -> None:
    error = UnauthenticatedError("credentials are required", 'Bearer realm="x"', "detail")
    assert error.kind is Kind.UNAUTHENTICATED
    assert (error.public, error.detail) == ("credentials are required", "detail")
    assert error_headers(error) == {"www-authenticate": 'Bearer realm="x"'}
    limited = GatewayError(Kind.RATE_LIMITED, "too many", retry_after=1.5)
    assert error_headers(limited) == {"retry-after": "2"}
    assert error_headers(GatewayError(Kind.UNAUTHENTICATED, "as the backend says")) == {}
