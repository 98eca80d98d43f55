"""V2 REST on both sides: the message goes on, its tensors untouched.

*Rule 1.* A request is checked by the very function that parses it; what it was decoded to is
dropped, its bytes go on.
*Rule 2.* An answer is looked at as far as its names, which every server writes first. Its tensors
are the backend's word to the client, as if there were no gateway.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from infergate.codecs.base import Profile
from infergate.codecs.v2_rest.encodings import decoded
from infergate.codecs.v2_rest.errors import JSON_TYPE
from infergate.codecs.v2_rest.infer_request import infer_path, read_body
from infergate.codecs.v2_rest.infer_response import (
    answer_body,
    blamed,
    compressed,
    read_response,
)
from infergate.codecs.v2_rest.paths import locate
from infergate.codecs.v2_rest.tensors import BINARY_TYPE, HEADER, json_length
from infergate.core.errors import GatewayError, bad_request
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpRequest, HttpResponse, joined

_MEMBER: Final = re.compile(
    rb'\s*+"(id|model_name|model_version)"\s*+:\s*+("(?:[^"\\]++|\\.)*+"|null)\s*+([,}])',
    re.DOTALL,
)
_OUTPUTS: Final = re.compile(rb'\s*+"(?:outputs|parameters)"\s*+:')
_TWO_PLACES: Final = (re.compile(rb'"binary_data_output"'), re.compile(rb'"outputs"'))
_START: Final = re.compile(rb"\s*+\{")
_BINARY_ONLY: Final = re.compile(rb'"(?:FP16|BF16|NaN|-?Infinity)"')
_NAMES: Final = {"model": b"model_name", "version": b"model_version"}


def shield_inference(wire: HttpRequest, limits: Limits) -> HttpRequest:
    """``wire`` checked, its content encoding undone."""
    body = decoded(wire.headers, wire.body, limits)
    place = locate(wire.path)
    read_body(wire, body, place.model, place.version, limits)
    headers = {name: value for name, value in wire.headers.items() if name != "content-encoding"}
    return HttpRequest(wire.method, wire.path, wire.query, headers, (body,))


def readdress(wire: HttpRequest, model: str, version: str, profile: Profile) -> HttpRequest | None:
    """``wire`` to another model. None where it must be translated: where it holds binary data
    that ``profile`` does not take, or JSON that only becomes acceptable as binary data."""
    if HEADER in wire.headers:
        if not profile.binary:
            return None
    elif profile.binary and _needs_binary(wire):
        return None
    if profile.binary and _asks_in_two_places(wire):
        return None
    path = infer_path(model, version, profile)
    encoding = {k: v for k, v in wire.headers.items() if k == "content-encoding"}
    # an encoding is still there only on a route whose requests are not checked
    return HttpRequest("POST", path, "", {**_carried(wire.headers), **encoding}, wire.body)


def _needs_binary(wire: HttpRequest) -> bool:
    """Whether the JSON may hold what Triton and KServe take as binary data only. Where a string
    happens to be spelt so, the request is translated for nothing."""
    return _BINARY_ONLY.search(joined(wire.body)) is not None


def _asks_in_two_places(wire: HttpRequest) -> bool:
    """Whether outputs are listed beside ``binary_data_output``, which Triton then does not heed."""
    body = joined(wire.body)
    end = json_length(wire.headers[HEADER]) if HEADER in wire.headers else len(body)
    return all(word.search(body, 0, end) for word in _TWO_PLACES)


def _carried(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that belong to the message; all others, to the connection or to its sender.

    The content type is told as it is: MLServer and KServe read a body by it, and clients leave it
    out (tritonclient) or send their library's default (curl).
    """
    if HEADER in headers:
        return {"content-type": BINARY_TYPE, HEADER: headers[HEADER]}
    return {"content-type": JSON_TYPE}


def relabel(
    wire: HttpResponse,
    asked: HttpRequest,
    names: Mapping[str, str],
    limits: Limits,
    compress_min: int,
) -> HttpResponse:
    """The backend's answer, under ``names`` ("model", "version") where these are not empty."""
    body = answer_body(wire, limits)
    headers = _carried(wire.headers)
    try:
        length = json_length(headers[HEADER]) if HEADER in headers else len(body)
        if length > len(body):
            raise bad_request(
                f"Inference-Header-Content-Length is {length}, the body has {len(body)} bytes"
            )
        found = _leading(body, length)
    except GatewayError as error:
        raise blamed(error) from None
    if found is None:  # an error under 200, or names in an unusual order: the slow way finds out
        read_response(wire, InferRequest(""), limits)
        parts = _renamed_by_parsing(body, length, names)
    else:
        parts = _spliced(body, names, found)
    if HEADER in headers:
        headers[HEADER] = str(length + sum(map(len, parts)) - len(body))
    return compressed(headers, parts, asked.headers.get("accept-encoding", ""), compress_min)


def _leading(body: Buffer, end: int) -> dict[bytes, tuple[int, int]] | None:
    """Where the values of the names stand that lead the object in ``body``; None where what
    follows them is not ``outputs`` or ``parameters``. Raises BAD_REQUEST for what is no object."""
    start = _START.match(body, 0, end)
    if start is None:
        raise bad_request("it is not a JSON object")
    found: dict[bytes, tuple[int, int]] = {}
    place = start.end()
    while member := _MEMBER.match(body, place, end):
        if member[1] in found or member[3] == b"}":
            return None
        found[bytes(member[1])] = member.span(2)
        place = member.end()
    return found if _OUTPUTS.match(body, place, end) else None


def _spliced(
    body: Buffer, names: Mapping[str, str], found: Mapping[bytes, tuple[int, int]]
) -> list[Buffer]:
    told = {_NAMES[which]: json.dumps(name).encode() for which, name in names.items() if name}
    changed = {
        found[key]: text
        for key, text in told.items()
        if key in found and body[slice(*found[key])] != text
    }
    added = b"".join(b'"%b":%b,' % (key, text) for key, text in told.items() if key not in found)
    if not changed and not added:
        return [body]
    view = memoryview(body)
    head: list[Buffer] = []
    place = 0
    if added:
        start = _START.match(body)
        assert start is not None  # _leading has met it
        place = start.end()
        head += (view[:place], added)
    for (begin, end), text in sorted(changed.items()):
        head += (view[place:begin], text)
        place = end
    return [b"".join(head), view[place:]]


def _renamed_by_parsing(body: Buffer, length: int, names: Mapping[str, str]) -> list[Buffer]:
    told = {_NAMES[which].decode(): name for which, name in names.items() if name}
    if not told:
        return [body]
    view = memoryview(body)
    document = json.loads(bytes(view[:length]).decode("utf-8-sig", "surrogateescape"))
    document.update(told)
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return [text.encode("utf-8", "surrogateescape"), view[length:]]
