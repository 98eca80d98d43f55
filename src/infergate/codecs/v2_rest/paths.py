"""Paths of V2 REST: the operation that a path names, and the path of an operation."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final
from urllib.parse import quote

from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.messages import (
    InferRequest,
    LogSettingsRequest,
    ModelConfigRequest,
    ModelIndexRequest,
    ModelLoadRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    ModelStatisticsRequest,
    ModelUnloadRequest,
    Operation,
    ServerLiveRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
    SharedMemoryRegisterRequest,
    SharedMemoryStatusRequest,
    SharedMemoryUnregisterRequest,
    TraceSettingsRequest,
)
from infergate.core.paths import decoded
from infergate.core.records import record

INDEX: Final = "/v2/repository/index"
NAMES: Final = "/v2/models"
STATISTICS: Final = "/v2/models/stats"
LOGGING: Final = "/v2/logging"
TRACE: Final = "/v2/trace/setting"


@record
class Place:
    """The operation and the names in a path.

    ``method`` is the method of the path; ``allows_get`` adds GET. ``action`` distinguishes the
    kinds of inference requests. ``repository`` is a model repository; ``region`` is a shared memory
    region, on a GPU if ``cuda``. Names that the path does not have are empty.
    """

    method: str
    operation: type[Operation]
    model: str = ""
    version: str = ""
    repository: str = ""
    or_get: bool = False
    region: str = ""
    cuda: bool = False
    verb: str = ""

    @property
    def allow(self) -> str:
        """The allowed methods, as the value of an Allow header."""
        return f"GET, {self.method}" if self.or_get else self.method


SERVER_PLACES: Final = {
    "/v2": Place("GET", ServerMetadataRequest),
    "/v2/": Place("GET", ServerMetadataRequest),  # the Open Inference Protocol's spelling
    "/v2/health/live": Place("GET", ServerLiveRequest),
    "/v2/health/ready": Place("GET", ServerReadyRequest),
    NAMES: Place("GET", ModelIndexRequest),
    INDEX: Place("POST", ModelIndexRequest),
    STATISTICS: Place("GET", ModelStatisticsRequest),
    LOGGING: Place("POST", LogSettingsRequest, or_get=True),
    TRACE: Place("POST", TraceSettingsRequest, or_get=True),
}
_MODEL_PLACES: Final[dict[str, tuple[str, type[Operation]]]] = {
    "": ("GET", ModelMetadataRequest),
    "/ready": ("GET", ModelReadyRequest),
    "/infer": ("POST", InferRequest),
    "/infer_stream": ("POST", InferRequest),
    "/generate": ("POST", InferRequest),
    "/generate_stream": ("POST", InferRequest),
    "/config": ("GET", ModelConfigRequest),
    "/stats": ("GET", ModelStatisticsRequest),
    "/trace/setting": ("POST", TraceSettingsRequest),
}
_MODEL: Final = re.compile(
    r"/v2/models/([^/]+)(?:/versions/([^/]+))?"
    r"(|/ready|/(?:infer|generate)(?:_stream)?|/config|/stats|/trace/setting)"
)
_CONTROLS: Final[dict[str, type[Operation]]] = {
    "index": ModelIndexRequest,
    "load": ModelLoadRequest,
    "unload": ModelUnloadRequest,
}
_REPOSITORY: Final = re.compile(
    r"/v2/repository(?:/([^/]+))?(?:/(index)|/models/([^/]+)/(load|unload))"
)
_MEMORY: Final = re.compile(
    r"/v2/(system|cuda)sharedmemory(?:/region/([^/]+))?/(status|register|unregister)"
)
_MEMORY_PLACES: Final[dict[str, tuple[str, type[Operation]]]] = {
    "status": ("GET", SharedMemoryStatusRequest),
    "register": ("POST", SharedMemoryRegisterRequest),
    "unregister": ("POST", SharedMemoryUnregisterRequest),
}
_SHOWN: Final = 200


def locate(path: str) -> Place:
    """Match ``path``. Raises NOT_FOUND, or BAD_REQUEST for an invalid percent-escape."""
    return _remembered(path) if len(path) <= _SHOWN else _located(path)


def _located(path: str) -> Place:
    server_match = SERVER_PLACES.get(path)
    if server_match is not None:
        return server_match
    match = _MODEL.fullmatch(path)
    if match is None and (match := _REPOSITORY.fullmatch(path)) is not None:
        repository, index, model, action = match.groups()
        return Place(
            "POST",
            _CONTROLS[index or action],
            decoded(model or "", "model name"),
            repository=decoded(repository or "", "repository's name"),
        )
    if match is None and (match := _MEMORY.fullmatch(path)) is not None:
        memory_kind, region, verb = match.groups()
        region_name = decoded(region or "", "region's name")
        return Place(*_MEMORY_PLACES[verb], region=region_name, cuda=memory_kind == "cuda")
    if match is None:
        shown = path if len(path) <= _SHOWN else path[:_SHOWN] + "…"
        raise GatewayError(Kind.NOT_FOUND, f"no such path: {shown}")
    model, version, suffix = match.groups()
    method, operation = _MODEL_PLACES[suffix]
    return Place(
        method,
        operation,
        decoded(model, "model name"),
        decoded(version or "", "model version"),
        or_get=operation is TraceSettingsRequest,
        verb=suffix[1:],
    )


_remembered: Final = lru_cache(maxsize=1024)(_located)
"""A cache, because a request's path is matched several times and clients use few paths. Its entries
take under 1 MB, whatever paths clients request."""


def find(method: str, path: str) -> Place:
    """Match ``path`` like :func:`match_path`. Raises METHOD_NOT_ALLOWED if the path does not allow
    ``method``."""
    match = _remembered(path) if len(path) <= _SHOWN else _located(path)
    if method != match.method and not (match.or_get and method == "GET"):
        raise GatewayError(
            Kind.METHOD_NOT_ALLOWED,
            f"method {method[:20]} is not allowed here, only {match.allow}",
        )
    return match


def model_path(model: str, version: str, rest: str) -> str:
    """Return the path of a model with a suffix ("", "/ready", "/infer", …). Raises BAD_REQUEST for
    an empty name."""
    if not model:
        raise bad_request("the model name is empty")
    path = f"/v2/models/{_encoded(model)}"
    if version:
        path += f"/versions/{_encoded(version)}"
    return path + rest


def repository_path(repository: str, model: str, control: str) -> str:
    """Return the path of an action ("load", "unload"). Raises BAD_REQUEST for an empty name."""
    if not model:
        raise bad_request("the model name is empty")
    repository_segment = f"/{_encoded(repository)}" if repository else ""
    return f"/v2/repository{repository_segment}/models/{_encoded(model)}/{control}"


def memory_path(region: str, verb: str, *, cuda: bool) -> str:
    """Return the path of an action ("status", "register", "unregister") on a region, or on all
    regions if the name is empty."""
    path = "/v2/cudasharedmemory" if cuda else "/v2/systemsharedmemory"
    if region:
        path += f"/region/{_encoded(region)}"
    return f"{path}/{verb}"


def _encoded(segment: str) -> str:
    if segment in (".", ".."):
        raise GatewayError(
            Kind.UNSUPPORTED, f"a model name or version may not be '{segment}' over REST"
        )
    return quote(segment, safe="", errors="replace")
