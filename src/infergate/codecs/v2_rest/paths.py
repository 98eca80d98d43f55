"""Matches the paths of V2 REST to operations, and builds the paths of operations."""

from __future__ import annotations

import re
from dataclasses import field
from functools import lru_cache
from typing import Final
from urllib.parse import quote

from infergate.codecs.base import RequestSummary
from infergate.codecs.http_status import method_not_allowed
from infergate.core import messages
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.messages import InferRequest, Operation
from infergate.core.path_segments import decode_segment
from infergate.core.records import record

INDEX_PATH: Final = "/v2/repository/index"
MODEL_LIST_PATH: Final = "/v2/models"
STATISTICS_PATH: Final = "/v2/models/stats"
LOGGING_PATH: Final = "/v2/logging"
TRACE_PATH: Final = "/v2/trace/setting"
TRANSLATED_ACTIONS: Final = frozenset({"generate", "generate_stream", "infer_stream"})
"""The actions of inference requests that few servers support. The gateway always translates
requests with these actions."""


@record
class V2PathMatch:
    """The operation and the names in a path. A name that the path does not contain is empty.

    ``method`` is the HTTP method that the path requires. If ``allows_get`` is true, the path also
    allows GET. ``action`` is the part of the path after the model and version, such as ``infer``
    or ``generate_stream``. ``region`` is the name of a shared memory region, which is GPU memory if
    ``cuda`` is true. ``summary`` describes the request.
    """

    method: str
    operation: type[Operation]
    model: str = ""
    version: str = ""
    repository: str = ""
    allows_get: bool = False
    region: str = ""
    cuda: bool = False
    action: str = ""
    summary: RequestSummary = field(init=False)

    def __post_init__(self) -> None:
        can_pass_through = self.action not in TRANSLATED_ACTIONS
        self.summary = RequestSummary(self.operation, self.model, self.version, can_pass_through)  # type: ignore[misc]

    @property
    def allowed_methods(self) -> str:
        """The value of an Allow header."""
        return f"GET, {self.method}" if self.allows_get else self.method


SERVER_PATHS: Final = {
    "/v2": V2PathMatch("GET", messages.ServerMetadataRequest),
    "/v2/": V2PathMatch("GET", messages.ServerMetadataRequest),  # Open Inference Protocol
    "/v2/health/live": V2PathMatch("GET", messages.ServerLiveRequest),
    "/v2/health/ready": V2PathMatch("GET", messages.ServerReadyRequest),
    MODEL_LIST_PATH: V2PathMatch("GET", messages.ModelIndexRequest),
    INDEX_PATH: V2PathMatch("POST", messages.ModelIndexRequest),
    STATISTICS_PATH: V2PathMatch("GET", messages.ModelStatisticsRequest),
    LOGGING_PATH: V2PathMatch("POST", messages.LogSettingsRequest, allows_get=True),
    TRACE_PATH: V2PathMatch("POST", messages.TraceSettingsRequest, allows_get=True),
}
_MODEL_ACTIONS: Final[dict[str, tuple[str, type[Operation]]]] = {
    "": ("GET", messages.ModelMetadataRequest),
    "/ready": ("GET", messages.ModelReadyRequest),
    "/infer": ("POST", InferRequest),
    "/infer_stream": ("POST", InferRequest),
    "/generate": ("POST", InferRequest),
    "/generate_stream": ("POST", InferRequest),
    "/config": ("GET", messages.ModelConfigRequest),
    "/stats": ("GET", messages.ModelStatisticsRequest),
    "/trace/setting": ("POST", messages.TraceSettingsRequest),
}
_MODEL_PATH: Final = re.compile(
    r"/v2/models/([^/]+)(?:/versions/([^/]+))?"
    r"(|/ready|/(?:infer|generate)(?:_stream)?|/config|/stats|/trace/setting)"
)
_REPOSITORY_ACTIONS: Final[dict[str, type[Operation]]] = {
    "index": messages.ModelIndexRequest,
    "load": messages.ModelLoadRequest,
    "unload": messages.ModelUnloadRequest,
}
_REPOSITORY_PATH: Final = re.compile(
    r"/v2/repository(?:/([^/]+))?(?:/(index)|/models/([^/]+)/(load|unload))"
)
_MEMORY_PATH: Final = re.compile(
    r"/v2/(system|cuda)sharedmemory(?:/region/([^/]+))?/(status|register|unregister)"
)
_MEMORY_ACTIONS: Final[dict[str, tuple[str, type[Operation]]]] = {
    "status": ("GET", messages.SharedMemoryStatusRequest),
    "register": ("POST", messages.SharedMemoryRegisterRequest),
    "unregister": ("POST", messages.SharedMemoryUnregisterRequest),
}
_MAX_SHORT_PATH: Final = 200
"""Maximum length of a path that is cached, and that an error message contains in full."""


