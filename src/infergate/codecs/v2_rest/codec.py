"""The V2 REST codec: HttpRequest and HttpResponse ⇄ canonical operations and answers.

*Strategy.* The path tells the operation (``paths``); a table here tells how each is read and
written. JSON is read lazily (``document``), tensor data goes between numpy and JSON in one go
(``elements``), binary tensors are slices of the body on the way in and body parts on the way out.

Sources: the V2 seed specification, its binary tensor data extension, and how servers deviate
(docs/fidelity-v2.md).
"""

from __future__ import annotations

from collections.abc import Mapping
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
from infergate.codecs.v2_rest import errors, forwarding, metadata
from infergate.codecs.v2_rest.document import read_tolerantly
from infergate.codecs.v2_rest.elements import NON_FINITE
from infergate.codecs.v2_rest.encodings import decoded, inflated_size
from infergate.codecs.v2_rest.infer_request import read_request, write_request
from infergate.codecs.v2_rest.infer_response import (
    answer_body,
    blamed,
    read_response,
    text_size,
    write_response,
)
from infergate.codecs.v2_rest.paths import INDEX, NAMES, find, model_path
from infergate.codecs.v2_rest.tensors import HEADER, check_json_size
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import Limits
from infergate.core.messages import (
    Answer,
    Health,
    InferRequest,
    InferResponse,
    ModelConfigRequest,
    ModelIndex,
    ModelIndexRequest,
    ModelMetadata,
    ModelMetadataRequest,
    ModelReadyRequest,
    Operation,
    ServerLiveRequest,
    ServerMetadata,
    ServerMetadataRequest,
    ServerReadyRequest,
)
from infergate.core.wire import HttpRequest, HttpResponse

_DEFAULT_COMPRESS_MIN: Final = 256
_LONG_NUMBER: Final = 19
"""Digits of what is no length."""


