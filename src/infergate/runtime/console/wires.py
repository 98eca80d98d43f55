"""Wire messages as a person reads them. Pure.

*Rule.* What is shown is cut, and before it is decoded where that takes time: a person looks at the
beginning, and a tensor may be long. What a backend says has no bound but ``limits.body``, and what
is done with it here keeps requests waiting.
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
"""How many are shown, sixteen a line."""
_TEXT: Final = 8192
"""Characters of what was decoded."""
_ITEMS: Final = 32
"""Elements of a list in JSON."""
_DECODED: Final = MIB
"""Bytes of JSON that are decoded (10 ms or so); of more the beginning is shown as it is."""
_DEEP: Final = 24
"""Levels of JSON that are shown."""
_SAID: Final = 256
"""Bytes or characters of one value in protobuf."""
_DIGITS: Final = 19
_SPLIT: Final = "inference-header-content-length"
"""V2's header that tells how much of a body is JSON."""
_SECRET: Final = ("auth", "cookie", "key", "token", "secret")
HIDDEN: Final = "(hidden)"


def of_request(wire: HttpRequest | RpcRequest) -> Json:
    """``start``, ``headers``, ``size``, ``decoded`` (text; empty: nobody knows how) and ``bytes``,
    a dump of hexadecimal digits."""
    if isinstance(wire, RpcRequest):
        text = _protobuf(wire.method, wire.message, 0)
        return _shown(f"gRPC {wire.method}", wire.metadata, wire.message, text)
    query = f"?{wire.query}" if wire.query else ""
    start = f"{wire.method} {wire.path or '/'}{query} HTTP/1.1"
    return _shown(start, wire.headers, wire.body, _body(wire.headers, wire.body))


def of_answer(wire: HttpResponse | RpcResponse, method: str = "") -> Json:
    """The same of an answer; ``method`` is the one of gRPC that was called."""
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
    """``text``, its beginning where it is long."""
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}\n…"


def _header(name: str, value: str) -> str:
    return HIDDEN if any(word in name for word in _SECRET) else value[:_TEXT]


def dump(data: bytes) -> Iterator[str]:
    """Lines of hexadecimal digits beside what is printable of them."""
    for begin in range(0, min(len(data), _BYTES), _ROW):
        row = data[begin : begin + _ROW]
        text = "".join(chr(each) if 0x20 <= each < 0x7F else "·" for each in row)
        yield f"{begin:06x}  {row.hex(' '):<{_ROW * 3 - 1}}  {text}"
    if len(data) > _BYTES:
        yield f"… {len(data) - _BYTES} bytes more"


def _protobuf(method: str, message: Sequence[Buffer], which: int) -> str:
    """Of a request (``which`` is 0) or an answer (1)."""
    try:
        made = SCHEMA.messages_of(method)[which].FromString(bytes(joined(message)))
    except (KeyError, DecodeError):
        return ""
    left_out = list(_shortened(made))
    text = str(text_format.MessageToString(made, as_utf8=True))
    return "\n".join((text, *left_out)) if left_out else text


def _shortened(message: Message) -> Iterator[str]:
    """Leave out of ``message`` what is long, and tell it: writing it out takes seconds a tensor."""
    for field, value in message.ListFields():
        if isinstance(value, Message):
            yield from _shortened(value)
        elif isinstance(value, str | bytes):
            if len(value) > _SAID:
                setattr(message, field.name, value[:_SAID])
                yield f"… {field.name}: {len(value) - _SAID} more of it"
        elif isinstance(value, Mapping):
            for each in value.values():
                if isinstance(each, Message):
                    yield from _shortened(each)
        elif isinstance(value, MutableSequence):
            yield from _shortened_list(field.name, value)


def _shortened_list(name: str, values: MutableSequence[Any]) -> Iterator[str]:
    if len(values) > _ITEMS:
        yield f"… {name}: {len(values) - _ITEMS} more"
        del values[_ITEMS:]
    for index, each in enumerate(values):
        if isinstance(each, Message):
            yield from _shortened(each)
        elif isinstance(each, str | bytes) and len(each) > _SAID:
            values[index] = each[:_SAID]
            yield f"… {name}[{index}]: {len(each) - _SAID} more of it"


def _body(headers: Mapping[str, str], body: Sequence[Buffer]) -> str:
    data = bytes(joined(body)) if body else b""
    length = headers.get(_SPLIT, "")
    is_number = length.isascii() and length.isdecimal() and len(length) <= _DIGITS
    split = int(length) if is_number else len(data)
    told = _json(data[:split])
    rest = len(data) - split
    return f"{told}\n\nand {rest} bytes of tensors" if told and rest > 0 else told


def _json(data: bytes) -> str:
    if len(data) > _DECODED:
        begun = data[:_TEXT].decode(errors="replace")
        return f"{begun}\n…" if begun.lstrip().startswith(("{", "[")) else ""
    try:
        return pretty(json.loads(data))
    except (ValueError, RecursionError):
        return ""


def pretty(value: Any, indent: str = "") -> str:
    """JSON: lists of plain values on one line, cut where they are long or deep."""
    deeper = f"{indent}  "
    if isinstance(value, dict | list) and value and len(indent) >= 2 * _DEEP:
        return "…"
    if isinstance(value, dict) and value:
        rows = (f"{deeper}{json.dumps(k)}: {pretty(v, deeper)}" for k, v in value.items())
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(each, dict | list) for each in value):
        rows = (f"{deeper}{pretty(each, deeper)}" for each in value[:_ITEMS])
        return "[\n" + ",\n".join(rows) + f"\n{indent}]"
    if isinstance(value, list):
        told = [json.dumps(each, ensure_ascii=False) for each in value[:_ITEMS]]
        if len(value) > _ITEMS:
            told.append(f"… {len(value) - _ITEMS} more")
        return f"[{', '.join(told)}]"
    return json.dumps(value, ensure_ascii=False)
