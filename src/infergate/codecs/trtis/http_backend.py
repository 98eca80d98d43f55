"""Builds requests to HTTP servers and parses their responses.

*Rule 1.* NV-Status decides about success; only for health, the HTTP status does.
*Rule 2.* NV-InferResponse determines how the body is split. Servers repeat the header after the raw
data; it is requested in binary, as the real client does. The copy is used for classes that
NV-InferResponse omits (v1.0 to 1.4), and instead of a long NV-InferResponse, because it is parsed
faster.
*Rule 3.* Servers close the connection without a response on a header over 8190 bytes, so such a
request is rejected here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from infergate.codecs.protos.parsing import loop_bound, parse
from infergate.codecs.protos.scan import Malformed
from infergate.codecs.trtis import text
from infergate.codecs.trtis.grpc_infer import MOST_ANSWER_FIELDS, MOST_HEAD
from infergate.codecs.trtis.http_frontend import ANSWERS, ASKS, STATUS, Form
from infergate.codecs.trtis.infer_request import version_number, write_request
from infergate.codecs.trtis.infer_response import Allot, read_response
from infergate.codecs.trtis.messages import InferResponseHeader, RequestStatus, ServerStatus
from infergate.codecs.trtis.paths import LIVE, READY, memory_path, model_path
from infergate.codecs.trtis.paths import STATUS as STATUS_PATH
from infergate.codecs.trtis.status import as_asked, parse_status
from infergate.codecs.trtis.statuses import check_status
from infergate.core.errors import GatewayError, Kind, Origin, garbage, retry_seconds
from infergate.core.limits import Limits, check_loop
from infergate.core.messages import (
    Answer,
    Done,
    Health,
    InferRequest,
    InferResponse,
    ModelConfigRequest,
    ModelIndexRequest,
    ModelLoadRequest,
    ModelMetadata,
    ModelMetadataRequest,
    ModelReadyRequest,
    ModelStatisticsRequest,
    ModelUnloadRequest,
    Operation,
    ServerLiveRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
    ServerStatusRequest,
    SharedMemoryRegisterRequest,
    SharedMemoryUnregisterRequest,
)
from infergate.core.repository import name_alone
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpRequest, HttpResponse, joined

LONGEST_HEADER: Final = 8190
"""The longest NV-InferRequest that servers accept, in bytes (8192 is too long)."""
LONGEST_TEXT: Final = 128 * 1024
"""The longest header that is parsed as text, in characters. Parsing holds the interpreter for about
1 ms per KiB."""
_SIZES: Final = re.compile(r'"(?:[^"\\]|\\.)*+"|batch_byte_size: (\d{1,20}+)')
BINARY: Final = "format=binary"
_SHOWN: Final = 200
_STATUS: Final = STATUS.lower()
_SUCCESS: Final = re.compile(r'code: SUCCESS(?: server_id: "[^"\\]*+")?+(?: request_id: \d++)?+')
"""NV-Status as servers print it for success. Its number differs each time, so parsing it would not
be cached."""
_KINDS: Final = {
    401: Kind.UNAUTHENTICATED,
    403: Kind.FORBIDDEN,
    413: Kind.TOO_LARGE,
    429: Kind.RATE_LIMITED,
    503: Kind.NO_BACKEND,
    504: Kind.TIMEOUT,
}
"""The error kinds of responses without NV-Status, which come from a proxy, or from a server that
reached no handler."""


def build_request(operation: Operation, model: ModelMetadata | None) -> HttpRequest:
    """Return the request for ``operation``. Raises UNSUPPORTED for operations that the API lacks,
    BAD_REQUEST, TOO_LARGE."""
    match operation:
        case InferRequest():
            assert model is not None
            return _infer(operation, model)
        case ServerLiveRequest():
            return HttpRequest("GET", LIVE)
        case ServerReadyRequest():
            return HttpRequest("GET", READY)
        case ServerMetadataRequest() | ModelIndexRequest() | ServerStatusRequest(""):
            return HttpRequest("GET", STATUS_PATH, BINARY)
        case (
            ModelMetadataRequest()
            | ModelReadyRequest()
            | ModelConfigRequest()
            | ModelStatisticsRequest()
            | ServerStatusRequest()
        ):
            return HttpRequest("GET", model_path(STATUS_PATH, operation.model), BINARY)
        case ModelLoadRequest():
            name = name_alone(operation).model
            return HttpRequest("POST", model_path("/api/modelcontrol/load", name))
        case ModelUnloadRequest():
            name = name_alone(operation).model
            return HttpRequest("POST", model_path("/api/modelcontrol/unload", name))
        case SharedMemoryRegisterRequest() | SharedMemoryUnregisterRequest():
            return HttpRequest(
                "POST", memory_path(operation), body=[getattr(operation, "handle", b"")]
            )
    raise GatewayError(
        Kind.UNSUPPORTED, f"the legacy HTTP API has no request for {type(operation).__name__}"
    )


def _infer(operation: InferRequest, model: ModelMetadata) -> HttpRequest:
    path = model_path(
        "/api/infer", operation.model, version_number(operation.model, operation.version)
    )
    header = text.line(write_request(operation, model, schedules=model.schedules))
    if len(header) > LONGEST_HEADER:
        raise GatewayError(
            Kind.TOO_LARGE,
            f"the names and shapes of this inference take {len(header)} bytes of the header "
            f"NV-InferRequest; the backend's servers accept {LONGEST_HEADER}",
        )
    return HttpRequest(
        "POST",
        path,
        BINARY,
        {"content-type": "application/octet-stream", ASKS: header},
        [tensor.data for tensor in operation.inputs if len(tensor.data)],
    )


def parse_response(
    wire: HttpResponse, operation: Operation, limits: Limits, model: ModelMetadata | None
) -> Answer:
    """Return the response in ``wire``. Raises the backend's error, or BACKEND_GARBAGE."""
    if isinstance(operation, InferRequest):
        header = check_inference(wire)
        assert model is not None
        return _inference(wire, header, operation, model, limits)
    headers = {name.lower(): value for name, value in wire.headers.items()}
    if isinstance(operation, ServerLiveRequest | ServerReadyRequest):
        return _health(wire, headers)
    _check(wire, headers)
    match operation:
        case (
            ModelLoadRequest()
            | ModelUnloadRequest()
            | SharedMemoryRegisterRequest()
            | SharedMemoryUnregisterRequest()
        ):
            return Done()
    status = parse_status(ServerStatus, joined(wire.body), limits)
    return as_asked(status, operation)


