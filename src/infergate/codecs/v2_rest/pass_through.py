"""Passes messages between V2 REST clients and servers without changing the tensors.

*Rule 1.* Requests that pass through and requests that are translated are validated by the same
function.

*Rule 2.* A response is parsed only up to the end of its names, which servers usually write first.
Names that differ from the client's are replaced in place. The tensors are not checked.

*Rule 3.* If the names are not at the beginning of a response, or if its JSON is not UTF-8 (Triton's
BYTES), the response is parsed and written again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from infergate.codecs.base import ParsedRequest, PartialInferRequest, Profile
from infergate.codecs.encodings import decode_body, without_encoding
from infergate.codecs.json_tensors.json_data import NON_FINITE_SPELLINGS
from infergate.codecs.v2_rest.errors import JSON_TYPE
from infergate.codecs.v2_rest.infer_request import (
    RequestHeadCache,
    ResponseFormat,
    infer_path,
    read_body,
)
from infergate.codecs.v2_rest.infer_response import (
    ok_response,
    read_response,
    read_response_body,
    unusable_response,
    write_response,
)
from infergate.codecs.v2_rest.paths import V2PathMatch, match_path
from infergate.codecs.v2_rest.tensors import (
    BINARY_TYPE,
    JSON_LENGTH_HEADER,
    check_json_length,
    parse_json_length,
)
from infergate.codecs.v2_rest.wire_features import WireFeature, is_supported
from infergate.core.errors import GatewayError, bad_request
from infergate.core.limits import MIB, Limits, check_loop_cost
from infergate.core.messages import InferRequest, RequestedOutput
from infergate.core.priorities import requested_priority
from infergate.core.sequences import SEQUENCE_ID as SEQUENCE
from infergate.core.sequences import SequenceId, sequence_id
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpRequest, HttpResponse

_NAME_MEMBER: Final = re.compile(
    rb'\s*+"(id|model_name|model_version)"\s*+:\s*+("(?:[^"\\]++|\\.)*+"|null)\s*+,', re.DOTALL
)
_BEFORE_OUTPUTS: Final = re.compile(
    rb'\s*+(?:"parameters"\s*+:\s*+'
    rb'(?:null|\{(?:[^{}\[\]"]++|"(?:[^"\\]++|\\.)*+")*+\})\s*+,\s*+)?+'
    rb'"outputs"\s*+:',
    re.DOTALL,
)
"""Matches optional flat parameters, followed by the outputs."""
_OBJECT_START: Final = re.compile(rb"\s*+\{")
_MEMBER_NAMES: Final = {"model": b"model_name", "version": b"model_version", "id": b"id"}
_WHITESPACE: Final = b" \t\r\n"
_MAX_DECODED_ON_LOOP: Final = 4 * MIB
"""Maximum size in bytes of non-ASCII text that is decoded on the event loop."""
_TAIL_BYTES: Final = 64
"""Number of bytes at the end of a response's JSON that are searched for the last two brackets."""


@dataclass
class CheckedRequest(HttpRequest):
    """A validated request with the ``features`` of its message, the client's ``id``, and the format
    of its response."""

    features: frozenset[WireFeature] = frozenset()
    id: str = ""
    response_format: ResponseFormat | None = None
    shared_memory_outputs: tuple[RequestedOutput, ...] = ()
    """The requested outputs if any tensor is in shared memory; otherwise an empty tuple."""
    sequence_id: SequenceId | None = None
    priority: int = 0


def validate_inference(
    wire: HttpRequest, match: V2PathMatch, limits: Limits, heads: RequestHeadCache
) -> CheckedRequest:
    """Validate ``wire``, whose path ``match`` describes, and undo its content encoding."""
    body = decode_body(wire.headers, wire.body, limits)
    return _validate(wire, body, match, limits, heads)


def _validate(
    wire: HttpRequest,
    body: Buffer,
    match: V2PathMatch,
    limits: Limits,
    heads: RequestHeadCache | None,
) -> CheckedRequest:
    model, version = match.model, match.version
    parsed, response_format, features = read_body(wire, body, model, version, limits, heads)
    request = InferRequest(model) if isinstance(parsed, PartialInferRequest) else parsed.operation
    assert isinstance(request, InferRequest)
    return CheckedRequest(
        wire.method,
        wire.path,
        wire.query,
        without_encoding(wire.headers),
        (body,),
        features,
        request.id,
        response_format,
        request.outputs if WireFeature.SHARED_MEMORY in features else (),
        sequence_id(request.parameters),
        requested_priority(request.parameters) if request.parameters else 0,
    )


def sequence_of(wire: HttpRequest, limits: Limits) -> SequenceId | None:
    """Return the sequence that ``wire`` belongs to, or None. If the request was not validated, it
    is parsed only if its text may contain the name ``sequence_id``."""
    if isinstance(wire, CheckedRequest):
        return wire.sequence_id
    body = decode_body(wire.headers, wire.body, limits)
    header = wire.headers.get(JSON_LENGTH_HEADER)
    length = len(body) if header is None else parse_json_length(header)
    text = bytes(memoryview(body)[:length])
    if SEQUENCE.encode() not in text and b"\\u" not in text:
        return None
    return _validate(wire, body, match_path(wire.path), limits, None).sequence_id


