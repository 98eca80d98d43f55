"""The paths of TensorFlow Serving's REST API (model_servers/http_rest_api_util.cc).

*Rule 1.* The API matches the path and the query together. Case is ignored, except in ``predict``,
``classify``, ``regress`` and ``metadata``.

*Rule 2.* Names are decoded after matching. An invalid percent-escape stays unchanged.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from infergate.codecs.tfs.model_spec import ModelSpec, numeric_version
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.records import record
from infergate.core.wire import HttpRequest

PREDICT: Final = "predict"
CLASSIFY: Final = "classify"
REGRESS: Final = "regress"
METADATA: Final = "metadata"
STATUS: Final = "status"
SERVER: Final = "server"
"""The action of a request without a model. A server that rejects this request is alive."""
OPTIONS: Final = "options"
_METHODS: Final = frozenset({PREDICT, CLASSIFY, REGRESS})
_VERSION: Final = r"(?:(?:/versions/([0-9]+))|(?:/labels/([^/:]+)))?"
_POST: Final = re.compile(
    rf"/v1/models/([^/:]+){_VERSION}:(classify|regress|predict)", re.IGNORECASE | re.DOTALL
)
_GET: Final = re.compile(
    rf"/v1/models(?:/([^/:]+))?{_VERSION}(?:/(metadata))?", re.IGNORECASE | re.DOTALL
)
_MAX_SHOWN: Final = 200


@record
class RestPathMatch:
    """The action and the model that a path names."""

    action: str
    spec: ModelSpec


def match_path(wire: HttpRequest) -> RestPathMatch:
    """Match the path of ``wire``. Raises BAD_REQUEST with TensorFlow Serving's error texts."""
    target = f"{wire.path}?{wire.query}" if wire.query else wire.path
    if wire.method == "OPTIONS" and wire.headers.get("origin", "").startswith(
        ("http://", "https://")
    ):
        return RestPathMatch(OPTIONS, ModelSpec(""))
    match = None
    if wire.method == "POST":
        match = _POST.fullmatch(target)
    elif wire.method == "GET":
        match = _GET.fullmatch(target)
    if match is None or (wire.method == "POST" and match[4] not in _METHODS):
        raise bad_request(f"Malformed request: {wire.method} {target[:_MAX_SHOWN]}")
    name, version, label, action = match.groups()
    if wire.method == "GET":
        action = METADATA if action == METADATA else STATUS if name else SERVER
    return RestPathMatch(
        action, ModelSpec(_decode(name or ""), _version(version), _decode(label or ""))
    )


def _version(digits: str | None) -> int | None:
    if digits is None:
        return None
    version = numeric_version(digits.lstrip("0") or "0")
    if version is None:
        raise bad_request(f"Failed to convert version: {digits[:_MAX_SHOWN]} to numeric.")
    return version


def _decode(segment: str) -> str:
    if "%" not in segment and segment.isascii():
        return segment
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeError:
        raise bad_request("a name in the path is not UTF-8") from None


def model_path(model: str, version: str, label: str, suffix: str) -> str:
    """Return the path of ``model``, followed by ``suffix``. Raises BAD_REQUEST and UNSUPPORTED."""
    if not model:
        raise GatewayError(Kind.UNSUPPORTED, "TensorFlow Serving has no list of models")
    for kind, name in (("model", model), ("label", label)):
        if name in {".", ".."}:
            raise GatewayError(Kind.UNSUPPORTED, f"a path cannot contain the {kind} '{name}'")
    parts = ["/v1/models/", _encode(model)]
    if version:
        if numeric_version(version) is None:
            raise bad_request(f"version '{version}' of model '{model}' is not a number")
        parts += ("/versions/", version)
    elif label:
        parts += ("/labels/", _encode(label))
    return "".join([*parts, suffix])


def _encode(name: str) -> str:
    try:
        return quote(name, safe="")
    except UnicodeEncodeError:
        raise bad_request("a name in the request is not valid Unicode") from None