class V2Rest:
    """The codec. Options: ``non_finite`` (``literal``, ``string``, ``null``), how clients are told
    floats that JSON has no number for; ``compress_min``, in bytes."""

    name: str = "v2-rest"
    caps: Capabilities = Capabilities(datatypes=frozenset(Datatype))
    profiled: bool = True
    described: bool = False
    streams: frozenset[str] = frozenset()

    def __init__(
        self, non_finite: str = "literal", compress_min: int = _DEFAULT_COMPRESS_MIN
    ) -> None:
        if non_finite not in NON_FINITE:
            raise ValueError(f"non_finite is {non_finite!r}, not one of {sorted(NON_FINITE)}")
        self._spelling: Final = NON_FINITE[non_finite]
        self._compress_min: Final = compress_min
        # a forwarded answer spells NaN as the backend does
        self.forwards: bool = non_finite == "literal"

    # ---- towards clients

    def peek(self, wire: HttpRequest) -> Peek:
        """The path tells all."""
        place = find(wire.method, wire.path)
        return Peek(place.operation, place.model, place.version)

    def parse_request(self, wire: HttpRequest, limits: Limits) -> Parsed | Unfinished:
        """Raises NOT_FOUND for a path, METHOD_NOT_ALLOWED, and what is wrong with the body."""
        place = find(wire.method, wire.path)
        operation = place.operation
        if operation is InferRequest:
            return read_request(wire, place.model, place.version, limits)
        if operation is ModelReadyRequest or operation is ModelMetadataRequest:
            return Parsed(operation(place.model, place.version))
        if operation is ModelIndexRequest and wire.path == INDEX:
            body = decoded(wire.headers, wire.body, limits)
            return Parsed(metadata.read_index_request(bytes(body), limits), metadata.write_entries)
        if operation is ModelIndexRequest:
            return Parsed(ModelIndexRequest(), metadata.write_names)
        return Parsed(operation())  # type: ignore[call-arg]  # the rest have no fields

    def build_response(self, answer: Answer, parsed: Parsed) -> HttpResponse:
        """The answer in the form that the request noted."""
        match answer:
            case InferResponse():
                return write_response(answer, parsed, self._spelling, self._compress_min)
            case Health():
                return metadata.write_health(answer, parsed.operation)
            case ServerMetadata():
                return metadata.write_server(answer)
            case ModelMetadata():
                return metadata.write_model(answer)
            case ModelIndex():
                write = parsed.reply or metadata.write_entries
                response: HttpResponse = write(answer)
                return response
            case _:
                raise GatewayError(Kind.UNSUPPORTED, f"V2 REST cannot tell {type(answer).__name__}")

    def build_error(self, error: GatewayError, wire: HttpRequest | None = None) -> HttpResponse:
        """``{"error": …}`` under the status of the error's kind."""
        return errors.build_error(error, wire)

    def text_in(self, wire: HttpRequest) -> int:
        """Of a compressed body, what it may inflate to."""
        most = inflated_size(wire.headers, wire.body)
        told = wire.headers.get(HEADER, "")
        return min(int(told), most) if told.isdecimal() and len(told) < _LONG_NUMBER else most

    def text_out(self, answer: Answer, parsed: Parsed) -> int:
        """The outputs that are not asked for in binary, or all where they are compressed."""
        return text_size(answer, parsed) if isinstance(answer, InferResponse) else 0

    # ---- towards backends

    def build_request(
        self, operation: Operation, profile: Profile, model: ModelMetadata | None = None
    ) -> HttpRequest:
        """Raises UNSUPPORTED for what JSON, or the server, cannot take."""
        del model
        match operation:
            case InferRequest():
                return write_request(operation, profile)
            case ModelReadyRequest():
                return _get(_model_path(operation, profile, "/ready"))
            case ModelMetadataRequest():
                return _get(_model_path(operation, profile, ""))
            case ModelIndexRequest():
                return _index(operation, profile)
            case ModelConfigRequest():
                return _get(_model_path(operation, profile, "/config"))
            case ServerMetadataRequest():
                return _get("/v2")
            case ServerLiveRequest():
                return _get("/v2/health/live")
            case ServerReadyRequest():
                return _get("/v2/health/ready")
            case _:
                raise GatewayError(
                    Kind.UNSUPPORTED, f"V2 REST has no request for {type(operation).__name__}"
                )

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
        if _says_no(wire.status, operation):
            return Health(ok=False)
        body = bytes(answer_body(wire, limits))
        try:
            check_json_size(len(body), limits)
            match operation:
                case ServerLiveRequest() | ServerReadyRequest() | ModelReadyRequest():
                    return metadata.read_ready(body)
                case ServerMetadataRequest():
                    return metadata.read_server(read_tolerantly(body))
                case ModelMetadataRequest():
                    return metadata.read_model(read_tolerantly(body))
                case ModelConfigRequest():
                    return metadata.read_config(read_tolerantly(body))
                case _:
                    assert isinstance(operation, ModelIndexRequest)
                    return metadata.read_index(read_tolerantly(body))
        except GatewayError as error:
            raise blamed(error) from None

    # ---- V2 REST on both sides

    def shield(self, wire: HttpRequest, limits: Limits) -> HttpRequest:
        """Raises what ``parse_request`` raises: it is the same function."""
        if find(wire.method, wire.path).operation is InferRequest:
            return forwarding.shield_inference(wire, limits)
        self.parse_request(wire, limits)
        return wire

    def readdress(
        self, wire: HttpRequest, model: str, version: str, profile: Profile
    ) -> HttpRequest | None:
        """None where the server does not take the request in its form."""
        return forwarding.readdress(wire, model, version, profile)

    def relabel(
        self, wire: HttpResponse, asked: HttpRequest, model: str, version: str, limits: Limits
    ) -> HttpResponse:
        """Names and id are replaced in place; compressed as ``asked`` accepts."""
        names = {"model": model, "version": version}
        return forwarding.Relabel(asked, names, limits, self._compress_min).answer(wire)


def _get(path: str) -> HttpRequest:
    return HttpRequest("GET", path)


def _model_path(
    operation: ModelReadyRequest | ModelMetadataRequest | ModelConfigRequest,
    profile: Profile,
    rest: str,
) -> str:
    return model_path(operation.model, operation.version if profile.versions else "", rest)


def _index(operation: ModelIndexRequest, profile: Profile) -> HttpRequest:
    """The repository extension's index (Triton, MLServer, infergate), or KServe's list."""
    if profile.lists_models:
        return _get(NAMES)
    body = b'{"ready":true}' if operation.ready_only else b"{}"  # MLServer: 422 without a body
    return HttpRequest("POST", INDEX, "", {"content-type": errors.JSON_TYPE}, [body])


def _says_no(status: int, operation: Operation) -> bool:
    """Whether ``status`` answers a health question with no. A model that is not there is an
    error (404) with MLServer and KServe; Triton says only that it is not ready (400)."""
    match operation:
        case ServerLiveRequest() | ServerReadyRequest():
            return 400 <= status < 500 or status == 503
        case ModelReadyRequest():
            return status in (400, 503)
        case _:
            return False


def _make(options: Mapping[str, Any]) -> V2Rest:
    return V2Rest(**options)


PLUGIN: Final = CodecPlugin(
    name="v2-rest", carrier=Carrier.HTTP, claims=("v2",), make=_make, answers_rest=True
)
