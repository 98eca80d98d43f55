"""Formats wire messages as readable text for the console and for ``infergate explain``.

*Rule.* Messages are truncated before they are formatted, because a backend's message may be as long
as ``limits.body``, and formatting it would delay other requests. JSON of over 1 MiB and gRPC
messages with too many fields are not decoded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any, Final
from urllib.parse import unquote_plus

from google.protobuf import text_format
from google.protobuf.message import Message

from infergate.codecs.protos import SCHEMA
from infergate.codecs.protos.bounded_parser import check_fields, parse_checked
from infergate.codecs.protos.wire_scanner import MalformedMessageError
from infergate.core.credential_names import may_hold_credentials
from infergate.core.decimals import parse_decimal
from infergate.core.limits import MIB
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpRequest, HttpResponse, RpcRequest, RpcResponse, join_parts

Json = dict[str, Any]
_BYTES_PER_ROW: Final = 16
_MAX_DUMP_BYTES: Final = 1024
"""Maximum number of bytes in a hex dump."""
_MAX_TEXT_CHARS: Final = 8192
"""Maximum number of characters shown of a decoded message or a header value."""
_MAX_ITEMS: Final = 32
"""Maximum number of elements shown of a list or a map."""
_MAX_JSON_BYTES: Final = MIB
"""Maximum number of bytes of JSON that is decoded. Decoding takes up to 10 ms. Longer JSON is
truncated and shown undecoded."""
_MAX_FIELDS: Final = 16384
"""Maximum number of fields of a gRPC message that is decoded. A decoded field takes up to 100 bytes
of memory."""
_ELEMENTS_PER_FIELD: Final = 256
"""Number of elements of packed lists that count as one field. A decoded element takes up to 8 bytes
of memory."""
_MAX_DEPTH: Final = 24
"""Maximum number of levels shown of nested JSON."""
_MAX_VALUE_LENGTH: Final = 256
"""Maximum number of bytes or characters shown of one protobuf value."""
_MAX_LENGTH: Final = 10**19 - 1
_JSON_LENGTH_HEADER: Final = "inference-header-content-length"
"""The header of V2 REST that contains the size of the JSON at the beginning of the body."""
HIDDEN: Final = "(hidden)"


def describe_request(wire: HttpRequest | RpcRequest) -> Json:
    """Return the fields ``start`` (the first line), ``headers``, ``size``, ``decoded`` (the decoded
    body as text, or empty) and ``bytes`` (a hex dump) of a request."""
    if isinstance(wire, RpcRequest):
        text = _decode_protobuf(wire.method, wire.message, 0)
        return _describe(f"gRPC {wire.method}", wire.metadata, wire.message, text)
    start = f"{wire.method} {wire.path or '/'}{mask_query(wire.query)} HTTP/1.1"
    return _describe(start, wire.headers, wire.body, _decode_body(wire.headers, wire.body))


def describe_response(wire: HttpResponse | RpcResponse, method: str = "") -> Json:
    """Return the same fields as ``describe_request`` for a response. ``method`` is the gRPC
    method."""
    if isinstance(wire, RpcResponse):
        details = f" {wire.details}" if wire.details else ""
        text = "" if wire.code else _decode_protobuf(method, wire.message, 1)
        return _describe(f"gRPC status {wire.code}{details}", wire.metadata, wire.message, text)
    start = f"HTTP/1.1 {wire.status} {wire.reason}".rstrip()
    return _describe(start, wire.headers, wire.body, _decode_body(wire.headers, wire.body))


def _describe(start: str, headers: Mapping[str, str], body: Sequence[Buffer], text: str) -> Json:
    data = bytes(join_parts(body)) if body else b""
    return {
        "start": start,
        "headers": [[name, _header_value(name, value)] for name, value in headers.items()],
        "size": len(data),
        "decoded": truncate(text),
        "bytes": "\n".join(hex_dump(data)),
    }


def truncate(text: str) -> str:
    """Return the first ``_MAX_TEXT_CHARS`` characters of ``text``, followed by "…" if ``text`` is
    longer."""
    return text if len(text) <= _MAX_TEXT_CHARS else f"{text[:_MAX_TEXT_CHARS]}\n…"


def mask_query(query: str) -> str:
    """Return the ``query`` of a URL with a leading question mark, or an empty string if there is no
    query. Values that may be credentials are hidden."""
    shown = [
        f"{name}={HIDDEN}" if is_credential else f"{name}{value}"
        for name, value, is_credential in query_parameters(query)
    ]
    return f"?{'&'.join(shown)}" if shown else ""


def query_parameters(query: str) -> Iterator[tuple[str, str, bool]]:
    """Yield the name of each parameter of ``query``, its value with the equals sign, and whether
    the value may be a credential. Percent encoding is kept."""
    for parameter in query.split("&") if query else ():
        name, separator, value = parameter.partition("=")
        yield name, separator + value, bool(value) and may_hold_credentials(unquote_plus(name))


def _header_value(name: str, value: str) -> str:
    return HIDDEN if may_hold_credentials(name) else value[:_MAX_TEXT_CHARS]


def hex_dump(data: bytes) -> Iterator[str]:
    """Yield the lines of a hex dump. Each line has an offset, hexadecimal digits and the printable
    characters. If ``data`` is long, the last line has the number of remaining bytes."""
    for offset in range(0, min(len(data), _MAX_DUMP_BYTES), _BYTES_PER_ROW):
        row = data[offset : offset + _BYTES_PER_ROW]
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "·" for byte in row)
        yield f"{offset:06x}  {row.hex(' '):<{_BYTES_PER_ROW * 3 - 1}}  {text}"
    if len(data) > _MAX_DUMP_BYTES:
        yield f"… {len(data) - _MAX_DUMP_BYTES} more bytes"


def _decode_protobuf(method: str, message: Sequence[Buffer], index: int) -> str:
    """Return a message of ``method`` as text. Return an empty string if the method is unknown, or
    if the message is invalid or has too many fields. ``index`` is 0 for a request and 1 for a
    response."""
    data = bytes(join_parts(message))
    try:
        message_class = SCHEMA.method_classes(method)[index]
        check_fields(message_class, data, _MAX_FIELDS, elements_per_field=_ELEMENTS_PER_FIELD)
        decoded = parse_checked(message_class, data)
    except (KeyError, MalformedMessageError):
        return ""
    omissions = list(_shorten(decoded))
    text = str(text_format.MessageToString(decoded, as_utf8=True))
    return "\n".join((text, *omissions)) if omissions else text


def _shorten(message: Message) -> Iterator[str]:
    """Truncate the long values of ``message``, and yield a line for each of these values.
    Formatting a long tensor takes seconds."""
    for field, value in message.ListFields():
        if isinstance(value, Message):
            yield from _shorten(value)
        elif isinstance(value, str | bytes):
            if len(value) > _MAX_VALUE_LENGTH:
                setattr(message, field.name, value[:_MAX_VALUE_LENGTH])
                yield f"… {field.name}: {len(value) - _MAX_VALUE_LENGTH} more bytes or characters"
        elif isinstance(value, MutableMapping):
            yield from _shorten_map(field.name, value)
        elif isinstance(value, MutableSequence):
            yield from _shorten_list(field.name, value)


def _shorten_map(name: str, values: MutableMapping[Any, Any]) -> Iterator[str]:
    if len(values) > _MAX_ITEMS:
        yield f"… {name}: {len(values) - _MAX_ITEMS} more"
        for key in list(values)[_MAX_ITEMS:]:
            del values[key]
    for value in values.values():
        if isinstance(value, Message):
            yield from _shorten(value)


def _shorten_list(name: str, values: MutableSequence[Any]) -> Iterator[str]:
    if len(values) > _MAX_ITEMS:
        yield f"… {name}: {len(values) - _MAX_ITEMS} more"
        del values[_MAX_ITEMS:]
    for index, value in enumerate(values):
        if isinstance(value, Message):
            yield from _shorten(value)
        elif isinstance(value, str | bytes) and len(value) > _MAX_VALUE_LENGTH:
            values[index] = value[:_MAX_VALUE_LENGTH]
            yield f"… {name}[{index}]: {len(value) - _MAX_VALUE_LENGTH} more bytes or characters"


def _decode_body(headers: Mapping[str, str], body: Sequence[Buffer]) -> str:
    data = bytes(join_parts(body)) if body else b""
    length = parse_decimal(headers.get(_JSON_LENGTH_HEADER, ""), _MAX_LENGTH)
    split = len(data) if length is None else length
    text = _decode_json(data[:split])
    binary = len(data) - split
    return f"{text}\n\nand {binary} bytes of tensors" if text and binary > 0 else text


def _decode_json(data: bytes) -> str:
    if len(data) > _MAX_JSON_BYTES:
        beginning = data[:_MAX_TEXT_CHARS].decode(errors="replace")
        return f"{beginning}\n…" if beginning.lstrip().startswith(("{", "[")) else ""
    try:
        return format_json(json.loads(data))
    except (ValueError, RecursionError):
        return ""


def format_json(value: Any, indent: str = "") -> str:
    """Format a JSON value. A list without nested lists and objects takes one line. Long lists and
    deeply nested values are truncated."""
    inner = f"{indent}  "
    if isinstance(value, dict | list) and value and len(indent) >= 2 * _MAX_DEPTH:
        return "…"
    if isinstance(value, dict) and value:
        rows = (f"{inner}{json.dumps(k)}: {format_json(v, inner)}" for k, v in value.items())
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if isinstance(value, list):
        elements = [format_json(element, inner) for element in value[:_MAX_ITEMS]]
        if len(value) > _MAX_ITEMS:
            elements.append(f"… {len(value) - _MAX_ITEMS} more")
        if any(isinstance(element, dict | list) for element in value):
            separator = f",\n{inner}"
            return f"[\n{inner}{separator.join(elements)}\n{indent}]"
        return f"[{', '.join(elements)}]"
    return json.dumps(value, ensure_ascii=False)
