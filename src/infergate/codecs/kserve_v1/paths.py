"""Paths of KServe's V1 protocol: the operation that a path names, and the path of an operation.

KServe's paths are case-sensitive, and KServe ignores the query. KServe redirects a path with a
trailing slash; infergate serves the path."""

from __future__ import annotations

from functools import lru_cache
from typing import Final
from urllib.parse import quote

from infergate.codecs.base import RequestSummary
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.messages import InferRequest, ModelIndexRequest, ServerLiveRequest
from infergate.core.path_segments import decode_segment
from infergate.core.records import record

PROTOCOL: Final = "kserve-v1"
PREDICT: Final = "predict"
EXPLAIN: Final = "explain"
MODELS_PATH: Final = "/v1/models"
NOT_FOUND: Final = "Not Found"
METHOD_NOT_ALLOWED: Final = "Method Not Allowed"
"""KServe's error texts for unknown paths and methods."""
_MAX_CACHED_CHARACTERS: Final = 200


@record
class V1PathMatch:
    """The operation and the model of a request. ``verb`` is ``predict`` or ``explain`` for an
    inference, and empty for other operations."""

    summary: RequestSummary
    verb: str = ""


def match_request(method: str, path: str) -> V1PathMatch:
    """Match a request. Raises NOT_FOUND, METHOD_NOT_ALLOWED, and BAD_REQUEST for a model name that
    ``decode_segment`` rejects."""
    match = _cached_match if len(path) <= _MAX_CACHED_CHARACTERS else _match
    return match(method if method in {"GET", "POST"} else "", path)


def _match(method: str, path: str) -> V1PathMatch:
    path = path.removesuffix("/")
    if path in {"", MODELS_PATH}:
        _check_get(method)
        return V1PathMatch(RequestSummary(ModelIndexRequest if path else ServerLiveRequest))
    name = path.removeprefix(f"{MODELS_PATH}/")
    if "/" in name or not name:
        raise GatewayError(Kind.NOT_FOUND, NOT_FOUND)
    name = decode_segment(name, "model name")
    model, _, verb = name.rpartition(":")
    if method == "POST" and verb in {PREDICT, EXPLAIN} and model:
        return V1PathMatch(RequestSummary(InferRequest, model), verb)
    _check_get(method)
    return V1PathMatch(RequestSummary(ModelIndexRequest, name))


_cached_match: Final = lru_cache(maxsize=1024)(_match)
"""Caches matches, because clients use few paths. The entries take less than 1 MB."""


def _check_get(method: str) -> None:
    if method != "GET":
        raise GatewayError(Kind.METHOD_NOT_ALLOWED, METHOD_NOT_ALLOWED)


def model_path(model: str, verb: str = "") -> str:
    """Return the path of ``model``, or of its ``verb``. Raises BAD_REQUEST for an empty name."""
    if not model:
        raise bad_request("the model name is empty")
    path = f"{MODELS_PATH}/{quote(model, safe='', errors='replace')}"
    return f"{path}:{verb}" if verb else path
