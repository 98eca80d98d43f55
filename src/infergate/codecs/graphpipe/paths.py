"""Matches GraphPipe request paths to models and operations.

On a shared port, a path names a model: ``/graphpipe/<model>[/versions/<version>]``. On a listener
for one model, every path refers to this model, except graphpipe-go's control paths.
"""

from __future__ import annotations

import functools
import re
from typing import Final

from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import ModelReadyRequest, Operation, ServerLiveRequest
from infergate.core.path_segments import decode_segment
from infergate.core.records import record

PATH_PREFIX: Final = "graphpipe"
_MODEL_PATH: Final = re.compile(rf"/{PATH_PREFIX}/([^/]+)(?:/versions/([^/]+))?")
_CONTROL_PREFIX: Final = "/control/"
_MAX_SHOWN_CHARACTERS: Final = 200


@record
class GraphPipePathMatch:
    """The ``operation`` of a control path, or the model of any other path."""

    model: str = ""
    version: str = ""
    operation: Operation | None = None


def match_path(path: str, model: str) -> GraphPipePathMatch:
    """Match ``path``. On a shared port, ``model`` is empty. Raises NOT_FOUND and BAD_REQUEST."""
    if model:
        is_control = path.startswith(_CONTROL_PREFIX)
        return _match_control(path, model) if is_control else GraphPipePathMatch(model)
    return _cached_match(path) if len(path) <= _MAX_SHOWN_CHARACTERS else _match_path(path)


def _match_path(path: str) -> GraphPipePathMatch:
    """Match a path on a shared port."""
    match = _MODEL_PATH.fullmatch(path)
    if match is None:
        raise _no_such_path(path)
    name, version = match.groups()
    return GraphPipePathMatch(
        decode_segment(name, "model name"), decode_segment(version or "", "model version")
    )


_cached_match: Final = functools.lru_cache(maxsize=1024)(_match_path)
"""Caches matches, because each request's path is matched several times and clients use few
paths."""


def _match_control(path: str, model: str) -> GraphPipePathMatch:
    match path.removeprefix(_CONTROL_PREFIX):
        case "is_ready":
            return GraphPipePathMatch(operation=ModelReadyRequest(model))
        case "is_alive":
            return GraphPipePathMatch(operation=ServerLiveRequest())
        case "client_count" | "shutdown":  # infergate does not support these control paths
            raise _no_such_path(path)
    return GraphPipePathMatch(model)


def _no_such_path(path: str) -> GatewayError:
    shown = path if len(path) <= _MAX_SHOWN_CHARACTERS else path[:_MAX_SHOWN_CHARACTERS] + "…"
    return GatewayError(Kind.NOT_FOUND, f"no such path: {shown}")
