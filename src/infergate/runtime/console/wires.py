"""Wire messages in the form that people read in the console. Pure.

*Rule.* Messages are truncated, and before decoding if that would take long. A backend's message is
bounded only by ``limits.body``, and the time spent on it here delays other requests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, MutableSequence, Sequence
from typing import Any, Final

from google.protobuf import text_format
from google.protobuf.message import DecodeError, Message

from infergate.codecs.protos import SCHEMA
from infergate.core.limits import MIB
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpRequest, HttpResponse, RpcRequest, RpcResponse, joined

Json = dict[str, Any]
_ROW: Final = 16
_BYTES: Final = 1024
"""The number of bytes in a hex dump."""
_TEXT: Final = 8192
"""The number of characters shown of a decoded message."""
_ITEMS: Final = 32
"""The number of elements shown of a list."""
_DECODED: Final = MIB
"""JSON is decoded up to this size (about 10 ms); of longer JSON, the raw beginning is shown."""
_DEEP: Final = 24
"""The number of levels shown of nested JSON."""
_SAID: Final = 256
"""The number of bytes or characters shown of one protobuf value."""
_DIGITS: Final = 19
_SPLIT: Final = "inference-header-content-length"
"""The header of V2 REST with the size of the JSON at the beginning of the body."""
_SECRET: Final = ("auth", "cookie", "key", "token", "secret")
HIDDEN: Final = "(hidden)"


def of_request(wire: HttpRequest | RpcRequest) -> Json:
    """Return ``start``, ``headers``, ``size``, ``decoded`` (text, empty if it cannot be decoded)
    and ``bytes`` (a hex dump) of a request."""
    if isinstance(wire, RpcRequest):
        text = _protobuf(wire.method, wire.message, 0)
        return _shown(f"gRPC {wire.method}", wire.metadata, wire.message, text)
    query = f"?{wire.query}" if wire.query else ""
    start = f"{wire.method} {wire.path or '/'}{query} HTTP/1.1"
    return _shown(start, wire.headers, wire.body, _body(wire.headers, wire.body))


def of_answer(wire: HttpResponse | RpcResponse, method: str = "") -> Json:
    """Return the same for a response; ``method`` is the gRPC method that was called."""
    if isinstance(wire, RpcResponse):
        details = f" {wire.details}" if wire.details else ""
        text = "" if wire.code else _protobuf(method, wire.message, 1)
        return _shown(f"gRPC status {wire.code}{details}", wire.metadata, wire.message, text)
    start = f"HTTP/1.1 {wire.status} {wire.reason}".rstrip()
    return _shown(start, wire.headers, wire.body, _body(wire.headers, wire.body))


def _shown(start: str, headers: Mapping[str, str], body: Sequence[Buffer], text: str) -> Json:
    data = bytes(joined(body)) if body else b""
    return {
        "start": start,
        "headers": [[name, _header(name, value)] for name, value in headers.items()],
        "size": len(data),
        "decoded": cut(text),
        "bytes": "\n".join(dump(data)),
    }


def cut(text: str) -> str:
    """Return ``text``, truncated if it is long."""
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}\n…"


def _header(name: str, value: str) -> str:
    return HIDDEN if any(word in name for word in _SECRET) else value[:_TEXT]


def dump(data: bytes) -> Iterator[str]:
    """Yield lines of hexadecimal digits with the printable characters beside them."""
    for offset in range(0, min(len(data), _BYTES), _ROW):
        row = data[offset : offset + _ROW]
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "·" for byte in row)
        yield f"{offset:06x}  {row.hex(' '):<{_ROW * 3 - 1}}  {text}"
    if len(data) > _BYTES:
        yield f"… {len(data) - _BYTES} more bytes"


def _protobuf(method: str, message: Sequence[Buffer], which: int) -> str:
    """Return a request (``index`` 0) or response (1) of ``method`` as text, or empty."""
    try:
        decoded = SCHEMA.messages_of(method)[which].FromString(bytes(joined(message)))
    except (KeyError, DecodeError):
        return ""
    omissions = list(_shortened(decoded))
    text = str(text_format.MessageToString(decoded, as_utf8=True))
    return "\n".join((text, *omissions)) if omissions else text


def _shortened(message: Message) -> Iterator[str]:
    """Truncate long values of ``message`` and yield a line for each, because formatting a tensor
    takes seconds."""
    for field, value in message.ListFields():
        if isinstance(value, Message):
            yield from _shortened(value)
        elif isinstance(value, str | bytes):
            if len(value) > _SAID:
                setattr(message, field.name, value[:_SAID])
                yield f"… {field.name}: {len(value) - _SAID} more bytes or characters"
        elif isinstance(value, Mapping):
            for member in value.values():
                if isinstance(member, Message):
                    yield from _shortened(member)
        elif isinstance(value, MutableSequence):
            yield from _shortened_list(field.name, value)


def _shortened_list(name: str, values: MutableSequence[Any]) -> Iterator[str]:
    if len(values) > _ITEMS:
        yield f"… {name}: {len(values) - _ITEMS} more"
        del values[_ITEMS:]
    for index, value in enumerate(values):
        if isinstance(value, Message):
            yield from _shortened(value)
        elif isinstance(value, str | bytes) and len(value) > _SAID:
            values[index] = value[:_SAID]
            yield f"… {name}[{index}]: {len(value) - _SAID} more bytes or characters"


def _body(headers: Mapping[str, str], body: Sequence[Buffer]) -> str:
    data = bytes(joined(body)) if body else b""
    length = headers.get(_SPLIT, "")
    is_number = length.isascii() and length.isdecimal() and len(length) <= _DIGITS
    split = int(length) if is_number else len(data)
    text = _json(data[:split])
    binary = len(data) - split
    return f"{text}\n\nand {binary} bytes of tensors" if text and binary > 0 else text


def _json(data: bytes) -> str:
    if len(data) > _DECODED:
        beginning = data[:_TEXT].decode(errors="replace")
        return f"{beginning}\n…" if beginning.lstrip().startswith(("{", "[")) else ""
    try:
        return pretty(json.loads(data))
    except (ValueError, RecursionError):
        return ""


def pretty(value: Any, indent: str = "") -> str:
    """Format JSON with lists of plain values on one line; long or deep lists are truncated."""
    deeper = f"{indent}  "
    if isinstance(value, dict | list) and value and len(indent) >= 2 * _DEEP:
        return "…"
    if isinstance(value, dict) and value:
        rows = (f"{deeper}{json.dumps(k)}: {pretty(v, deeper)}" for k, v in value.items())
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(element, dict | list) for element in value):
        rows = (f"{deeper}{pretty(element, deeper)}" for element in value[:_ITEMS])
        return "[\n" + ",\n".join(rows) + f"\n{indent}]"
    if isinstance(value, list):
        elements = [json.dumps(element, ensure_ascii=False) for element in value[:_ITEMS]]
        if len(value) > _ITEMS:
            elements.append(f"… {len(value) - _ITEMS} more")
        return f"[{', '.join(elements)}]"
    return json.dumps(value, ensure_ascii=False)