def match_path(path: str) -> V2PathMatch:
    """Match ``path``. Raises NOT_FOUND, or BAD_REQUEST for an invalid percent-escape."""
    return _cached_match(path) if len(path) <= _MAX_SHORT_PATH else _match_path(path)


def _match_path(path: str) -> V2PathMatch:
    server_match = SERVER_PATHS.get(path)
    if server_match is not None:
        return server_match
    match = _MODEL_PATH.fullmatch(path)
    if match is None and (match := _REPOSITORY_PATH.fullmatch(path)) is not None:
        repository, index, model, action = match.groups()
        return V2PathMatch(
            "POST",
            _REPOSITORY_ACTIONS[index or action],
            decode_segment(model or "", "model name"),
            repository=decode_segment(repository or "", "repository's name"),
        )
    if match is None and (match := _MEMORY_PATH.fullmatch(path)) is not None:
        memory_kind, region, verb = match.groups()
        region_name = decode_segment(region or "", "region's name")
        return V2PathMatch(*_MEMORY_ACTIONS[verb], region=region_name, cuda=memory_kind == "cuda")
    if match is None:
        shown = path if len(path) <= _MAX_SHORT_PATH else path[:_MAX_SHORT_PATH] + "…"
        raise GatewayError(Kind.NOT_FOUND, f"no such path: {shown}")
    model, version, suffix = match.groups()
    method, operation = _MODEL_ACTIONS[suffix]
    return V2PathMatch(
        method,
        operation,
        decode_segment(model, "model name"),
        decode_segment(version or "", "model version"),
        allows_get=operation is messages.TraceSettingsRequest,
        action=suffix[1:],
    )


_cached_match: Final = lru_cache(maxsize=1024)(_match_path)
"""A cache of matches, because clients use few paths. The cache takes less than 1 MB, even if all
paths have the maximum length."""


def match_request(method: str, path: str) -> V2PathMatch:
    """Match ``path`` like :func:`match_path`. Also raises METHOD_NOT_ALLOWED if the path does not
    allow ``method``."""
    match = _cached_match(path) if len(path) <= _MAX_SHORT_PATH else _match_path(path)
    if method != match.method and not (match.allows_get and method == "GET"):
        raise method_not_allowed(method, match.allowed_methods)
    return match


def model_path(model: str, version: str, suffix: str) -> str:
    """Return the path of a model with ``suffix`` ("", "/infer" and so on). Raises BAD_REQUEST and
    UNSUPPORTED."""
    if not model:
        raise bad_request("the model name is empty")
    path = f"/v2/models/{_quote_segment(model)}"
    if version:
        path += f"/versions/{_quote_segment(version)}"
    return path + suffix


def repository_path(repository: str, model: str, action: str) -> str:
    """Return the path of ``action`` ("load", "unload"). Raises BAD_REQUEST and UNSUPPORTED."""
    if not model:
        raise bad_request("the model name is empty")
    repository_segment = f"/{_quote_segment(repository)}" if repository else ""
    return f"/v2/repository{repository_segment}/models/{_quote_segment(model)}/{action}"


def memory_path(region: str, action: str, *, cuda: bool) -> str:
    """Return the path of ``action`` ("status", "register", "unregister") for ``region``, or for all
    regions if ``region`` is empty. Raises UNSUPPORTED."""
    path = "/v2/cudasharedmemory" if cuda else "/v2/systemsharedmemory"
    if region:
        path += f"/region/{_quote_segment(region)}"
    return f"{path}/{action}"


def _quote_segment(segment: str) -> str:
    if segment in (".", ".."):
        raise GatewayError(
            Kind.UNSUPPORTED, f"a name or version must not be '{segment}' in a REST path"
        )
    return quote(segment, safe="", errors="replace")
