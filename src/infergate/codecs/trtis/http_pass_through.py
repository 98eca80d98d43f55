"""Pass-through between legacy HTTP clients and servers, with the tensors unchanged.

*Rule 1.* A request is valid if the parser accepts it, or if the cache of validated headers contains
the request's header and the body has the expected size and valid BYTES tensors. Validation needs
the model's metadata.

*Rule 2.* The client receives the same response as from a translation: the outputs in the requested
order, the client's id, and the gateway's NV-Status.

*Rule 3.* The response to a request that was not validated is relayed unchanged, except for the
names and NV-Status."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from infergate.codecs.base import ParsedRequest, PartialInferRequest
from infergate.codecs.trtis import http_backend, http_frontend
from infergate.codecs.trtis.http_frontend import REQUEST_HEADER
from infergate.codecs.trtis.http_paths import model_path
from infergate.codecs.trtis.infer_request import read_request, version_number
from infergate.codecs.trtis.infer_response import model_version
from infergate.codecs.trtis.messages import BodyFormat, InferResponseHeader
from infergate.codecs.trtis.options import CompatibilityLevel
from infergate.codecs.trtis.request_status import RequestStatusFactory
from infergate.codecs.trtis.validated_headers import (
    ValidatedHeader,
    ValidatedHeaderCache,
    ValidatedResponse,
    validate_response,
)
from infergate.core.errors import bad_request
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, ModelMetadata
from infergate.core.sequences import SequenceId
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpRequest, HttpResponse, join_parts, total_size

_NEEDS_TRANSLATION: Final = re.compile(r"shared_memory|priority|timeout_microseconds")
"""Matches the fields that require translation of a header that was not validated."""
_RESPONSE_START: Final = re.compile(
    r'model_name: "(?:[^"\\]|\\.)++" (?:model_version: \d++ )?+batch_size: \d'
)
"""Matches the start of NV-InferResponse, which all servers print in this form."""
_MAX_ID: Final = 2**64 - 1
_MAX_ID_DIGITS: Final = 20


@dataclass
class ValidatedHttpRequest(HttpRequest):
    """A validated inference. ``id`` is the client's id, or 0 if the request has no id."""

    header: ValidatedHeader | None = None
    parse: Callable[[], PartialInferRequest[ParsedRequest]] | None = None
    id: int = 0


def split_id(header_text: str) -> tuple[str, int]:
    """Return ``header_text`` without its id, and the id, which protobuf for C++ prints at the end.
    If the id is absent or ambiguous, return the unchanged text and 0."""
    head, separator, digits = header_text.rpartition(" id: ")
    if (
        separator
        and digits.isdecimal()
        and digits.isascii()
        and len(digits) <= _MAX_ID_DIGITS
        and digits[0] != "0"  # a leading zero marks an octal number
        and (value := int(digits)) <= _MAX_ID
        and "#" not in header_text  # the digits may be part of a comment
    ):
        return head, value
    return header_text, 0


def validate(
    wire: HttpRequest,
    target: InferRequest,
    header_cache: ValidatedHeaderCache,
    level: CompatibilityLevel,
    limits: Limits,
) -> PartialInferRequest[HttpRequest]:
    """Return ``wire`` as a partial request, whose validation needs the model's metadata. Raises
    BAD_REQUEST and NeedsOffloadError."""
    header_text, number = split_id(wire.headers.get(REQUEST_HEADER, ""))
    key = (header_text, target.model, target.version)
    entry = header_cache.find(key)
    parse = functools.partial(_parse_request, wire, target, level, limits)
    partial_request = parse() if entry is None else None

    def complete(metadata: ModelMetadata) -> HttpRequest:
        validated, id_ = entry, number
        if (
            validated is not None
            and validated.is_valid_for(metadata, limits)
            and validated.total_size == total_size(wire.body)
        ):
            if validated.bytes_tensors:
                validated.check_bytes_data(http_frontend.slice_body(wire.body, validated.sizes))
        else:
            parsed = (partial_request or parse()).complete(metadata)
            header = http_frontend.parse_header(wire, limits)
            validated, id_ = header_cache.add(key, header, parsed, metadata, limits), header.id
        return ValidatedHttpRequest(
            wire.method, wire.path, wire.query, wire.headers, wire.body, validated, parse, id_
        )

    return PartialInferRequest(target.model, target.version, complete)


def _parse_request(
    wire: HttpRequest, target: InferRequest, level: CompatibilityLevel, limits: Limits
) -> PartialInferRequest[ParsedRequest]:
    header = http_frontend.parse_header(wire, limits)
    split_inputs = functools.partial(http_frontend.split_inputs, wire.body)
    return read_request(header, target, split_inputs, level, limits)


def sequence_of(wire: HttpRequest, limits: Limits) -> SequenceId | None:
    """Return the sequence that ``wire`` belongs to, or None. Raises BAD_REQUEST and
    NeedsOffloadError."""
    if isinstance(wire, ValidatedHttpRequest) and wire.header is not None:
        return wire.header.sequence
    return http_frontend.parse_header(wire, limits).correlation_id or None


