"""V2 REST on both sides: the message goes on, its tensors untouched.

*Rule 1.* A request is checked by the very function that parses it; what it was decoded to is
dropped, its bytes go on. What else was learnt of it goes with them.
*Rule 2.* An answer is looked at as far as its names, which every server writes first, and names
that differ are replaced in place. Its tensors are the backend's word to the client, as if there
were no gateway.
*Rule 3.* What does not fit Rule 2, and what is not JSON because its text is not UTF-8 (Triton's
BYTES), is read and written anew, as a translated answer is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from infergate.codecs.base import Parsed, Profile
from infergate.codecs.v2_rest.elements import NON_FINITE
from infergate.codecs.v2_rest.encodings import decoded
from infergate.codecs.v2_rest.errors import JSON_TYPE
from infergate.codecs.v2_rest.forms import Form, is_taken
from infergate.codecs.v2_rest.infer_request import Wanted, infer_path, read_body
from infergate.codecs.v2_rest.infer_response import (
    answer_body,
    blamed,
    compressed,
    read_response,
    write_response,
)
from infergate.codecs.v2_rest.paths import locate
from infergate.codecs.v2_rest.tensors import BINARY_TYPE, HEADER, json_length
from infergate.core.errors import GatewayError, bad_request
from infergate.core.limits import MIB, Limits, check_loop
from infergate.core.messages import InferRequest, RequestedOutput
from infergate.core.sequences import PARAMETER as SEQUENCE
from infergate.core.sequences import SequenceId
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpRequest, HttpResponse

_MEMBER: Final = re.compile(
    rb'\s*+"(id|model_name|model_version)"\s*+:\s*+("(?:[^"\\]++|\\.)*+"|null)\s*+,', re.DOTALL
)
_REST: Final = re.compile(
    rb'\s*+(?:"parameters"\s*+:\s*+'
    rb'(?:null|\{(?:[^{}\[\]"]++|"(?:[^"\\]++|\\.)*+")*+\})\s*+,\s*+)?+'
    rb'"outputs"\s*+:',
    re.DOTALL,
)
"""Flat parameters, where there are any, and then the outputs."""
_START: Final = re.compile(rb"\s*+\{")
_NAMES: Final = {"model": b"model_name", "version": b"model_version", "id": b"id"}
_SPACE: Final = b" \t\r\n"
_DECODED_ON_LOOP: Final = 4 * MIB
"""Text other than ASCII that the event loop looks at: each byte may take four in memory."""
_TAIL: Final = 64
"""Bytes at the end of an answer's JSON in which its last two brackets are looked for."""


@dataclass(slots=True)
class CheckedRequest(HttpRequest):
    """A request that passed: its ``forms``, the client's own ``id``, and how it wants its answer
    (``Parsed.reply``)."""

    forms: frozenset[Form] = frozenset()
    id: str = ""
    reply: Wanted | None = None
    outputs: tuple[RequestedOutput, ...] = ()
    """Those that it asks for, if a tensor is in shared memory."""
    sequence: SequenceId | None = None


def shield_inference(wire: HttpRequest, limits: Limits) -> CheckedRequest:
    """``wire`` checked, its content encoding undone."""
    body = decoded(wire.headers, wire.body, limits)
    place = locate(wire.path)
    found = read_body(wire, body, place.model, place.version, limits)
    headers = {name: value for name, value in wire.headers.items() if name != "content-encoding"}
    return CheckedRequest(
        wire.method,
        wire.path,
        wire.query,
        headers,
        (body,),
        found.forms,
        found.id,
        found.wanted,
        found.outputs,
        found.sequence,
    )


def sequence(wire: HttpRequest, limits: Limits) -> SequenceId | None:
    """The sequence that ``wire`` belongs to. One that was not checked is read only where its text
    may have the word, or spell it otherwise."""
    if isinstance(wire, CheckedRequest):
        return wire.sequence
    body = decoded(wire.headers, wire.body, limits)
    told = wire.headers.get(HEADER)
    text = bytes(memoryview(body)[: json_length(told)]) if told is not None else bytes(body)
    if SEQUENCE.encode() not in text and b"\\u" not in text:
        return None
    place = locate(wire.path)
    return read_body(wire, body, place.model, place.version, limits).sequence


def readdress(wire: HttpRequest, model: str, version: str, profile: Profile) -> HttpRequest | None:
    """``wire`` to another model. None where it must be translated: where it holds binary data
    that ``profile`` does not take, or was found to hold a form that it does not."""
    if HEADER in wire.headers and not profile.binary:
        return None
    if isinstance(wire, CheckedRequest) and not is_taken(wire.forms, profile):
        return None
    path = infer_path(model, version, profile)
    encoding = {k: v for k, v in wire.headers.items() if k == "content-encoding"}
    # an encoding is still there only on a route whose requests are not checked
    return HttpRequest("POST", path, "", {**_carried(wire.headers), **encoding}, wire.body)


