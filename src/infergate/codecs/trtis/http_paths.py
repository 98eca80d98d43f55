"""Converts between HTTP paths and operations.

Like legacy servers, the codec matches paths without decoding them: ``sim%70le`` is not ``simple``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Final

from infergate.codecs.base import RequestSummary
from infergate.core import messages
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import Operation
from infergate.core.records import record

LIVE: Final = "/api/health/live"
READY: Final = "/api/health/ready"
STATUS: Final = "/api/status"
INDEX: Final = "/api/repository/index"
_MEMORY_PATH: Final = "/api/sharedmemorycontrol"


@record
class TrtisPathMatch:
    """The operation that a path names, its summary, and the HTTP method that the path requires."""

    method: str
    operation: Operation
    summary: RequestSummary


def _infer_operation(model: str, version: str | None) -> Operation:
    return messages.InferRequest(model, (version.lstrip("0") or "0") if version else "")


_PATTERNS: Final[tuple[tuple[str, str, Callable[..., Operation]], ...]] = (
    ("GET", LIVE, messages.ServerLiveRequest),
    ("GET", READY, messages.ServerReadyRequest),
    ("GET", f"{STATUS}(?:/(.*))?", lambda model: messages.ServerStatusRequest(model or "")),
    ("POST", r"/api/infer/([^/]+)(?:/(\d+))?", _infer_operation),
    ("POST", "/api/modelcontrol/load/([^/]+)", messages.ModelLoadRequest),
    ("POST", "/api/modelcontrol/unload/([^/]+)", messages.ModelUnloadRequest),
    ("GET", INDEX, messages.ModelIndexRequest),
    (
        "POST",
        _MEMORY_PATH + r"/register/([^/]+)/(/[^/]+)/(\d{1,20})/(\d{1,20})",
        lambda name, key, offset, size: messages.SharedMemoryRegisterRequest(
            name, key, int(offset), int(size)
        ),
    ),
    (
        "POST",
        _MEMORY_PATH + r"/cudaregister/([^/]+)/(\d{1,20})/(\d{1,20})",
        lambda name, size, device: messages.SharedMemoryRegisterRequest(
            name, size=int(size), device=int(device)
        ),
    ),
    ("POST", _MEMORY_PATH + "/unregister/([^/]+)", messages.SharedMemoryUnregisterRequest),
    ("POST", _MEMORY_PATH + "/unregisterall", messages.SharedMemoryUnregisterRequest),
    ("GET", _MEMORY_PATH + "/status", messages.SharedMemoryStatusRequest),
)
_COMPILED_PATTERNS: Final = tuple(
    (method, re.compile(pattern, re.ASCII), create) for method, pattern, create in _PATTERNS
)
_MAX_SHOWN: Final = 200
_SEGMENT: Final = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})+")
"""A path segment (RFC 3986)."""
_MAX_SEGMENT: Final = 4000
"""Maximum size of a segment in bytes. Servers reject request targets over 8190 bytes."""


def _match_path(path: str) -> TrtisPathMatch:
    for method, pattern, create in _COMPILED_PATTERNS:
        match = pattern.fullmatch(path)
        if match is not None:
            operation = create(*match.groups())
            model, version = getattr(operation, "model", ""), getattr(operation, "version", "")
            summary = RequestSummary(type(operation), model, version)
            return TrtisPathMatch(method, operation, summary)
    shown = path if len(path) <= _MAX_SHOWN else path[:_MAX_SHOWN] + "…"
    raise GatewayError(Kind.NOT_FOUND, f"no such path: {shown}")


_cached_match: Final = functools.lru_cache(maxsize=1024)(_match_path)


def match_path(method: str, path: str) -> TrtisPathMatch:
    """Match ``path``. Raises NOT_FOUND, or METHOD_NOT_ALLOWED if the path requires another
    method."""
    match = _cached_match(path) if len(path) <= _MAX_SHOWN else _match_path(path)
    if method != match.method:
        raise GatewayError(
            Kind.METHOD_NOT_ALLOWED, f"method {method[:20]} is not allowed here; use {match.method}"
        )
    return match


def query_value(query: str, name: str) -> str:
    """Return the first value of ``name`` in ``query``, not decoded, or an empty string."""
    for pair in query.split("&"):
        key, _, value = pair.partition("=")
        if key == name:
            return value
    return ""


def model_path(prefix: str, model: str, version: int = -1) -> str:
    """Append ``model`` and ``version`` to ``prefix`` without encoding them, because servers do not
    decode paths.

    Raises NOT_FOUND for a name that no model can have (model names are directory names), and
    UNSUPPORTED for a name that a path cannot contain.
    """
    if not model or "/" in model:
        raise GatewayError(Kind.NOT_FOUND, f"no model has the name {model[:_MAX_SHOWN]!r}")
    path = f"{prefix}/{_segment(model, 'model name')}"
    return path if version < 0 else f"{path}/{version}"


def memory_path(
    operation: messages.SharedMemoryRegisterRequest | messages.SharedMemoryUnregisterRequest,
) -> str:
    """Return the path of ``operation``. Raises UNSUPPORTED for a name or key that a path cannot
    contain."""
    match operation:
        case messages.SharedMemoryUnregisterRequest(""):
            return f"{_MEMORY_PATH}/unregisterall"
        case messages.SharedMemoryUnregisterRequest(name):
            return f"{_MEMORY_PATH}/unregister/{_segment(name, 'region')}"
        case messages.SharedMemoryRegisterRequest(name, device=None):
            key = _segment(operation.key.removeprefix("/"), "key")
            location = f"/{key}/{operation.offset}/{operation.size}"
            return f"{_MEMORY_PATH}/register/{_segment(name, 'region')}/{location}"
        case messages.SharedMemoryRegisterRequest(name):
            location = f"{operation.size}/{operation.device}"
            return f"{_MEMORY_PATH}/cudaregister/{_segment(name, 'region')}/{location}"


def _segment(text: str, label: str) -> str:
    if len(text) > _MAX_SEGMENT or _SEGMENT.fullmatch(text) is None or text in (".", ".."):
        raise GatewayError(
            Kind.UNSUPPORTED, f"{label} {text[:_MAX_SHOWN]!r} cannot be used in a path of the API"
        )
    return text