def rewrite_request(wire: HttpRequest, model: str, version: str) -> HttpRequest | None:
    """Return ``wire`` with the path of ``model`` and ``version``, or None if ``wire`` needs
    translation. Raises BAD_REQUEST for a missing header or a version that is not a number,
    NOT_FOUND for a name that no model can have, and UNSUPPORTED for a name that a path cannot
    contain."""
    header_text = wire.headers.get(REQUEST_HEADER)
    if header_text is None:
        raise bad_request(http_frontend.MISSING_HEADER)
    if len(header_text) > http_backend.MAX_REQUEST_HEADER or not header_text.isascii():
        return None
    validated = wire.header if isinstance(wire, ValidatedHttpRequest) else None
    if validated is not None:
        if not validated.can_pass_through:
            return None
    elif _NEEDS_TRANSLATION.search(header_text) is not None:
        return None
    # If the request was not validated, the server responds in the client's format.
    is_binary = validated is not None or http_frontend.body_format_of(wire) is BodyFormat.BINARY
    query = http_frontend.BINARY_QUERY if is_binary else ""
    path = _infer_path(model, version)
    headers = {"content-type": "application/octet-stream", REQUEST_HEADER: header_text}
    return HttpRequest("POST", path, query, headers, wire.body)


@functools.lru_cache(maxsize=256)
def _infer_path(model: str, version: str) -> str:
    """Return an inference's path. A cached path takes at most 5 kB. Raises GatewayError."""
    return model_path("/api/infer", model, version_number(model, version))


def rewrite_response(  # noqa: PLR0913, PLR0917 - the codec's arguments and the status
    wire: HttpResponse,
    request: HttpRequest,
    model: str,
    version: str,
    statuses: RequestStatusFactory,
    limits: Limits,
) -> HttpResponse:
    """Return the response to ``request``, with the gateway's own status.

    ``model`` and ``version`` replace the backend's values unless they are empty. Raises the
    backend's error, BACKEND_GARBAGE, TOO_LARGE, UNSUPPORTED and NeedsOffloadError.
    """
    header_text = http_backend.infer_header_text(wire)
    if not isinstance(request, ValidatedHttpRequest) or request.header is None:
        return _relay(wire, header_text, request, model, version, statuses, limits)
    body_format = http_frontend.body_format_of(request)
    is_binary = body_format is BodyFormat.BINARY
    key = (split_id(header_text)[0], is_binary, model, version)
    validated = request.header.responses.get(key)
    raw: Sequence[Buffer]
    if validated is not None and (size := sum(validated.sizes)) <= total_size(wire.body):
        if validated.is_unchanged:
            raw = [memoryview(join_parts(wire.body))[:size]]
        else:
            raw = validated.select_outputs(http_frontend.slice_body(wire.body, validated.sizes))
    else:
        validated, raw = _validate_response(wire, header_text, request, key)
        raw = validated.select_outputs(raw)
    client_header, trailer = validated.header
    data = [part for part in raw if len(part)]
    return http_frontend.rendered_response(
        client_header, trailer, request.id, body_format, data, statuses.success_line()
    )


def _validate_response(
    wire: HttpResponse,
    header_text: str,
    request: ValidatedHttpRequest,
    key: tuple[str, bool, str, str],
) -> tuple[ValidatedResponse, list[Buffer]]:
    body_format = BodyFormat.BINARY if key[1] else BodyFormat.TEXT
    entry = request.header
    assert entry is not None
    assert request.parse is not None
    parsed = request.parse().complete(entry.metadata)
    header, _ = http_backend.parse_infer_header(
        header_text, wire.body, BodyFormat.BINARY, entry.limits
    )
    split_outputs = functools.partial(http_backend.split_outputs, wire.body)
    validated, raw, is_cacheable = validate_response(header, split_outputs, parsed, entry, key[2:])
    validated = replace(
        validated, header=http_frontend.render_header(validated.header, body_format)
    )
    if is_cacheable:
        entry.cache_response(key, validated)
    return validated, raw


def _relay(  # noqa: PLR0913, PLR0917 - the caller's arguments and the header
    wire: HttpResponse,
    header_text: str,
    request: HttpRequest,
    model: str,
    version: str,
    statuses: RequestStatusFactory,
    limits: Limits,
) -> HttpResponse:
    """Relay the response to a request that was not validated (Rule 3)."""
    if not model and not version and _RESPONSE_START.match(header_text) is not None:
        return http_frontend.relayed_response(header_text, wire.body, statuses.success_line())
    body_format = http_frontend.body_format_of(request)
    parsed, length = http_backend.parse_infer_header(header_text, wire.body, body_format, limits)
    header = InferResponseHeader()
    header.CopyFrom(parsed)
    if model:
        header.model_name = model
    if version:
        header.model_version = model_version(version)
    data = memoryview(join_parts(wire.body))[:length]
    return http_frontend.infer_response(header, (data,), body_format, statuses.success_line())
