"""Legacy HTTP on both sides: the message goes on, its tensors untouched.

*Rule 1.* A request is checked by the function that parses it, or found among those that were
(``checked``). The check needs the model's metadata, so it is unfinished like a parse.
*Rule 2.* The client is answered as if the message had been translated: with the outputs in the
order that it asked for, its own id, and the gateway's NV-Status.
*Rule 3.* The answer to a request that was not checked is relayed as the server wrote it.
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
"""What may not go on as it came, found in a header that was not read."""
_ANSWER: Final = re.compile(
    r'model_name: "(?:[^"\\]|\\.)++" (?:model_version: \d++ )?+batch_size: \d'
)
"""How every server begins NV-InferResponse."""
_LARGEST_ID: Final = 2**64 - 1
_ID_DIGITS: Final = 20


@dataclass(slots=True)
class CheckedHttp(HttpRequest):
    """An inference that passed; ``id`` is its own, 0 where it has none."""

    header: CheckedHeader | None = None
    level: Level | None = None
    id: int = 0


def cut_id(told: str) -> tuple[str, int]:
    """``told`` without the id at its end, where C++ prints it, and that; with 0 as it is where
    there is none, or where what looks like one might be something else."""
    head, found, number = told.rpartition(" id: ")
    if (
        found
        and number.isdecimal()
        and number.isascii()
        and len(number) <= _ID_DIGITS
        and number[0] != "0"  # the text form has octal numbers
        and (value := int(number)) <= _LARGEST_ID
        and "#" not in told  # which begins a comment
    ):
        return head, value
    return told, 0


def check(
    wire: HttpRequest, asked: InferRequest, headers: CheckedHeaders, level: Level, limits: Limits
) -> Unfinished[HttpRequest]:
    """``wire``, an inference of the model ``asked`` for, to be checked with the model's metadata.
    Raises BAD_REQUEST."""
    told, number = cut_id(wire.headers.get(ASKS, ""))
    key = (told, asked.model, asked.version)
    entry = headers.find(key)
    unread = partial(_unfinished, wire, asked, level, limits)
    unfinished = unread() if entry is None else None

    def finish(metadata: ModelMetadata) -> HttpRequest:
        known, id_ = entry, number
        if known is not None and known.fits(metadata, limits) and known.size == size(wire.body):
            if known.strings:
                known.check_strings(_cut(wire.body, known.sizes))
        else:
            parsed = (unfinished or unread()).finish(metadata)
            header = http_frontend.read_header(wire, limits)
            known, id_ = headers.add(key, header, parsed, metadata, limits), header.id
        return CheckedHttp(
            wire.method, wire.path, wire.query, wire.headers, wire.body, known, level, id_
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
    for each in sizes:
        parts.append(view[position : position + each])
        position += each
    return parts


def sequence(wire: HttpRequest, limits: Limits) -> SequenceId | None:
    """The sequence that ``wire`` belongs to. Raises BAD_REQUEST."""
    if isinstance(wire, CheckedHttp) and wire.header is not None:
        return wire.header.sequence
    return http_frontend.read_header(wire, limits).correlation_id or None


def readdress(wire: HttpRequest, model: str, version: str) -> HttpRequest | None:
    """``wire`` to another model. None where it is to be translated, which may shorten its header.
    Raises UNSUPPORTED for a name that no path can hold."""
    told = wire.headers.get(ASKS)
    if told is None:
        raise bad_request(http_frontend.MISSING)
    if len(told) > http_backend.LONGEST_HEADER or not told.isascii():
        return None
    checked = wire.header if isinstance(wire, CheckedHttp) else None
    if checked is not None:
        if not checked.forwards:
            return None
        query = http_backend.BINARY
    elif _TELLING.search(told) is not None:
        return None
    else:  # what is relayed is as the client wants it
        query = http_backend.BINARY if http_frontend.form_of(wire) is Form.BINARY else ""
    path = model_path("/api/infer", model, version_number(model, version))
    headers = {"content-type": "application/octet-stream", ASKS: told}
    return HttpRequest("POST", path, query, headers, wire.body)


def relabel(  # noqa: PLR0913, PLR0917 - those of the codec, and the status
    wire: HttpResponse,
    asked: HttpRequest,
    model: str,
    version: str,
    status: Callable[[], Any],
    limits: Limits,
) -> HttpResponse:
    """The backend's answer, of ``model`` and ``version`` where these are not empty, with the
    gateway's own ``status``. Raises the backend's error, or BACKEND_GARBAGE."""
    told = http_backend.check_inference(wire)
    if not isinstance(asked, CheckedHttp) or asked.header is None:
        return _relayed(wire, told, asked, model, version, status, limits)
    form = http_frontend.form_of(asked)
    key = (cut_id(told)[0], form, model, version)
    answer = asked.header.answers.get(key)
    if answer is not None and sum(answer.sizes) <= size(wire.body):
        raw = _cut(wire.body, answer.sizes)
    else:
        answer, raw = _read_answer(wire, told, asked, key)
    text, trailer = answer.header
    data = [each for each in answer.data(raw) if len(each)]
    return http_frontend.repeated(text, trailer, asked.id, form, data, status())


def _read_answer(
    wire: HttpResponse, told: str, asked: CheckedHttp, key: tuple[str, Form, str, str]
) -> tuple[CheckedAnswer, list[Buffer]]:
    form = key[1]
    entry, level = asked.header, asked.level
    assert entry is not None
    assert level is not None
    operation = find(asked.method, asked.path)
    assert isinstance(operation, InferRequest)
    parsed = _unfinished(asked, operation, level, entry.limits).finish(entry.metadata)
    read, _ = http_backend.read_answer(told, wire.body, Form.BINARY, entry.limits)
    allot = http_backend.allot(memoryview(joined(wire.body)))
    answer, raw, repeats = read_answer(read, allot, parsed, entry, key[2:])
    answer = replace(answer, header=http_frontend.repeatable(answer.header, form))
    if repeats:
        entry.remember(key, answer)
    return answer, raw


def _relayed(  # noqa: PLR0913, PLR0917 - those of relabel, and what it found
    wire: HttpResponse,
    told: str,
    asked: HttpRequest,
    model: str,
    version: str,
    status: Callable[[], Any],
    limits: Limits,
) -> HttpResponse:
    """Rule 3."""
    if not model and not version and _ANSWER.match(told) is not None:
        return http_frontend.relayed(told, wire.body, status())
    form = http_frontend.form_of(asked)
    read, length = http_backend.read_answer(told, wire.body, form, limits)
    header = InferResponseHeader()
    header.CopyFrom(read)
    if model:
        header.model_name = model
    if version:
        header.model_version = model_version(version)
    data = memoryview(joined(wire.body))[:length]
    return http_frontend.inference(header, (data,), form, status())
