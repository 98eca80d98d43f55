"""Matches GraphPipe request paths to models and operations.

On a shared port a path names a model: ``/graphpipe/<model>[/versions/<version>]``. On a listener
for one model, every path refers to that model, except two of graphpipe-go's control paths, which
report health.
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
_READY: Final = "is_ready"
_ALIVE: Final = "is_alive"
_UNSUPPORTED_CONTROLS: Final = ("client_count", "shutdown")
_MAX_SHOWN_CHARACTERS: Final = 200


@record
class GraphPipePathMatch:
    """The ``operation`` that the path names or, if it is None, the model."""

    model: str = ""
    version: str = ""
    operation: Operation | None = None


def match_path(path: str, model: str) -> GraphPipePathMatch:
    """Match ``path``. On a shared port, ``model`` is empty. Raises NOT_FOUND and BAD_REQUEST."""
    if model:
        return (
            _match_control(path.removeprefix(_CONTROL_PREFIX), model)
            if path.startswith(_CONTROL_PREFIX)
            else (GraphPipePathMatch(model))
        )
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


def _match_control(control_path: str, model: str) -> GraphPipePathMatch:
    if control_path == _READY:
        return GraphPipePathMatch(operation=ModelReadyRequest(model))
    if control_path == _ALIVE:
        return GraphPipePathMatch(operation=ServerLiveRequest())
    if control_path in _UNSUPPORTED_CONTROLS:
        raise _no_such_path(_CONTROL_PREFIX + control_path)
    return GraphPipePathMatch(model)


def _no_such_path(path: str) -> GatewayError:
    shown = path if len(path) <= _MAX_SHOWN_CHARACTERS else path[:_MAX_SHOWN_CHARACTERS] + "…"
    return GatewayError(Kind.NOT_FOUND, f"no such path: {shown}")
