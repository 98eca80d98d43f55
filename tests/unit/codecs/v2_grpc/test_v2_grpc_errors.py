"""Conversion of error kinds to gRPC statuses and back."""

from typing import Any

import pytest

from gateway_errors import raises_kind
from infergate.codecs.profiles import GENERIC
from infergate.codecs.protos.statuses import CODE_BY_KIND, KIND_BY_CODE
from infergate.codecs.v2_grpc import PLUGIN
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.limits import DEFAULT_LIMITS, Limits
from infergate.core.messages import InferRequest, ServerLiveRequest, ServerStatusRequest
from infergate.core.wire import RpcResponse

CODEC = PLUGIN.create({})


def rewrite_response(wire: RpcResponse, request: InferRequest, limits: Limits) -> RpcResponse:
    return CODEC.rewrite_response(wire, CODEC.build_request(request, GENERIC), "", "", limits)


def test_every_kind_has_a_code_and_every_code_a_kind() -> None:
    assert set(CODE_BY_KIND) == set(Kind)
    assert set(KIND_BY_CODE) == set(range(1, 17))
    assert set(CODE_BY_KIND.values()) <= set(KIND_BY_CODE)


@pytest.mark.parametrize("kind", list(Kind))
def test_each_error_kind_has_its_status_code(kind: Kind) -> None:
    error = CODEC.build_error(GatewayError(kind, "why", detail="10.0.0.7 refused"), None)
    assert error == RpcResponse(code=CODE_BY_KIND[kind], details="why")


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (Kind.BAD_REQUEST, 3),
        (Kind.UNAUTHENTICATED, 16),
        (Kind.FORBIDDEN, 7),
        (Kind.NOT_FOUND, 5),
        (Kind.UNSUPPORTED, 12),
        (Kind.TOO_LARGE, 8),
        (Kind.OVERLOADED, 14),
        (Kind.TIMEOUT, 4),
        (Kind.CANCELLED, 1),
        (Kind.INTERNAL, 13),
    ],
)
def test_codes_equal_the_numbers_of_grpc(kind: Kind, code: int) -> None:
    assert CODE_BY_KIND[kind] == code


@pytest.mark.parametrize(("limit", "code"), [("in_flight_bytes", 8), ("in_flight", 14), ("", 14)])
def test_an_exhausted_memory_budget_has_its_own_code(limit: str, code: int) -> None:
    error = CODEC.build_error(GatewayError(Kind.OVERLOADED, "full", limit=limit), None)
    assert error.code == code


def test_retry_after_is_sent_in_whole_seconds() -> None:
    error = CODEC.build_error(GatewayError(Kind.RATE_LIMITED, "slow down", retry_after=1.2), None)
    assert error.metadata == {"retry-after": "2"}
    with pytest.raises(GatewayError) as caught:
        CODEC.parse_response(error, InferRequest("m"), DEFAULT_LIMITS)
    assert caught.value.retry_after == 2.0


@pytest.mark.parametrize("header", ["", "soon", "-1", "1.5", "²"])
def test_an_invalid_retry_after_is_omitted(header: str) -> None:
    wire = RpcResponse(code=14, details="busy", metadata={"retry-after": header})
    with pytest.raises(GatewayError) as caught:
        CODEC.parse_response(wire, InferRequest("m"), DEFAULT_LIMITS)
    assert caught.value.retry_after is None


def test_long_details_are_truncated_to_the_metadata_limit() -> None:
    error = CODEC.build_error(GatewayError(Kind.INTERNAL, "é" * 5000), None)
    assert len(error.details.encode()) <= 2003
    assert error.details.startswith("é")
    assert error.details.endswith("...")


def test_invalid_unicode_is_replaced() -> None:
    assert CODEC.build_error(GatewayError(Kind.INTERNAL, "a\ud800b"), None).details == "a?b"


@pytest.mark.parametrize("code", range(1, 18))
@pytest.mark.parametrize("read", [CODEC.parse_response, rewrite_response])
def test_a_backends_status_is_relayed(code: int, read: Any) -> None:
    wire = RpcResponse(code=code, details="model broke")
    with raises_kind(KIND_BY_CODE.get(code, Kind.BACKEND_ERROR)) as caught:
        read(wire, InferRequest("m"), DEFAULT_LIMITS)
    assert caught.value.public == "model broke"
    assert caught.value.origin is Origin.BACKEND


@pytest.mark.parametrize("read", [CODEC.parse_response, rewrite_response])
@pytest.mark.parametrize(
    ("details", "kind"),
    [
        ("SERVER: Received message larger than max (5 vs. 4)", Kind.TOO_LARGE),
        ("SERVER: Sent message larger than max (5 vs. 4)", Kind.TOO_LARGE),
        ("grpc: received message larger than max (5 vs. 4)", Kind.TOO_LARGE),
        ("gRPC message exceeds maximum size 4194304: 5118829", Kind.TOO_LARGE),
        ("Received message exceeds the maximum configured message size.", Kind.TOO_LARGE),
        ("Exceeds maximum queue size", Kind.OVERLOADED),
        ("", Kind.OVERLOADED),
    ],
)
def test_resource_exhausted_is_too_large_or_overloaded(details: str, kind: Kind, read: Any) -> None:
    with raises_kind(kind) as caught:
        read(RpcResponse(code=8, details=details), InferRequest("m"), DEFAULT_LIMITS)
    error = CODEC.build_error(caught.value, None)
    assert error.code == (8 if kind is Kind.TOO_LARGE else 14)


def test_only_resource_exhausted_is_too_large() -> None:
    wire = RpcResponse(code=13, details="message larger than max")
    with raises_kind(Kind.BACKEND_ERROR):
        CODEC.parse_response(wire, InferRequest("m"), DEFAULT_LIMITS)


def test_a_status_without_a_message_names_its_code() -> None:
    with pytest.raises(GatewayError, match="gRPC status 13"):
        CODEC.parse_response(RpcResponse(code=13), ServerLiveRequest(), DEFAULT_LIMITS)


def test_operations_that_the_protocol_does_not_have_are_unsupported() -> None:
    with raises_kind(Kind.UNSUPPORTED, match="no request for server_status"):
        CODEC.build_request(ServerStatusRequest(), GENERIC)


def test_an_unknown_option_value_is_an_error() -> None:
    with pytest.raises(ValueError, match="contents is 'json'"):
        PLUGIN.create({"contents": "json"})
