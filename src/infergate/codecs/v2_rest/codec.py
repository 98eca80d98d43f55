"""The V2 REST codec: HttpRequest and HttpResponse ⇄ canonical operations and responses.

The path determines the operation (``paths``); tables in this module determine how each operation is
read and written. JSON is parsed lazily (``json_document``), tensor data is converted between numpy
and JSON as a whole (``json_data``), and binary tensors are slices of a request's body and parts of
a response's body.

Sources: the V2 seed specification, its binary tensor data extension, and how servers deviate
(docs/fidelity-v2.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from infergate.codecs.base import (
    Capabilities,
    Carrier,
    CodecPlugin,
    Parsed,
    Peek,
    Profile,
    Unfinished,
)
from infergate.codecs.v2_rest import (
    backend,
    errors,
    forwarding,
    metadata,
    repository,
    settings,
    shared_memory,
    streams,
)
from infergate.codecs.v2_rest.elements import NON_FINITE
from infergate.codecs.v2_rest.encodings import accepted, body_most, decoded, inflated_size, is_plain
from infergate.codecs.v2_rest.errors import JSON_TYPE
from infergate.codecs.v2_rest.generate import Flat, write_generated
from infergate.codecs.v2_rest.infer_request import read_request
from infergate.codecs.v2_rest.infer_response import (
    read_response,
    text_size,
    write_response,
    written_size,
)
from infergate.codecs.v2_rest.paths import NAMES, Place, find
from infergate.codecs.v2_rest.tensors import HEADER
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.inflation import RATIO
from infergate.core.json_size import json_size
from infergate.core.limits import Limits
from infergate.core.messages import (
    Answer,
    Done,
    Health,
    InferRequest,
    InferResponse,
    LogSettingsRequest,
    ModelConfig,
    ModelConfigRequest,
    ModelIndex,
    ModelIndexRequest,
    ModelLoadRequest,
    ModelMetadata,
    ModelMetadataRequest,
    ModelReadyRequest,
    ModelStatistics,
    ModelStatisticsRequest,
    ModelUnloadRequest,
    Operation,
    ServerMetadata,
    Settings,
    SharedMemoryRegisterRequest,
    SharedMemoryStatus,
    SharedMemoryStatusRequest,
    SharedMemoryUnregisterRequest,
    TraceSettingsRequest,
)
from infergate.core.sequences import SequenceId
from infergate.core.wire import HttpRequest, HttpResponse, size

_DEFAULT_COMPRESS_MIN: Final = 256
_JSON: Final = {"content-type": JSON_TYPE}
_LONG_NUMBER: Final = 19
"""A length header of this many digits or more is ignored."""


class V2Rest:
    """The V2 REST codec.

    Options: ``non_finite`` (``literal``, ``string``, ``null``): how NaN and infinity, which JSON
    lacks, are written to clients; ``compress_min``: the minimum size in bytes of a response that is
    compressed.
    """

    name: str = "v2-rest"
    caps: Capabilities = Capabilities(datatypes=frozenset(Datatype), streaming=True)
    profiled: bool = True
    described: bool = False
    streams: frozenset[str] = frozenset()
    stream: str = ""

    def __init__(
        self, non_finite: str = "literal", compress_min: int = _DEFAULT_COMPRESS_MIN
    ) -> None:
        if non_finite not in NON_FINITE:
            raise ValueError(f"non_finite is {non_finite!r}, not one of {sorted(NON_FINITE)}")
        self._spelling: Final = NON_FINITE[non_finite]
        self._compress_min: Final = compress_min
        # a response that is passed through spells NaN as the backend does
        self.forwards: bool = non_finite == "literal"

    # ---- towards clients

    def peek(self, wire: HttpRequest) -> Peek:
        """Read operation, model and version from the path."""
        match = find(wire.method, wire.path)
        return Peek(match.operation, match.model, match.version, match.verb not in streams.OURS)

    def parse_request(self, wire: HttpRequest, limits: Limits) -> Parsed | Unfinished[Parsed]:
        """Raises NOT_FOUND for an unknown path, METHOD_NOT_ALLOWED, and errors in the body."""
        match = find(wire.method, wire.path)
        operation = match.operation
        if operation is InferRequest:
            if match.verb in streams.OURS:
                return streams.read_request(wire, match, limits)
            return read_request(wire, match.model, match.version, limits)
        if (operation_class := _OF_A_MODEL.get(operation)) is not None:
            return Parsed(operation_class(match.model, match.version))
        if operation is ModelIndexRequest and wire.path == NAMES:
            return Parsed(ModelIndexRequest(), _write_names)
        if operation is SharedMemoryStatusRequest:
            return Parsed(SharedMemoryStatusRequest(match.region, cuda=match.cuda))
        if match.method == "POST":
            is_post = wire.method == "POST"
            body = bytes(decoded(wire.headers, wire.body, limits)) if is_post else b""
            return Parsed(_READ[operation](match, body, limits))
        return Parsed(operation())  # type: ignore[call-arg]  # all other operations have no fields

    def build_response(self, answer: Answer, parsed: Parsed) -> HttpResponse:
        """Write the response in the format that the request asked for."""
        if isinstance(answer, InferResponse):
            if isinstance(parsed.reply, Flat):
                return HttpResponse(200, _JSON, [write_generated(answer, self._spelling)])
            return write_response(answer, parsed, self._spelling, self._compress_min)
        write = parsed.reply or _WRITE.get(type(answer))
        if write is None:
            raise GatewayError(Kind.UNSUPPORTED, f"V2 REST cannot express {type(answer).__name__}")
        http_response: HttpResponse = write(answer, parsed.operation)
        return http_response

    def build_error(self, error: GatewayError, wire: HttpRequest | None = None) -> HttpResponse:
        """Write ``{"error": …}`` under the status of the error's kind."""
        return errors.build_error(error, wire)

    def text_in(self, wire: HttpRequest) -> int:
        """For a compressed body: the maximum inflated size. A body that inflates to little is
        replaced in ``wire`` by its inflated form."""
        max_bytes = inflated_size(wire)
        if not is_plain(wire.headers):
            return max_bytes
        return _json_of(wire, max_bytes)

    def json_in(self, wire: HttpRequest | HttpResponse, most: int) -> int:
        """Return the length of the JSON from the length header; without one, that of the whole
        body."""
        json_bytes = _json_of(wire, most)
        return json_bytes if json_bytes < most else min(body_most(wire.headers, wire.body), most)

    def text_forwarded(self, wire: HttpResponse, asked: HttpRequest) -> int:
        """Count a compressed response as inflated, and a plain one if the client accepts
        compression."""
        if not is_plain(wire.headers):
            return size(wire.body) * RATIO
        accept = asked.headers.get("accept-encoding", "")
        return size(wire.body) if accept and accepted(accept) else 0

    def text_out(self, answer: Answer, parsed: Parsed) -> int:
        """Count the outputs not requested in binary, or all outputs if they are compressed."""
        return text_size(answer, parsed) if isinstance(answer, InferResponse) else 0

    def size_out(self, answer: InferResponse, parsed: Parsed) -> tuple[int, int]:
        """Return the bounds of the JSON text; binary outputs are not copied unless they are
        compressed."""
        return written_size(answer, parsed)

    def size_to_backend(self, operation: InferRequest, profile: Profile) -> int:
        """Return the maximum length of the JSON for a server that accepts no binary data."""
        return 0 if profile.binary else json_size(operation.inputs)[1]

    def text_to_backend(self, operation: InferRequest, profile: Profile) -> int:
        """Count the inputs for a server that accepts no binary data."""
        return 0 if profile.binary else sum(len(tensor.data) for tensor in operation.inputs)

    # ---- towards backends

    def build_request(
        self, operation: Operation, profile: Profile, model: ModelMetadata | None = None
    ) -> HttpRequest:
        """Raises UNSUPPORTED for an operation that JSON or the server cannot take."""
        del model
        return backend.build_request(operation, profile)

    def parse_response(
        self,
        wire: HttpResponse,
        operation: Operation,
        limits: Limits,
        model: ModelMetadata | None = None,
    ) -> Answer:
        """Raises the backend's error, or BACKEND_GARBAGE."""
        del model
        if isinstance(operation, InferRequest):
            return read_response(wire, operation, limits)
        return backend.parse_response(wire, operation, limits)

    # ---- streams

    def build_stream_response(self, answer: InferResponse, parsed: Parsed) -> HttpResponse:
        """Write one event."""
        return streams.event(self.build_response(answer, streams.plainly(parsed)).body)

    def build_stream_end(self, parsed: Parsed) -> HttpResponse:  # noqa: ARG002
        """Return a response without events."""
        return streams.event(())

    def build_stream_error(self, error: GatewayError, wire: HttpRequest) -> HttpResponse:
        """Write one event; the status was already sent."""
        return streams.event(errors.build_error(error, wire).body)

    def describes_streams(self, profile: Profile) -> bool:
        """Triton's configuration says whether a model is decoupled."""
        return profile.generates

    def build_stream_request(
        self, operation: InferRequest, profile: Profile, model: ModelMetadata | None = None
    ) -> HttpRequest | None:
        """Build a request for ``generate_stream`` or ``infer_stream``."""
        return streams.build_request(operation, profile, model)

    def parse_stream_response(
        self,
        wire: HttpResponse,
        operation: InferRequest,
        limits: Limits,
        model: ModelMetadata | None = None,
    ) -> InferResponse:
        """Parse an event of the stream that was requested with the same ``model``."""
        return streams.read_response(wire, operation, limits, model)

    # ---- V2 REST on both sides

    def shield(self, wire: HttpRequest, limits: Limits) -> HttpRequest:
        """Raises what ``parse_request`` raises, because it runs the same function."""
        if find(wire.method, wire.path).operation is InferRequest:
            return forwarding.shield_inference(wire, limits)
        self.parse_request(wire, limits)
        return wire

    def sequence(self, wire: HttpRequest, limits: Limits) -> SequenceId | None:
        """Return the sequence found by ``validate``; reads a request that was not validated."""
        return forwarding.sequence(wire, limits)

    def readdress(
        self, wire: HttpRequest, model: str, version: str, profile: Profile
    ) -> HttpRequest | None:
        """Returns None if the server does not accept the request in its present form."""
        return forwarding.readdress(wire, model, version, profile)

    def relabel(
        self, wire: HttpResponse, asked: HttpRequest, model: str, version: str, limits: Limits
    ) -> HttpResponse:
        """Replace names and id in place; compress the response as ``request`` accepts."""
        names = {"model": model, "version": version}
        return forwarding.Relabel(asked, names, limits, self._compress_min).answer(wire)


