"""Converts errors to gRPC statuses, with TensorFlow Serving's codes and error texts for the
errors that TensorFlow Serving defines."""

from __future__ import annotations

import re
from typing import Final

from infergate.codecs.protos.statuses import status_code
from infergate.codecs.tfs.messages import RELOAD, STATUS
from infergate.codecs.tfs.model_spec import RequestedModel
from infergate.core.errors import (
    GatewayError,
    Kind,
    RepositoryControlDisabledError,
    retry_after_headers,
)
from infergate.core.wire import RpcResponse

_FAILED_PRECONDITION: Final = 9
_UNIMPLEMENTED: Final = 12
_UNKNOWN_SIGNATURE: Final = re.compile(r'Serving signature key "')
MAX_TEXT_BYTES: Final = 1024
_TRUNCATED: Final = "...TRUNCATED"
"""The suffix of a truncated text (model_servers/grpc_status_util.cc)."""


def build_error(error: GatewayError, method: str, requested: RequestedModel | None) -> RpcResponse:
    """Return ``error`` as the status of ``method``. For NOT_FOUND, ``requested`` is the requested
    model, or None if the request names no model or cannot be read."""
    text = error.public
    if error.kind is Kind.NOT_FOUND and requested is not None:
        text = unknown_model_text(requested, is_status=method == STATUS)
    return RpcResponse(
        code=_code(error, method), details=_shorten(text), metadata=retry_after_headers(error)
    )


def _code(error: GatewayError, method: str) -> int:
    if error.kind is Kind.BAD_REQUEST and _UNKNOWN_SIGNATURE.match(error.public):
        return _FAILED_PRECONDITION
    if method == RELOAD and isinstance(error, RepositoryControlDisabledError):
        return _UNIMPLEMENTED
    return status_code(error)


def unknown_model_text(requested: RequestedModel, *, is_status: bool) -> str:
    """Return TensorFlow Serving's text about a model that does not exist."""
    name, version = requested.spec.name, requested.version
    if is_status:
        if version:
            return f"Could not find version {version} of model {name}"
        return f"Could not find any versions of model {name}"
    model_spec = f"Specific({name}, {version})" if version else f"Latest({name})"
    return f"Servable not found for request: {model_spec}"


def _shorten(text: str) -> str:
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= MAX_TEXT_BYTES:
        return encoded.decode()
    return encoded[:MAX_TEXT_BYTES].decode("utf-8", "ignore") + _TRUNCATED