def check_inference(wire: HttpResponse) -> str:
    """Return NV-InferResponse of a successful response. Raises the backend's error, or
    BACKEND_GARBAGE."""
    headers = {name.lower(): value for name, value in wire.headers.items()}
    if wire.status == 400 and _STATUS not in headers:
        raise GatewayError(
            Kind.BAD_REQUEST,
            "the legacy server cannot parse the request",
            origin=Origin.BACKEND,
        )
    if wire.status != 200 or _SUCCESS.fullmatch(headers.get(_STATUS, "")) is None:
        _check(wire, headers)
    header_text = headers.get(ANSWERS.lower())
    if header_text is None:
        raise garbage(f"the backend's response has no {ANSWERS}")
    return header_text


def _health(wire: HttpResponse, headers: dict[str, str]) -> Health:
    """Parse a health response: not ready is HTTP 400 with an NV-Status of SUCCESS."""
    if wire.status != 200:
        check_status(_status(wire, headers), headers)
    return Health(ok=wire.status == 200)


def _check(wire: HttpResponse, headers: dict[str, str]) -> None:
    check_status(_status(wire, headers), headers)
    if wire.status != 200:
        raise garbage(f"the backend answered HTTP {wire.status} with NV-Status SUCCESS")


def _status(wire: HttpResponse, headers: dict[str, str]) -> Any:
    value = headers.get(_STATUS)
    if value is None:
        body = bytes(joined(wire.body)[: 4 * _SHOWN]).decode("utf-8", "replace")
        raise GatewayError(
            _kind(wire.status),
            f"the backend answered HTTP {wire.status} without NV-Status",
            origin=Origin.BACKEND,
            detail=body[:_SHOWN],
            retry_after=retry_seconds(headers),
        )
    return _read(RequestStatus, STATUS, value)


