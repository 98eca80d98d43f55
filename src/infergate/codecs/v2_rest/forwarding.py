"""Messages that pass through between V2 REST on both sides, with their tensors untouched.

*Rule 1.* A request is validated by the same function that parses it; the decoded operation is
dropped and the bytes are sent on, together with other facts that were found.
*Rule 2.* A response is read only up to its names, which every server writes first, and names that
differ are replaced in place. Its tensors reach the client unchecked, as without a gateway.
*Rule 3.* A response that does not allow Rule 2, or whose JSON is not UTF-8 (Triton's BYTES), is
parsed and written again, like a translated response.
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
"""Optional flat parameters, followed by the outputs."""
_START: Final = re.compile(rb"\s*+\{")
_NAMES: Final = {"model": b"model_name", "version": b"model_version", "id": b"id"}
_SPACE: Final = b" \t\r\n"
_DECODED_ON_LOOP: Final = 4 * MIB
"""Maximum size of text other than ASCII that is decoded on the event loop. Each byte may take four
in memory."""
_TAIL: Final = 64
"""Bytes at the end of a response's JSON that are searched for its last two brackets."""


@dataclass(slots=True)
class CheckedRequest(HttpRequest):
    """A validated request: its ``features``, the client's own ``id``, and the requested response
    format."""

    forms: frozenset[Form] = frozenset()
    id: str = ""
    reply: Wanted | None = None
    outputs: tuple[RequestedOutput, ...] = ()
    """The requested outputs, if any tensor is in shared memory."""
    sequence: SequenceId | None = None


def shield_inference(wire: HttpRequest, limits: Limits) -> CheckedRequest:
    """Validate ``wire`` and undo its content encoding."""
    body = decoded(wire.headers, wire.body, limits)
    match = locate(wire.path)
    reading = read_body(wire, body, match.model, match.version, limits)
    headers = {name: value for name, value in wire.headers.items() if name != "content-encoding"}
    return CheckedRequest(
        wire.method,
        wire.path,
        wire.query,
        headers,
        (body,),
        reading.forms,
        reading.id,
        reading.wanted,
        reading.outputs,
        reading.sequence,
    )


def sequence(wire: HttpRequest, limits: Limits) -> SequenceId | None:
    """Return the sequence that ``wire`` belongs to. A request that was not validated is parsed only
    if its text may contain the parameter's name, possibly escaped."""
    if isinstance(wire, CheckedRequest):
        return wire.sequence
    body = decoded(wire.headers, wire.body, limits)
    header = wire.headers.get(HEADER)
    text = bytes(memoryview(body)[: json_length(header)]) if header is not None else bytes(body)
    if SEQUENCE.encode() not in text and b"\\u" not in text:
        return None
    match = locate(wire.path)
    return read_body(wire, body, match.model, match.version, limits).sequence


def readdress(wire: HttpRequest, model: str, version: str, profile: Profile) -> HttpRequest | None:
    """Return ``wire`` for another model, or None if it must be translated because a server of
    ``profile`` does not accept its binary data or another of its features."""
    if HEADER in wire.headers and not profile.binary:
        return None
    if isinstance(wire, CheckedRequest) and not is_taken(wire.forms, profile):
        return None
    path = infer_path(model, version, profile)
    encoding = {k: v for k, v in wire.headers.items() if k == "content-encoding"}
    # an encoding is left only on a route whose requests are not validated
    return HttpRequest("POST", path, "", {**_carried(wire.headers), **encoding}, wire.body)


