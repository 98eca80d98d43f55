"""Builds requests to HTTP servers and parses their responses.

*Rule 1.* NV-Status determines whether a request succeeded, except for health requests.

*Rule 2.* NV-InferResponse determines how the body is split. Servers repeat this header after the
raw data. Like legacy clients, the codec requests this copy in binary. The codec reads the classes
from the copy if NV-InferResponse omits them (v1.0 to v1.4). If NV-InferResponse is long, the codec
parses the copy instead, which is faster.

*Rule 3.* Servers close the connection without a response if a header has more than 8190 bytes, so
the codec rejects such a request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from infergate.codecs.base import no_request
from infergate.codecs.protos.bounded_parser import max_fields_on_loop, parse
from infergate.codecs.protos.wire_scanner import MalformedMessageError
from infergate.codecs.trtis import text_format
from infergate.codecs.trtis.grpc_infer import MAX_HEAD_BYTES, MAX_RESPONSE_FIELDS
from infergate.codecs.trtis.http_frontend import (
    BINARY_QUERY,
    REQUEST_HEADER,
    RESPONSE_HEADER,
    STATUS_HEADER,
    slice_body,
)
from infergate.codecs.trtis.http_paths import LIVE, READY, memory_path, model_path
from infergate.codecs.trtis.http_paths import STATUS as STATUS_PATH
from infergate.codecs.trtis.infer_request import version_number, write_request
from infergate.codecs.trtis.infer_response import read_response
from infergate.codecs.trtis.messages import (
    BodyFormat,
    InferResponseHeader,
    RequestStatus,
    ServerStatus,
)
from infergate.codecs.trtis.request_status import check_status
from infergate.codecs.trtis.server_status import parse_status, response_from_status
from infergate.core import messages
from infergate.core.errors import GatewayError, Kind, Origin, backend_garbage, parse_retry_after
from infergate.core.limits import Limits, check_loop_cost
from infergate.core.messages import InferRequest, ModelMetadata, Operation, Response
from infergate.core.repository import require_name_only
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpRequest, HttpResponse, join_parts, total_size

MAX_REQUEST_HEADER: Final = 8190
"""Maximum size of NV-InferRequest that servers accept, in bytes."""
MAX_TEXT: Final = 128 * 1024
"""Maximum number of characters of a text header. Parsing takes 1 ms per KiB."""
_BYTE_SIZES: Final = re.compile(r'"(?:[^"\\]|\\.)*+"|batch_byte_size: (\d{1,20}+)')
_MAX_SHOWN: Final = 200
_STATUS_KEY: Final = STATUS_HEADER.lower()
_RESPONSE_KEY: Final = RESPONSE_HEADER.lower()
_SUCCESS: Final = re.compile(r'code: SUCCESS(?: server_id: "[^"\\]*+")?+(?: request_id: \d++)?+')
"""Matches an NV-Status that reports success. The expression replaces slow parsing: the text is
never in the cache of parsed texts, because every response has a different request number."""
_KIND_BY_STATUS: Final = {
    401: Kind.UNAUTHENTICATED,
    403: Kind.FORBIDDEN,
    413: Kind.TOO_LARGE,
    429: Kind.RATE_LIMITED,
    503: Kind.NO_BACKEND,
    504: Kind.TIMEOUT,
}
"""The kind of error for the HTTP status of a response without NV-Status. Such a response comes from
a proxy, or from a server without a handler for the request."""


def build_request(operation: Operation, model: ModelMetadata | None) -> HttpRequest:
    """Return the request for ``operation``. Raises UNSUPPORTED, BAD_REQUEST, TOO_LARGE, NOT_FOUND
    and NO_BACKEND."""
    match operation:
        case InferRequest():
            assert model is not None
            return _infer_request(operation, model)
        case messages.ServerLiveRequest():
            return HttpRequest("GET", LIVE)
        case messages.ServerReadyRequest():
            return HttpRequest("GET", READY)
        case (
            messages.ServerMetadataRequest()
            | messages.ModelIndexRequest()
            | messages.ServerStatusRequest("")
        ):
            return HttpRequest("GET", STATUS_PATH, BINARY_QUERY)
        case (
            messages.ModelMetadataRequest()
            | messages.ModelReadyRequest()
            | messages.ModelConfigRequest()
            | messages.ModelStatisticsRequest()
            | messages.ServerStatusRequest()
        ):
            return HttpRequest("GET", model_path(STATUS_PATH, operation.model), BINARY_QUERY)
        case messages.ModelLoadRequest() | messages.ModelUnloadRequest():
            name = require_name_only(operation).model
            action = "load" if isinstance(operation, messages.ModelLoadRequest) else "unload"
            return HttpRequest("POST", model_path(f"/api/modelcontrol/{action}", name))
        case messages.SharedMemoryRegisterRequest() | messages.SharedMemoryUnregisterRequest():
            return HttpRequest(
                "POST", memory_path(operation), body=[getattr(operation, "handle", b"")]
            )
    raise no_request("the legacy HTTP API", operation)


def _infer_request(operation: InferRequest, model: ModelMetadata) -> HttpRequest:
    path = model_path(
        "/api/infer", operation.model, version_number(operation.model, operation.version)
    )
    header = text_format.to_line(
        write_request(operation, model, schedules=model.supports_scheduling)
    )
    if len(header) > MAX_REQUEST_HEADER:
        raise GatewayError(
            Kind.TOO_LARGE,
            f"the names and shapes of this inference take {len(header)} bytes of the header "
            f"NV-InferRequest; the backend's servers accept {MAX_REQUEST_HEADER}",
        )
    return HttpRequest(
        "POST",
        path,
        BINARY_QUERY,
        {"content-type": "application/octet-stream", REQUEST_HEADER: header},
        [tensor.data for tensor in operation.inputs if len(tensor.data)],
    )


def parse_response(
    wire: HttpResponse, operation: Operation, limits: Limits, model: ModelMetadata | None
) -> Response:
    """Parse the response. Raises the backend's error, BACKEND_GARBAGE, TOO_LARGE, NOT_FOUND and
    NeedsOffloadError."""
    if isinstance(operation, InferRequest):
        header_text = infer_header_text(wire)
        assert model is not None
        header, _ = parse_infer_header(header_text, wire.body, BodyFormat.BINARY, limits)
        return read_response(header, partial(split_outputs, wire.body), operation, model, limits)
    headers = {name.lower(): value for name, value in wire.headers.items()}
    if isinstance(operation, messages.ServerLiveRequest | messages.ServerReadyRequest):
        return _parse_health(wire, headers)
    _check_success(wire, headers)
    match operation:
        case (
            messages.ModelLoadRequest()
            | messages.ModelUnloadRequest()
            | messages.SharedMemoryRegisterRequest()
            | messages.SharedMemoryUnregisterRequest()
        ):
            return messages.Acknowledgement()
    status = parse_status(ServerStatus, join_parts(wire.body), limits)
    return response_from_status(status, operation)


def infer_header_text(wire: HttpResponse) -> str:
    """Return the value of NV-InferResponse. Raises the backend's error and BACKEND_GARBAGE."""
    headers = wire.headers
    if _STATUS_KEY not in headers or _RESPONSE_KEY not in headers:
        headers = {name.lower(): value for name, value in headers.items()}
    if wire.status == 400 and _STATUS_KEY not in headers:
        raise GatewayError(
            Kind.BAD_REQUEST, "the legacy server cannot parse the request", origin=Origin.BACKEND
        )
    if wire.status != 200 or _SUCCESS.fullmatch(headers.get(_STATUS_KEY, "")) is None:
        _check_success(wire, headers)
    header_text = headers.get(_RESPONSE_KEY)
    if header_text is None:
        raise backend_garbage(f"the backend's response has no {RESPONSE_HEADER}")
    return header_text


