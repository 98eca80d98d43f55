"""Pass-through between legacy HTTP clients and servers: messages are forwarded with their tensors
unchanged.

*Rule 1.* A request is validated by the function that parses it, or found in the cache
(``validated_headers``). Validation needs the model's metadata, so the result is a
``PartialInferRequest``, as of a parse.
*Rule 2.* The client's response is the same as if the message had been translated: the outputs in
the requested order, the client's id, and the gateway's NV-Status.
*Rule 3.* The response to a request that was not validated is relayed as the server wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from infergate.codecs.base import Parsed, Unfinished
from infergate.codecs.trtis import http_backend, http_frontend
from infergate.codecs.trtis.checked import (
    CheckedAnswer,
    CheckedHeader,
    CheckedHeaders,
    read_answer,
)
from infergate.codecs.trtis.http_frontend import ASKS, Form
from infergate.codecs.trtis.infer_request import read_request, version_number
from infergate.codecs.trtis.infer_response import model_version
from infergate.codecs.trtis.messages import InferResponseHeader
from infergate.codecs.trtis.options import Level
from infergate.codecs.trtis.paths import find, model_path
from infergate.core.errors import bad_request
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, ModelMetadata
from infergate.core.sequences import SequenceId
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpRequest, HttpResponse, joined, size

_TELLING: Final = re.compile(r"shared_memory|priority|timeout_microseconds")
"""Found in a header that was not parsed, these fields forbid forwarding it unchanged."""
_ANSWER: Final = re.compile(
    r'model_name: "(?:[^"\\]|\\.)++" (?:model_version: \d++ )?+batch_size: \d'
)
"""The start of NV-InferResponse, as every server prints it."""
_LARGEST_ID: Final = 2**64 - 1
_ID_DIGITS: Final = 20


@dataclass(slots=True)
class CheckedHttp(HttpRequest):
    """A validated inference. ``id`` is the client's; 0 if it has none."""

    header: CheckedHeader | None = None
    level: Level | None = None
    id: int = 0


def cut_id(told: str) -> tuple[str, int]:
    """Return ``header_text`` without the id at its end, where C++ prints it, and the id.

    Return the text unchanged and 0 if there is no id, or if the apparent id might be something
    else.
    """
    head, separator, digits = told.rpartition(" id: ")
    if (
        separator
        and digits.isdecimal()
        and digits.isascii()
        and len(digits) <= _ID_DIGITS
        and digits[0] != "0"  # a leading zero means octal
        and (value := int(digits)) <= _LARGEST_ID
        and "#" not in told  # a comment could contain the apparent id
    ):
        return head, value
    return told, 0


def check(
    wire: HttpRequest, asked: InferRequest, headers: CheckedHeaders, level: Level, limits: Limits
) -> Unfinished[HttpRequest]:
    """Return ``wire``, an inference of ``target``, to be validated with the model's metadata.
    Raises BAD_REQUEST."""
    header_text, number = cut_id(wire.headers.get(ASKS, ""))
    key = (header_text, asked.model, asked.version)
    entry = headers.find(key)
    parse = partial(_unfinished, wire, asked, level, limits)
    unfinished = parse() if entry is None else None

    def finish(metadata: ModelMetadata) -> HttpRequest:
        validated, id_ = entry, number
        if (
            validated is not None
            and validated.fits(metadata, limits)
            and validated.size == size(wire.body)
        ):
            if validated.strings:
                validated.check_strings(_cut(wire.body, validated.sizes))
        else:
            parsed = (unfinished or parse()).finish(metadata)
            header = http_frontend.read_header(wire, limits)
            validated, id_ = headers.add(key, header, parsed, metadata, limits), header.id
        return CheckedHttp(
            wire.method, wire.path, wire.query, wire.headers, wire.body, validated, level, id_
        )

    return Unfinished(asked.model, asked.version, finish)


def _unfinished(
    wire: HttpRequest, asked: InferRequest, level: Level, limits: Limits
) -> Unfinished[Parsed]:
    header = http_frontend.read_header(wire, limits)
    return read_request(header, asked, http_frontend.allot(wire.body), level, limits)


def _cut(body: Sequence[Buffer], sizes: Sequence[int]) -> list[Buffer]:
    view = memoryview(joined(body))
    parts: list[Buffer] = []
    position = 0
    for length in sizes:
        parts.append(view[position : position + length])
        position += length
    return parts