def _carried(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that describe the message, without those of the connection or its sender.

    The content type is set from the body's format: MLServer and KServe read a body by its content
    type, and clients omit it (tritonclient) or send their library's default (curl).
    """
    if HEADER in headers:
        return {"content-type": BINARY_TYPE, HEADER: headers[HEADER]}
    return {"content-type": JSON_TYPE}


# ---- the response -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Relabel:
    """Rewrites a backend's response into the response to ``request``.

    The response gets the ``names`` ("model", "version") that are not empty. It gets the id of
    ``request``, or no id if that is empty; if ``request`` was not validated, it keeps the backend's
    id.
    """

    asked: HttpRequest
    names: Mapping[str, str]
    limits: Limits
    compress_min: int

    def answer(self, wire: HttpResponse) -> HttpResponse:
        """Apply Rule 2. Raises the backend's error, or BACKEND_GARBAGE."""
        body = answer_body(wire, self.limits)
        headers = _carried(wire.headers)
        names = {key: name for key, name in self.names.items() if name}
        if isinstance(self.asked, CheckedRequest):
            names["id"] = self.asked.id
        try:
            length = json_length(headers[HEADER]) if HEADER in headers else len(body)
            if length > len(body):
                raise bad_request(
                    f"Inference-Header-Content-Length is {length}, the body has {len(body)} bytes"
                )
            members = _leading(body, length)
        except GatewayError as error:
            raise blamed(error) from None
        if members is None or not _is_text(body, length, self.limits):
            return self._rebuilt(wire)
        parts = _spliced(body, names, members)
        if HEADER in headers:
            headers[HEADER] = str(length + sum(map(len, parts)) - len(body))
        accept = self.asked.headers.get("accept-encoding", "")
        return compressed(headers, parts, accept, self.compress_min)

    def _rebuilt(self, wire: HttpResponse) -> HttpResponse:
        """Apply Rule 3, in the format that ``request`` wants or, if it was not validated, in the
        format that the backend chose."""
        operation = InferRequest(locate(self.asked.path).model)
        if isinstance(self.asked, CheckedRequest):
            operation = replace(operation, outputs=self.asked.outputs)
        response = read_response(wire, operation, self.limits)
        if isinstance(self.asked, CheckedRequest):
            response_id, response_format = self.asked.id, self.asked.reply
        else:
            accept = self.asked.headers.get("accept-encoding", "")
            response_id, response_format = response.id, Wanted({}, HEADER in wire.headers, accept)
        renamed = replace(
            response,
            model=self.names["model"] or response.model,
            version=self.names["version"] or response.version,
            id=response_id,
        )
        spelling = NON_FINITE["literal"]
        return write_response(
            renamed, Parsed(operation, response_format), spelling, self.compress_min
        )


def _leading(body: Buffer, end: int) -> dict[bytes, re.Match[bytes]] | None:
    """Return the names at the beginning of the object in ``body``; None if more names may follow
    ``outputs``, or if ``outputs`` does not follow them. Raises BAD_REQUEST if it is not an
    object."""
    start = _START.match(body, 0, end)
    if start is None:
        raise bad_request("it is not a JSON object")
    members: dict[bytes, re.Match[bytes]] = {}
    position = start.end()
    while member := _MEMBER.match(body, position, end):
        if member[1] in members:
            return None
        members[bytes(member[1])] = member
        position = member.end()
    if _REST.match(body, position, end) is None or not _ends_in_array(body, end):
        return None
    return members


def _ends_in_array(body: Buffer, end: int) -> bool:
    """Whether the object ends in an array. Then it ends in ``outputs``, because names are not
    arrays."""
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
    """Return ``body`` with ``names``; an empty name (the id) is removed."""
    replacements: list[tuple[int, int, bytes]] = []
    added_members = b""
    for field, name in told.items():
        key = _NAMES[field]
        text = json.dumps(name).encode()
        member = found.get(key)
        if member is None:
            added_members += b'"%b":%b,' % (key, text) if name else b""
        elif not name:
            replacements.append((*member.span(), b""))
        elif member[2] != text:
            replacements.append((*member.span(2), text))
    start = _START.match(body)
    assert start is not None  # _leading_members matched it
    if added_members:
        replacements.append((start.end(), start.end(), added_members))
    if not replacements:
        return [body]
    view = memoryview(body)
    beginning: list[Buffer] = []
    position = 0
    for begin, end, text in sorted(replacements):
        beginning += (view[position:begin], text)
        position = end
    return [b"".join(beginning), view[position:]]