def _parse_health(wire: HttpResponse, headers: dict[str, str]) -> messages.HealthStatus:
    """Parse a health response. A status other than 200 (servers send 400) with an NV-Status of
    SUCCESS means "not ready"."""
    if wire.status != 200:
        check_status(_parse_nv_status(wire, headers), headers)
    return messages.HealthStatus(ok=wire.status == 200)


def _check_success(wire: HttpResponse, headers: Mapping[str, str]) -> None:
    check_status(_parse_nv_status(wire, headers), headers)
    if wire.status != 200:
        raise backend_garbage(
            f"the backend responded with HTTP {wire.status} and NV-Status SUCCESS"
        )


def _parse_nv_status(wire: HttpResponse, headers: Mapping[str, str]) -> Any:
    value = headers.get(_STATUS_KEY)
    if value is None:
        body = bytes(join_parts(wire.body)[: 4 * _MAX_SHOWN]).decode("utf-8", "replace")
        other = Kind.BACKEND_ERROR if wire.status >= 500 else Kind.BACKEND_GARBAGE
        raise GatewayError(
            _KIND_BY_STATUS.get(wire.status, other),
            f"the backend responded with HTTP {wire.status} without NV-Status",
            origin=Origin.BACKEND,
            detail=body[:_MAX_SHOWN],
            retry_after=parse_retry_after(headers),
        )
    return _parse_text(RequestStatus, STATUS_HEADER, value)