def sequence(wire: HttpRequest, limits: Limits) -> SequenceId | None:
    """Return the sequence that ``wire`` belongs to. Raises BAD_REQUEST."""
    if isinstance(wire, CheckedHttp) and wire.header is not None:
        return wire.header.sequence
    return http_frontend.read_header(wire, limits).correlation_id or None


def readdress(wire: HttpRequest, model: str, version: str) -> HttpRequest | None:
    """Return ``wire`` for another model; None if it must be translated, which may shorten its
    header. Raises UNSUPPORTED for a name that does not fit in a path."""
    header_text = wire.headers.get(ASKS)
    if header_text is None:
        raise bad_request(http_frontend.MISSING)
    if len(header_text) > http_backend.LONGEST_HEADER or not header_text.isascii():
        return None
    validated = wire.header if isinstance(wire, CheckedHttp) else None
    if validated is not None:
        if not validated.forwards:
            return None
        query = http_backend.BINARY
    elif _TELLING.search(header_text) is not None:
        return None
    else:  # a relayed response has the format that the client asked for
        query = http_backend.BINARY if http_frontend.form_of(wire) is Form.BINARY else ""
    path = model_path("/api/infer", model, version_number(model, version))
    headers = {"content-type": "application/octet-stream", ASKS: header_text}
    return HttpRequest("POST", path, query, headers, wire.body)


def relabel(  # noqa: PLR0913, PLR0917 - the codec's, and the status
    wire: HttpResponse,
    asked: HttpRequest,
    model: str,
    version: str,
    status: Callable[[], Any],
    limits: Limits,
) -> HttpResponse:
    """Return the backend's response as the response to ``request``, with the gateway's own status.

    ``model`` and ``version`` replace the backend's where they are not empty. Raises the backend's
    error, or BACKEND_GARBAGE.
    """
    header_text = http_backend.check_inference(wire)
    if not isinstance(asked, CheckedHttp) or asked.header is None:
        return _relayed(wire, header_text, asked, model, version, status, limits)
    body_format = http_frontend.form_of(asked)
    key = (cut_id(header_text)[0], body_format, model, version)
    validated = asked.header.answers.get(key)
    if validated is not None and sum(validated.sizes) <= size(wire.body):
        raw = _cut(wire.body, validated.sizes)
    else:
        validated, raw = _read_answer(wire, header_text, asked, key)
    client_header, trailer = validated.header
    data = [part for part in validated.data(raw) if len(part)]
    return http_frontend.repeated(client_header, trailer, asked.id, body_format, data, status())


def _read_answer(
    wire: HttpResponse, told: str, asked: CheckedHttp, key: tuple[str, Form, str, str]
) -> tuple[CheckedAnswer, list[Buffer]]:
    body_format = key[1]
    entry, level = asked.header, asked.level
    assert entry is not None
    assert level is not None
    operation = find(asked.method, asked.path)
    assert isinstance(operation, InferRequest)
    parsed = _unfinished(asked, operation, level, entry.limits).finish(entry.metadata)
    header, _ = http_backend.read_answer(told, wire.body, Form.BINARY, entry.limits)
    allot = http_backend.allot(memoryview(joined(wire.body)))
    validated, raw, is_cacheable = read_answer(header, allot, parsed, entry, key[2:])
    validated = replace(validated, header=http_frontend.repeatable(validated.header, body_format))
    if is_cacheable:
        entry.remember(key, validated)
    return validated, raw


def _relayed(  # noqa: PLR0913, PLR0917 - those of its caller, and the header
    wire: HttpResponse,
    told: str,
    asked: HttpRequest,
    model: str,
    version: str,
    status: Callable[[], Any],
    limits: Limits,
) -> HttpResponse:
    """Relay the response to a request that was not validated (Rule 3)."""
    if not model and not version and _ANSWER.match(told) is not None:
        return http_frontend.relayed(told, wire.body, status())
    body_format = http_frontend.form_of(asked)
    parsed, length = http_backend.read_answer(told, wire.body, body_format, limits)
    header = InferResponseHeader()
    header.CopyFrom(parsed)
    if model:
        header.model_name = model
    if version:
        header.model_version = model_version(version)
    data = memoryview(joined(wire.body))[:length]
    return http_frontend.inference(header, (data,), body_format, status())
