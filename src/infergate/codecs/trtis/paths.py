"""Which operation an HTTP path asks for, and the path that asks for an operation.

*Rule 1.* Paths are matched as they come, as the servers do: ``sim%70le`` is not ``simple``.
*Rule 2.* What is no path of the API, or asked for by another method, is answered by an empty 400 or
405; no handler is reached.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Final

from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import (
    InferRequest,
    ModelIndexRequest,
    ModelLoadRequest,
    ModelUnloadRequest,
    Operation,
    ServerLiveRequest,
    ServerReadyRequest,
    ServerStatusRequest,
    SharedMemoryRegisterRequest,
    SharedMemoryStatusRequest,
    SharedMemoryUnregisterRequest,
)
from infergate.core.records import record

LIVE: Final = "/api/health/live"
READY: Final = "/api/health/ready"
STATUS: Final = "/api/status"
INDEX: Final = "/api/repository/index"
_MEMORY: Final = "/api/sharedmemorycontrol"


@record
class Place:
    """What a path asks for by its ``method``: ``operation`` holds what the path tells of it."""

    method: str
    operation: Operation


def _infer(model: str, version: str | None) -> Operation:
    return InferRequest(model, (version.lstrip("0") or "0") if version else "")


_FORMS: Final[tuple[tuple[str, str, Callable[..., Operation]], ...]] = (
    ("GET", LIVE, ServerLiveRequest),
    ("GET", READY, ServerReadyRequest),
    ("GET", f"{STATUS}(?:/(.*))?", lambda model: ServerStatusRequest(model or "")),
    ("POST", r"/api/infer/([^/]+)(?:/(\d+))?", _infer),
    ("POST", "/api/modelcontrol/load/([^/]+)", ModelLoadRequest),
    ("POST", "/api/modelcontrol/unload/([^/]+)", ModelUnloadRequest),
    ("GET", INDEX, ModelIndexRequest),
    (
        "POST",
        _MEMORY + r"/register/([^/]+)/(/[^/]+)/(\d{1,20})/(\d{1,20})",
        lambda name, key, offset, size: SharedMemoryRegisterRequest(
            name, key, int(offset), int(size)
        ),
    ),
    (
        "POST",
        _MEMORY + r"/cudaregister/([^/]+)/(\d{1,20})/(\d{1,20})",
        lambda name, size, device: SharedMemoryRegisterRequest(
            name, size=int(size), device=int(device)
        ),
    ),
    ("POST", _MEMORY + "/unregister/([^/]+)", SharedMemoryUnregisterRequest),
    ("POST", _MEMORY + "/unregisterall", SharedMemoryUnregisterRequest),
    ("GET", _MEMORY + "/status", SharedMemoryStatusRequest),
)
_COMPILED: Final = tuple(
    (method, re.compile(form, re.ASCII), make) for method, form, make in _FORMS
)
_SHOWN: Final = 200
_PLAIN: Final = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})+")
"""What a segment of a path may hold as it stands (RFC 3986)."""
_LONGEST_NAME: Final = 4000
"""Bytes. On a target of over 8190, which may hold two names, the servers close the connection
without a word."""


def locate(path: str) -> Place:
    """The place ``path`` names. Raises NOT_FOUND."""
    return _remembered(path) if len(path) <= _SHOWN else _located(path)


def _located(path: str) -> Place:
    for method, form, make in _COMPILED:
        match = form.fullmatch(path)
        if match is not None:
            return Place(method, make(*match.groups()))
    shown = path if len(path) <= _SHOWN else path[:_SHOWN] + "…"
    raise GatewayError(Kind.NOT_FOUND, f"no such path: {shown}")


_remembered: Final = functools.lru_cache(maxsize=1024)(_located)
"""A request's path is looked at several times, and clients ask for few."""


def find(method: str, path: str) -> Operation:
    """What is asked for, and METHOD_NOT_ALLOWED where ``method`` is not the place's."""
    place = locate(path)
    if method != place.method:
        raise GatewayError(
            Kind.METHOD_NOT_ALLOWED,
            f"method {method[:20]} is not allowed here, only {place.method}",
        )
    return place.operation


def query_value(query: str, name: str) -> str:
    """The first value of ``name`` as it stands, or nothing."""
    for pair in query.split("&"):
        key, _, value = pair.partition("=")
        if key == name:
            return value
    return ""


def model_path(begin: str, model: str, version: int = -1) -> str:
    """The path of ``model`` that begins with ``begin``. Raises NOT_FOUND for a name that no model
    has (they are those of folders), UNSUPPORTED for one that no path can hold: servers decode
    nothing."""
    if not model or "/" in model:
        raise GatewayError(Kind.NOT_FOUND, f"no model has the name {model[:_SHOWN]!r}")
    path = f"{begin}/{_segment(model, 'model name')}"
    return path if version < 0 else f"{path}/{version}"


def memory_path(operation: SharedMemoryRegisterRequest | SharedMemoryUnregisterRequest) -> str:
    """The path of ``operation``. Raises UNSUPPORTED for a name or key that no path can hold."""
    match operation:
        case SharedMemoryUnregisterRequest(""):
            return f"{_MEMORY}/unregisterall"
        case SharedMemoryUnregisterRequest(name):
            return f"{_MEMORY}/unregister/{_segment(name, 'region')}"
        case SharedMemoryRegisterRequest(name, device=None):
            key = _segment(operation.key.removeprefix("/"), "key")
            place = f"/{key}/{operation.offset}/{operation.size}"
            return f"{_MEMORY}/register/{_segment(name, 'region')}/{place}"
        case SharedMemoryRegisterRequest(name):
            place = f"{operation.size}/{operation.device}"
            return f"{_MEMORY}/cudaregister/{_segment(name, 'region')}/{place}"


def _segment(text: str, what: str) -> str:
    if len(text) > _LONGEST_NAME or _PLAIN.fullmatch(text) is None or text in (".", ".."):
        raise GatewayError(
            Kind.UNSUPPORTED, f"{what} {text[:_SHOWN]!r} cannot stand in a path of the API"
        )
    return text