def _carried(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that belong to the message; all others, to the connection or to its sender.

    The content type is told as it is: MLServer and KServe read a body by it, and clients leave it
    out (tritonclient) or send their library's default (curl).
    """
    if HEADER in headers:
        return {"content-type": BINARY_TYPE, HEADER: headers[HEADER]}
    return {"content-type": JSON_TYPE}


# ---- the answer ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Relabel:
    """What becomes of the backend's answer to ``asked``: it is told under ``names`` ("model",
    "version") where these are not empty, with the id of ``asked`` or, where that has none, without
    one; with the backend's, if ``asked`` was not checked."""

    asked: HttpRequest
    names: Mapping[str, str]
    limits: Limits
    compress_min: int

    def answer(self, wire: HttpResponse) -> HttpResponse:
        """Rule 2. Raises the backend's error, or BACKEND_GARBAGE."""
        body = answer_body(wire, self.limits)
        headers = _carried(wire.headers)
        told = {key: name for key, name in self.names.items() if name}
        if isinstance(self.asked, CheckedRequest):
            told["id"] = self.asked.id
        try:
            length = json_length(headers[HEADER]) if HEADER in headers else len(body)
            if length > len(body):
                raise bad_request(
                    f"Inference-Header-Content-Length is {length}, the body has {len(body)} bytes"
                )
            found = _leading(body, length)
        except GatewayError as error:
            raise blamed(error) from None
        if found is None or not _is_text(body, length, self.limits):
            return self._rebuilt(wire)
        parts = _spliced(body, told, found)
        if HEADER in headers:
            headers[HEADER] = str(length + sum(map(len, parts)) - len(body))
        accept = self.asked.headers.get("accept-encoding", "")
        return compressed(headers, parts, accept, self.compress_min)

    def _rebuilt(self, wire: HttpResponse) -> HttpResponse:
        """Rule 3, in the form that ``asked`` wants or, if it was not checked, that the backend
        chose."""
        operation = InferRequest(locate(self.asked.path).model)
        if isinstance(self.asked, CheckedRequest):
            operation = replace(operation, outputs=self.asked.outputs)
        answer = read_response(wire, operation, self.limits)
        if isinstance(self.asked, CheckedRequest):
            identity, reply = self.asked.id, self.asked.reply
        else:
            accept = self.asked.headers.get("accept-encoding", "")
            identity, reply = answer.id, Wanted({}, HEADER in wire.headers, accept)
        named = replace(
            answer,
            model=self.names["model"] or answer.model,
            version=self.names["version"] or answer.version,
            id=identity,
        )
        spelling = NON_FINITE["literal"]
        return write_response(named, Parsed(operation, reply), spelling, self.compress_min)


def _leading(body: Buffer, end: int) -> dict[bytes, re.Match[bytes]] | None:
    """The names that lead the object in ``body``; None where there may be others behind
    ``outputs``, or none of that. Raises BAD_REQUEST for what is no object."""
    start = _START.match(body, 0, end)
    if start is None:
        raise bad_request("it is not a JSON object")
    found: dict[bytes, re.Match[bytes]] = {}
    place = start.end()
    while member := _MEMBER.match(body, place, end):
        if member[1] in found:
            return None
        found[bytes(member[1])] = member
        place = member.end()
    if _REST.match(body, place, end) is None or not _ends_in_array(body, end):
        return None
    return found


def _ends_in_array(body: Buffer, end: int) -> bool:
    """Whether the object ends in an array, as one does that ends in ``outputs``: a name is none."""
    tail = bytes(memoryview(body)[max(0, end - _TAIL) : end])
    return tail.translate(None, _SPACE).endswith(b"]}")


def _is_text(body: Buffer, length: int, limits: Limits) -> bool:
    text = body if length == len(body) else bytes(memoryview(body)[:length])
    if isinstance(text, bytes) and text.isascii():
        return True
    check_loop(limits, length, _DECODED_ON_LOOP)
    try:
        str(text, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _spliced(
    body: Buffer, told: Mapping[str, str], found: Mapping[bytes, re.Match[bytes]]
) -> list[Buffer]:
    """``body`` with the names ``told``; an empty one (the id) is left out."""
    changed: list[tuple[int, int, bytes]] = []
    added = b""
    for which, name in told.items():
        key = _NAMES[which]
        text = json.dumps(name).encode()
        member = found.get(key)
        if member is None:
            added += b'"%b":%b,' % (key, text) if name else b""
        elif not name:
            changed.append((*member.span(), b""))
        elif member[2] != text:
            changed.append((*member.span(2), text))
    start = _START.match(body)
    assert start is not None  # _leading has met it
    if added:
        changed.append((start.end(), start.end(), added))
    if not changed:
        return [body]
    view = memoryview(body)
    head: list[Buffer] = []
    place = 0
    for begin, end, text in sorted(changed):
        head += (view[place:begin], text)
        place = end
    return [b"".join(head), view[place:]]
