"""What sending needs to know of the messages of a carrier."""

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
    """Where a carrier keeps its headers: ``add`` puts more of them on a request. ``declines``:
    whether an answer says that its endpoint cannot serve now: HTTP 502, 503 or 504 (Envoy's gateway
    failures), gRPC UNAVAILABLE. 500 and INTERNAL are not among them: they are what servers make of
    a client's bad input too. ``sent`` are a request's, ``with_headers`` is a copy of it with these
    instead; ``status`` is an answer's code. ``charge`` says who the answer is counted for."""

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