def _kind(status: int) -> Kind:
    if status in _KINDS:
        return _KINDS[status]
    return Kind.BACKEND_ERROR if status >= 500 else Kind.BACKEND_GARBAGE


def _read(kind: Any, name: str, told: str) -> Any:
    if len(told) > LONGEST_TEXT:
        raise garbage(f"the backend's {name} has {len(told)} bytes, the limit is {LONGEST_TEXT}")
    try:
        return text.read(kind, told)
    except ValueError as error:
        raise garbage(f"the backend's {name} cannot be parsed", str(error)[:_SHOWN]) from None


def _inference(
    wire: HttpResponse,
    told: str,
    operation: InferRequest,
    model: ModelMetadata,
    limits: Limits,
) -> InferResponse:
    header, _ = read_answer(told, wire.body, Form.BINARY, limits)
    return read_response(header, allot(memoryview(joined(wire.body))), operation, model, limits)


def read_answer(told: str, body: Sequence[Buffer], form: Form, limits: Limits) -> tuple[Any, int]:
    """Parse NV-InferResponse. Return the header, which must not be modified, and how many bytes of
    ``body`` are tensors.

    Classes that NV-InferResponse omits (v1.0 to 1.4) are in the header after the tensors, which is
    in ``body_format``. Raises BACKEND_GARBAGE, and NeedsOffloadError on the event loop.
    """
    if form is Form.BINARY and len(told) > text.LONGEST_REMEMBERED:
        parsed = _repeated(told, memoryview(joined(body)), limits)
        if parsed is not None:
            return parsed
    check_loop(limits, len(told), text.LONGEST_ON_LOOP)
    header = _read(InferResponseHeader, ANSWERS, told)
    length = sum(output.raw.batch_byte_size for output in header.output)
    if any(not output.HasField("raw") and not output.batch_classes for output in header.output):
        header = _trailer(memoryview(joined(body))[length:], header, form, limits)
    return header, length


def _repeated(told: str, body: memoryview, limits: Limits) -> tuple[Any, int] | None:
    """Parse the binary copy of ``header_text`` after the tensors in ``body``, in a thousandth of
    the time. Return the same as ``parse_infer_header``; None if there is no such copy."""
    length = sum(int(number) for number in _SIZES.findall(told) if number)
    try:
        header = _parse(body[length:], limits)
    except Malformed:
        return None
    total = sum(output.raw.batch_byte_size for output in header.output)
    return (header, length) if header.output and total == length else None


def _trailer(data: memoryview, header: Any, form: Form, limits: Limits) -> Any:
    """Return the header that follows the tensors, or ``header`` if there is none."""
    if not len(data):
        return header
    try:
        if form is Form.TEXT:
            check_loop(limits, len(data), text.LONGEST_ON_LOOP)
            return text.read(InferResponseHeader, str(data[:LONGEST_TEXT], "utf-8"))
        return _parse(data, limits)
    except (Malformed, ValueError):
        return header


def _parse(data: memoryview, limits: Limits) -> Any:
    return parse(InferResponseHeader, data, MOST_ANSWER_FIELDS, MOST_HEAD, loop_bound(limits))


def allot(body: memoryview) -> Allot:
    """Return a splitter that takes the data of the outputs one after another from ``body``, without
    copying."""

    def slices(sizes: Sequence[int | None]) -> Sequence[Buffer]:
        outputs: list[Buffer] = []
        position = 0
        for size in sizes:
            end = position + (size or 0)
            if end > len(body):
                raise garbage(f"{ANSWERS} describes at least {end} bytes, the body has {len(body)}")
            outputs.append(body[position:end])
            position = end
        return outputs

    return slices
