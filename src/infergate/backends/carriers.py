"""Uniform access to the headers, the status and the memory account of HTTP and gRPC messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final, Generic, TypeVar

from infergate.core.memory import MemoryShare
from infergate.core.wire import HttpRequest, HttpResponse, RpcRequest, RpcResponse

Req = TypeVar("Req")
Resp = TypeVar("Resp")

_GATEWAY_STATUSES: Final = frozenset({502, 503, 504})
_UNAVAILABLE: Final = 14


@dataclass(frozen=True, slots=True)
class HeaderAccess(Generic[Req, Resp]):
    """How to read and change the messages of one transport. ``is_unavailable`` tells whether a
    response says that its endpoint cannot serve now: HTTP 502, 503, 504 (Envoy's gateway failures)
    or gRPC UNAVAILABLE. 500 and INTERNAL do not count, because servers also return them for invalid
    input. ``with_request_headers`` returns a copy of a request; ``set_memory_account`` sets the
    account that the response is charged to."""

    add: Callable[[Req, Mapping[str, str]], None]
    read: Callable[[Resp], Mapping[str, str]]
    declines: Callable[[Resp], bool]
    sent: Callable[[Req], Mapping[str, str]]
    with_headers: Callable[[Req, Mapping[str, str]], Req]
    status: Callable[[Resp], int]
    charge: Callable[[Req, MemoryShare], None]


def _add_http(wire: HttpRequest, headers: Mapping[str, str]) -> None:
    wire.headers = {**headers, **wire.headers}


def _add_rpc(wire: RpcRequest, headers: Mapping[str, str]) -> None:
    wire.metadata = {**headers, **wire.metadata} if wire.metadata else headers


def _read_http(wire: HttpResponse) -> Mapping[str, str]:
    return wire.headers


def _read_rpc(wire: RpcResponse) -> Mapping[str, str]:
    return wire.metadata


def _declines_http(wire: HttpResponse) -> bool:
    return wire.status in _GATEWAY_STATUSES


def _declines_rpc(wire: RpcResponse) -> bool:
    return wire.code == _UNAVAILABLE


def _with_http(wire: HttpRequest, headers: Mapping[str, str]) -> HttpRequest:
    return replace(wire, headers=headers)


def _with_rpc(wire: RpcRequest, headers: Mapping[str, str]) -> RpcRequest:
    return replace(wire, metadata=headers)


def _charge(wire: HttpRequest | RpcRequest, memory: MemoryShare) -> None:
    wire.memory = memory


HTTP_HEADERS: Final = HeaderAccess(
    _add_http,
    _read_http,
    _declines_http,
    attrgetter("headers"),
    _with_http,
    attrgetter("status"),
    _charge,
)
RPC_HEADERS: Final = HeaderAccess(
    _add_rpc,
    _read_rpc,
    _declines_rpc,
    attrgetter("metadata"),
    _with_rpc,
    attrgetter("code"),
    _charge,
)
