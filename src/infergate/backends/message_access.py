"""Uniform access to the headers, the status and the memory account of HTTP and gRPC messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final, Generic, TypeVar

from infergate.core.memory import MemoryAccount
from infergate.core.wire import HttpRequest, HttpResponse, RpcRequest, RpcResponse

Req = TypeVar("Req")
Resp = TypeVar("Resp")

_UNAVAILABLE_STATUSES: Final = frozenset({502, 503, 504})
_UNAVAILABLE_CODE: Final = 14


@dataclass(frozen=True, slots=True)
class MessageAccess(Generic[Req, Resp]):
    """How to read and change the messages of one transport. ``is_unavailable`` returns whether a
    response reports an endpoint that cannot serve now: HTTP 502, 503, 504 (Envoy's gateway
    failures) or gRPC UNAVAILABLE. 500 and INTERNAL do not count, because servers also return
    them for invalid input. ``with_request_headers`` returns a copy of a request;
    ``set_memory_account`` sets the account that the response is charged to."""

    add_request_headers: Callable[[Req, Mapping[str, str]], None]
    response_headers: Callable[[Resp], Mapping[str, str]]
    is_unavailable: Callable[[Resp], bool]
    request_headers: Callable[[Req], Mapping[str, str]]
    with_request_headers: Callable[[Req, Mapping[str, str]], Req]
    response_status: Callable[[Resp], int]
    set_memory_account: Callable[[Req, MemoryAccount], None]


def _add_http_headers(wire: HttpRequest, headers: Mapping[str, str]) -> None:
    wire.headers = {**headers, **wire.headers}


def _add_rpc_metadata(wire: RpcRequest, headers: Mapping[str, str]) -> None:
    wire.metadata = {**headers, **wire.metadata} if wire.metadata else headers


def _is_http_unavailable(wire: HttpResponse) -> bool:
    return wire.status in _UNAVAILABLE_STATUSES


def _is_rpc_unavailable(wire: RpcResponse) -> bool:
    return wire.code == _UNAVAILABLE_CODE


def _with_http_headers(wire: HttpRequest, headers: Mapping[str, str]) -> HttpRequest:
    return replace(wire, headers=headers)


def _with_rpc_metadata(wire: RpcRequest, headers: Mapping[str, str]) -> RpcRequest:
    return replace(wire, metadata=headers)


def _set_memory_account(wire: HttpRequest | RpcRequest, memory: MemoryAccount) -> None:
    wire.memory = memory


HTTP_MESSAGES: Final = MessageAccess(
    _add_http_headers,
    attrgetter("headers"),
    _is_http_unavailable,
    attrgetter("headers"),
    _with_http_headers,
    attrgetter("status"),
    _set_memory_account,
)
RPC_MESSAGES: Final = MessageAccess(
    _add_rpc_metadata,
    attrgetter("metadata"),
    _is_rpc_unavailable,
    attrgetter("metadata"),
    _with_rpc_metadata,
    attrgetter("code"),
    _set_memory_account,
)