def rewrite_request(
    wire: HttpRequest, model: str, version: str, profile: Profile
) -> HttpRequest | None:
    """Return ``wire`` with the path of another model, or None if a server of ``profile`` cannot
    read the message."""
    if JSON_LENGTH_HEADER in wire.headers and not profile.supports_binary:
        return None
    if isinstance(wire, CheckedRequest) and not is_supported(wire.features, profile):
        return None
    path = infer_path(model, version, profile)
    encoding = {k: v for k, v in wire.headers.items() if k == "content-encoding"}
    # The body is still encoded if the route does not validate requests.
    return HttpRequest("POST", path, "", {**_message_headers(wire.headers), **encoding}, wire.body)


def _message_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that describe the message.

    The content type always describes the body's format, because MLServer and KServe need it, but
    tritonclient omits it and curl sends its own default."""
    if JSON_LENGTH_HEADER in headers:
        return {"content-type": BINARY_TYPE, JSON_LENGTH_HEADER: headers[JSON_LENGTH_HEADER]}
    return {"content-type": JSON_TYPE}


# ---- responses ----------------------------------------------------------------------------------


def rewrite_response(
    wire: HttpResponse,
    request: HttpRequest,
    names: Mapping[str, str],
    limits: Limits,
    compress_min: int,
) -> HttpResponse:
    """Rewrite a backend's response into the response to ``request``, replacing names in place (Rule
    2). Raises the backend's error, BACKEND_GARBAGE and NeedsOffloadError.

    The response has the non-empty ``names`` (``model``, ``version``) and the id of ``request``,
    which may be empty. If ``request`` was not validated, the response keeps the backend's id.
    """
    body = read_response_body(wire, limits)
    headers = _message_headers(wire.headers)
    new_names = {key: name for key, name in names.items() if name}
    if isinstance(request, CheckedRequest):
        new_names["id"] = request.id
    try:
        header = headers.get(JSON_LENGTH_HEADER)
        length = len(body) if header is None else parse_json_length(header)
        check_json_length(length, body)
        members = _leading_members(body, length)
    except GatewayError as error:
        raise unusable_response(error) from None
    if members is None or not _is_utf8(body, length, limits):
        return _rebuild(wire, request, names, limits, compress_min)
    parts = _splice_names(body, new_names, members)
    if header is not None:
        headers[JSON_LENGTH_HEADER] = str(length + sum(map(len, parts)) - len(body))
    return ok_response(headers, parts, request.headers.get("accept-encoding", ""), compress_min)


def _rebuild(
    wire: HttpResponse,
    request: HttpRequest,
    names: Mapping[str, str],
    limits: Limits,
    compress_min: int,
) -> HttpResponse:
    """Parse the response and write it again (Rule 3) in the format that ``request`` selects. If
    ``request`` was not validated, keep the backend's format."""
    operation = InferRequest(match_path(request.path).model)
    if isinstance(request, CheckedRequest):
        operation = replace(operation, outputs=request.shared_memory_outputs)
    response = read_response(wire, operation, limits)
    if isinstance(request, CheckedRequest):
        response_id, response_format = request.id, request.response_format
    else:
        accept = request.headers.get("accept-encoding", "")
        response_id = response.id
        response_format = ResponseFormat({}, JSON_LENGTH_HEADER in wire.headers, accept)
    renamed = replace(
        response,
        model=names["model"] or response.model,
        version=names["version"] or response.version,
        id=response_id,
    )
    parsed = ParsedRequest(operation, response_format)
    return write_response(renamed, parsed, NON_FINITE_SPELLINGS["literal"], compress_min)


def _leading_members(body: Buffer, end: int) -> dict[bytes, re.Match[bytes]] | None:
    """Return the names at the start of the object in ``body``, or None if Rule 3 applies. Raises
    BAD_REQUEST if the body is not an object."""
    start = _OBJECT_START.match(body, 0, end)
    if start is None:
        raise bad_request("it is not a JSON object")
    members: dict[bytes, re.Match[bytes]] = {}
    position = start.end()
    while member := _NAME_MEMBER.match(body, position, end):
        if member[1] in members:
            return None
        members[bytes(member[1])] = member
        position = member.end()
    if _BEFORE_OUTPUTS.match(body, position, end) is None or not _ends_in_array(body, end):
        return None
    return members


def _ends_in_array(body: Buffer, end: int) -> bool:
    """Return whether the last member of the object is an array, and therefore ``outputs``, the only
    array."""
    tail = bytes(memoryview(body)[max(0, end - _TAIL_BYTES) : end])
    return tail.translate(None, _WHITESPACE).endswith(b"]}")


def _is_utf8(body: Buffer, length: int, limits: Limits) -> bool:
    text = body if length == len(body) else bytes(memoryview(body)[:length])
    if isinstance(text, bytes) and text.isascii():
        return True
    check_loop_cost(limits, length, _MAX_DECODED_ON_LOOP)
    try:
        str(text, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _splice_names(
    body: Buffer, names: Mapping[str, str], member_matches: Mapping[bytes, re.Match[bytes]]
) -> list[Buffer]:
    """Return ``body`` with ``names``. Remove the id if the id in ``names`` is empty."""
    replacements: list[tuple[int, int, bytes]] = []
    added_members = b""
    for field, name in names.items():
        key = _MEMBER_NAMES[field]
        text = json.dumps(name).encode()
        member = member_matches.get(key)
        if member is None:
            added_members += b'"%b":%b,' % (key, text) if name else b""
        elif not name:
            replacements.append((*member.span(), b""))
        elif member[2] != text:
            replacements.append((*member.span(2), text))
    start = _OBJECT_START.match(body)
    assert start is not None  # ``_leading_members`` has matched the same bytes
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
