"""Paths of GraphPipe: the model or operation that a path names.

*Rule 1.* On a shared port a path names a model: ``/graphpipe/<model>[/versions/<version>]``. On a
listener for one model every path means that model, because clients keep whatever address they were
given.
*Rule 2.* GET requests the metadata; for any other method the body determines the operation, as on
graphpipe-go's server.
*Rule 3.* Of that server's control paths, a listener for one model has the two that report health,
``/control/is_ready`` and ``/control/is_alive``, for any method.
"""

from __future__ import annotations

import functools
import re
from typing import Final

from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import ModelReadyRequest, Operation, ServerLiveRequest
from infergate.core.paths import decoded
from infergate.core.records import record

CLAIM: Final = "graphpipe"
_MODEL: Final = re.compile(rf"/{CLAIM}/([^/]+)(?:/versions/([^/]+))?")
_CONTROL: Final = "/control/"
_READY: Final = "is_ready"
_ALIVE: Final = "is_alive"
_OTHERS: Final = ("client_count", "shutdown")
_SHOWN: Final = 200


@record
class Place:
    """A model or, if it is not None, the ``operation`` that the path names."""

    model: str = ""
    version: str = ""
    question: Operation | None = None


def locate(path: str, model: str) -> Place:
    """Match ``path`` on a listener for ``model`` (empty: a shared port). Raises NOT_FOUND, or
    BAD_REQUEST for a name that cannot be decoded."""
    if model:
        return (
            _control(path.removeprefix(_CONTROL), model)
            if path.startswith(_CONTROL)
            else (Place(model))
        )
    return _remembered(path) if len(path) <= _SHOWN else _located(path)


def _located(path: str) -> Place:
    """Match a path on a shared port."""
    match = _MODEL.fullmatch(path)
    if match is None:
        raise _no_such(path)
    name, version = match.groups()
    return Place(decoded(name, "model name"), decoded(version or "", "model version"))


_remembered: Final = functools.lru_cache(maxsize=1024)(_located)
"""A cache, because a request's path is matched several times and clients use few paths."""


def _control(word: str, model: str) -> Place:
    if word == _READY:
        return Place(question=ModelReadyRequest(model))
    if word == _ALIVE:
        return Place(question=ServerLiveRequest())
    if word in _OTHERS:
        raise _no_such(_CONTROL + word)
    return Place(model)


def _no_such(path: str) -> GatewayError:
    shown = path if len(path) <= _SHOWN else path[:_SHOWN] + "…"
    return GatewayError(Kind.NOT_FOUND, f"no such path: {shown}")
