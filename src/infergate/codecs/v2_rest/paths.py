"""Which operation a path asks for, and the path that asks for an operation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.messages import (
    InferRequest,
    ModelIndexRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    Operation,
    ServerLiveRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
)

INDEX: Final = "/v2/repository/index"
NAMES: Final = "/v2/models"


@dataclass(frozen=True, slots=True)
class Place:
    """What a path names. ``method`` is the one that it answers to."""

    method: str
    operation: type[Operation]
    model: str = ""
    version: str = ""


SERVER_PLACES: Final = {
    "/v2": Place("GET", ServerMetadataRequest),
    "/v2/": Place("GET", ServerMetadataRequest),  # as the Open Inference Protocol spells it
    "/v2/health/live": Place("GET", ServerLiveRequest),
    "/v2/health/ready": Place("GET", ServerReadyRequest),
    NAMES: Place("GET", ModelIndexRequest),
    INDEX: Place("POST", ModelIndexRequest),
}
_MODEL_PLACES: Final[dict[str, tuple[str, type[Operation]]]] = {
    "": ("GET", ModelMetadataRequest),
    "/ready": ("GET", ModelReadyRequest),
    "/infer": ("POST", InferRequest),
}
_MODEL: Final = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?(|/ready|/infer)")
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_SHOWN: Final = 200


def locate(path: str) -> Place:
    """The place ``path`` names. Raises NOT_FOUND, or BAD_REQUEST for a wrong percent-escape."""
    known = SERVER_PLACES.get(path)
    if known is not None:
        return known
    match = _MODEL.fullmatch(path)
    if match is None:
        shown = path if len(path) <= _SHOWN else path[:_SHOWN] + "…"
        raise GatewayError(Kind.NOT_FOUND, f"no such path: {shown}")
    model, version, rest = match.groups()
    method, operation = _MODEL_PLACES[rest]
    return Place(
        method, operation, _decoded(model, "model name"), _decoded(version or "", "model version")
    )


def find(method: str, path: str) -> Place:
    """:func:`locate`, and METHOD_NOT_ALLOWED where ``method`` is not the place's."""
    place = locate(path)
    if method != place.method:
        raise GatewayError(
            Kind.METHOD_NOT_ALLOWED,
            f"method {method[:20]} is not allowed here, only {place.method}",
        )
    return place


def _decoded(segment: str, what: str) -> str:
    if "%" not in segment and segment.isascii():
        text = segment
    elif _BAD_ESCAPE.search(segment):
        raise bad_request(f"the {what} in the path has a wrong percent-escape")
    else:
        try:
            text = unquote_to_bytes(segment).decode()
        except UnicodeError:
            raise bad_request(f"the {what} in the path is not UTF-8") from None
    if text in (".", ".."):  # HTTP clients on the way would resolve such a path
        raise bad_request(f"the {what} may not be '{text}'")
    return text


def model_path(model: str, version: str, rest: str) -> str:
    """The path of ``rest`` ("", "/ready", "/infer") of a model. Raises BAD_REQUEST for no name."""
    if not model:
        raise bad_request("the model name is empty")
    path = f"/v2/models/{_encoded(model)}"
    if version:
        path += f"/versions/{_encoded(version)}"
    return path + rest


def _encoded(segment: str) -> str:
    if segment in (".", ".."):
        raise GatewayError(
            Kind.UNSUPPORTED, f"a model name or version may not be '{segment}' over REST"
        )
    return quote(segment, safe="", errors="replace")