def _json_of(wire: HttpRequest | HttpResponse, most: int) -> int:
    """Return the length of the JSON from the headers, at most ``max_bytes``."""
    header = wire.headers.get(HEADER, "")
    return min(int(header), most) if header.isdecimal() and len(header) < _LONG_NUMBER else most


def _read_index(place: Place, body: bytes, limits: Limits) -> Operation:
    if place.repository:  # Triton rejects unknown repositories; here none is known
        raise GatewayError(Kind.UNSUPPORTED, "an index of one repository is not supported")
    return metadata.read_index_request(body, limits)


_READ: Final[Mapping[type[Operation], Callable[[Place, bytes, Limits], Operation]]] = {
    ModelIndexRequest: _read_index,
    ModelLoadRequest: repository.read_request,
    ModelUnloadRequest: repository.read_request,
    TraceSettingsRequest: settings.read_request,
    LogSettingsRequest: settings.read_request,
    SharedMemoryRegisterRequest: shared_memory.read_register,
    SharedMemoryUnregisterRequest: shared_memory.read_unregister,
}
"""Readers of POSTed operations other than inferences."""
_OF_A_MODEL: Final[Mapping[type[Operation], Callable[[str, str], Operation]]] = {
    ModelReadyRequest: ModelReadyRequest,
    ModelMetadataRequest: ModelMetadataRequest,
    ModelConfigRequest: ModelConfigRequest,
    ModelStatisticsRequest: ModelStatisticsRequest,
}
"""Operations that consist of a model's name and version."""


def _write_names(answer: ModelIndex, _: Operation) -> HttpResponse:
    return metadata.write_names(answer)


_WRITE: Final[Mapping[type[Answer], Callable[[Any, Operation], HttpResponse]]] = {
    Health: metadata.write_health,
    ServerMetadata: lambda answer, _: metadata.write_server(answer),
    ModelMetadata: lambda answer, _: metadata.write_model(answer),
    ModelIndex: lambda answer, _: metadata.write_entries(answer),
    ModelConfig: lambda answer, _: metadata.write_config(answer),
    ModelStatistics: lambda answer, _: metadata.write_statistics(answer),
    Settings: settings.write_answer,
    SharedMemoryStatus: lambda answer, _: shared_memory.write_status(answer),
    Done: lambda _, __: HttpResponse(200),
}
"""Writers of responses, except for inferences and for requests that asked for another format."""


def _make(options: Mapping[str, Any]) -> V2Rest:
    return V2Rest(**options)


PLUGIN: Final = CodecPlugin(
    name="v2-rest",
    carrier=Carrier.HTTP,
    claims=("v2",),
    make=_make,
    answers_rest=True,
    shares_memory=True,
)
