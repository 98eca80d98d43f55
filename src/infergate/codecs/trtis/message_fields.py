"""Lists the fields of messages of the legacy HTTP API for the console."""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.json_format import MessageToDict

from infergate.codecs.trtis import text_format
from infergate.core.wire import HttpRequest, HttpResponse, total_size

_MAX_HEADER_CHARACTERS: Final = 16 * 1024


def describe(
    message_class: Any, name: str, wire: HttpRequest | HttpResponse
) -> dict[str, Any] | None:
    """Return the fields of an inference or of its response, or None if the header ``name`` is
    missing, invalid or longer than ``_MAX_HEADER_CHARACTERS``."""
    values = (value for key, value in wire.headers.items() if key.lower() == name.lower())
    text = next(values, "")
    if not text or len(text) > _MAX_HEADER_CHARACTERS:
        return None
    try:
        header = text_format.parse(message_class, text)
    except ValueError:
        return None
    return {
        name: MessageToDict(header, preserving_proto_field_name=True),
        "body": f"{total_size(wire.body)} bytes: the data of the tensors, in the header's order",
    }
