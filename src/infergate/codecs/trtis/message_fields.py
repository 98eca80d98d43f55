"""Lists the fields of messages of the legacy HTTP API for the console."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from google.protobuf.json_format import MessageToDict

from infergate.codecs.trtis import text_format
from infergate.codecs.trtis.http_frontend import REQUEST_HEADER, RESPONSE_HEADER
from infergate.codecs.trtis.messages import InferRequestHeader, InferResponseHeader
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpRequest, HttpResponse, total_size

_MAX_HEADER_CHARACTERS: Final = 16 * 1024


def describe_request(wire: HttpRequest) -> dict[str, Any] | None:
    """Return the fields of an inference, or None if NV-InferRequest is missing, invalid or longer
    than ``_MAX_HEADER_CHARACTERS``."""
    return _describe(InferRequestHeader, REQUEST_HEADER, wire.headers, wire.body)


def describe_response(wire: HttpResponse) -> dict[str, Any] | None:
    """Return the fields of a response, or None if NV-InferResponse is missing, invalid or longer
    than ``_MAX_HEADER_CHARACTERS``."""
    return _describe(InferResponseHeader, RESPONSE_HEADER, wire.headers, wire.body)


def _describe(
    message_class: Any, name: str, headers: Mapping[str, str], body: Sequence[Buffer]
) -> dict[str, Any] | None:
    named = (value for key, value in headers.items() if key.lower() == name.lower())
    text = next(named, "")
    if not text or len(text) > _MAX_HEADER_CHARACTERS:
        return None
    try:
        header = text_format.parse(message_class, text)
    except ValueError:
        return None
    return {
        name: MessageToDict(header, preserving_proto_field_name=True),
        "body": f"{total_size(body)} bytes: the data of the tensors, in the header's order",
    }