def _parse_text(message_class: Any, name: str, value: str) -> Any:
    if len(value) > MAX_TEXT:
        raise backend_garbage(
            f"the backend's {name} has {len(value)} characters; the limit is {MAX_TEXT}"
        )
    try:
        return text_format.parse(message_class, value)
    except ValueError as error:
        raise backend_garbage(
            f"the backend's {name} cannot be parsed", str(error)[:_MAX_SHOWN]
        ) from None


def parse_infer_header(
    header_text: str, body: Sequence[Buffer], body_format: BodyFormat, limits: Limits
) -> tuple[Any, int]:
    """Return the header, and the size in bytes of the tensors in ``body``.

    The caller must not modify the header. ``body_format`` is the format of the copy of
    NV-InferResponse in ``body``. Raises BACKEND_GARBAGE and, on the event loop, NeedsOffloadError.
    """
    if body_format is BodyFormat.BINARY and len(header_text) > text_format.MAX_CACHED:
        parsed = _parse_binary_copy(header_text, memoryview(join_parts(body)), limits)
        if parsed is not None:
            return parsed
    check_loop_cost(limits, len(header_text), text_format.MAX_ON_LOOP)
    header = _parse_text(InferResponseHeader, RESPONSE_HEADER, header_text)
    length = sum(output.raw.batch_byte_size for output in header.output)
    if any(not output.HasField("raw") and not output.batch_classes for output in header.output):
        header = _parse_trailer(memoryview(join_parts(body))[length:], header, body_format, limits)
    return header, length


def _parse_binary_copy(
    header_text: str, body: memoryview, limits: Limits
) -> tuple[Any, int] | None:
    """Return the result of ``parse_infer_header`` from the binary copy of ``header_text``. Parsing
    the copy is a thousand times faster. Return None if ``body`` has no such copy."""
    length = sum(int(number) for number in _BYTE_SIZES.findall(header_text) if number)
    try:
        header = _parse(body[length:], limits)
    except MalformedMessageError:
        return None
    total = sum(output.raw.batch_byte_size for output in header.output)
    return (header, length) if header.output and total == length else None


def _parse_trailer(data: memoryview, header: Any, body_format: BodyFormat, limits: Limits) -> Any:
    """Return the copy of ``header`` in ``data``, or ``header`` if ``data`` has no valid copy."""
    if not len(data):
        return header
    try:
        if body_format is BodyFormat.TEXT:
            check_loop_cost(limits, len(data), text_format.MAX_ON_LOOP)
            return text_format.parse(InferResponseHeader, str(data[:MAX_TEXT], "utf-8"))
        return _parse(data, limits)
    except (MalformedMessageError, ValueError):
        return header


def _parse(data: memoryview, limits: Limits) -> Any:
    return parse(
        InferResponseHeader, data, MAX_RESPONSE_FIELDS, MAX_HEAD_BYTES, max_fields_on_loop(limits)
    )


def split_outputs(body: Sequence[Buffer], sizes: Sequence[int | None]) -> Sequence[Buffer]:
    """Split ``body`` into consecutive slices, one per output. Raises BACKEND_GARBAGE."""
    data_sizes = [size or 0 for size in sizes]
    total, body_size = sum(data_sizes), total_size(body)
    if total > body_size:
        raise backend_garbage(
            f"{RESPONSE_HEADER} describes {total} bytes, but the body has {body_size}"
        )
    return slice_body(body, data_sizes)
