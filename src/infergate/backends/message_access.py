"""Uniform access to the headers and the status of HTTP and gRPC messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Final, Generic, TypeVar

from infergate.core.records import record
from infergate.core.wire import HttpRequest, RpcRequest

Req = TypeVar("Req")
Resp = TypeVar("Resp")


@record
class MessageAccess(Generic[Req, Resp]):
    """Functions that read and change the messages of one transport. ``unavailable_statuses`` are
    the statuses of an unavailable endpoint: HTTP 502, 503 and 504 (Envoy's gateway failures) or
    gRPC UNAVAILABLE. 500 and INTERNAL are not among them, because servers also return 500 and
    INTERNAL for invalid input. ``with_request_headers`` returns a copy of a request with the given
    headers instead of its own."""

    add_request_headers: Callable[[Req, Mapping[str, str]], None]
    response_headers: Callable[[Resp], Mapping[str, str]]
    unavailable_statuses: frozenset[int]
    request_headers: Callable[[Req], Mapping[str, str]]
    with_request_headers: Callable[[Req, Mapping[str, str]], Req]
    response_status: Callable[[Resp], int]


def _add_http_headers(wire: HttpRequest, headers: Mapping[str, str]) -> None:
    wire.headers = {**headers, **wire.headers}


def _add_rpc_metadata(wire: RpcRequest, headers: Mapping[str, str]) -> None:
    wire.metadata = {**headers, **wire.metadata} if wire.metadata else headers


def _with_http_headers(wire: HttpRequest, headers: Mapping[str, str]) -> HttpRequest:
    return replace(wire, headers=headers)


def _with_rpc_metadata(wire: RpcRequest, headers: Mapping[str, str]) -> RpcRequest:
    return replace(wire, metadata=headers)


HTTP_MESSAGES: Final = MessageAccess(
    _add_http_headers,
    attrgetter("headers"),
    frozenset({502, 503, 504}),
    attrgetter("headers"),
    _with_http_headers,
    attrgetter("status"),
)
RPC_MESSAGES: Final = MessageAccess(
    _add_rpc_metadata,
    attrgetter("metadata"),
    frozenset({14}),
    attrgetter("metadata"),
    _with_rpc_metadata,
    attrgetter("code"),
)
