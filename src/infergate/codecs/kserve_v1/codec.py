"""The codec of KServe's V1 protocol. It converts between HTTP messages and canonical operations.

The references are kserve 0.21 and messages captured from its server (docs/fidelity-kserve-v1.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from infergate.codecs.base import (
    Capabilities,
    ParsedRequest,
    PartialInferRequest,
    Profile,
    RequestSummary,
)
from infergate.codecs.json_tensors.estimates import NestedListEstimates
from infergate.codecs.kserve_v1 import backend, errors, readiness
from infergate.codecs.kserve_v1.cloud_events import Event, EventRequest, wrap_response
from infergate.codecs.kserve_v1.errors import JSON_HEADERS, backend_error
from infergate.codecs.kserve_v1.paths import (
    EXPLAIN,
    PREDICT,
    PROTOCOL,
    V1PathMatch,
    match_request,
    model_path,
)
from infergate.codecs.kserve_v1.predict import (
    check_body,
    read_inputs,
    read_payload,
    write_predictions,
)
from infergate.core import messages
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, Operation, Response
from infergate.core.records import record
from infergate.core.sequences import SequenceId
from infergate.core.tensor import Buffer, data_bytes
from infergate.core.wire import HttpRequest, HttpResponse


@record
class V1ResponseOptions:
    """The verb, model and event that the response to a request needs."""

    verb: str = PREDICT
    model: str = ""
    event: Event | None = None


class KServeV1Codec(NestedListEstimates):
    """Translates messages of KServe's V1 protocol for listeners and backends."""

    name: str = PROTOCOL
    capabilities: Capabilities = Capabilities(
        datatypes=frozenset(Datatype), supports_sequences=False
    )
    needs_profile: bool = False
    needs_metadata: bool = True
    streaming_methods: frozenset[str] = frozenset()
    can_pass_through: bool = True

    # ---- for clients

    def summarize(self, wire: HttpRequest) -> RequestSummary:
        return _match_of(wire).summary

    def parse_request(
        self, wire: HttpRequest, limits: Limits
    ) -> ParsedRequest | PartialInferRequest[ParsedRequest]:
        match = _match_of(wire)
        model, operation = match.summary.model, match.summary.operation
        if operation is messages.ServerLiveRequest:
            return ParsedRequest(messages.ServerLiveRequest())
        if operation is messages.ModelIndexRequest:
            return ParsedRequest(messages.ModelIndexRequest(model=model))
        text, event = read_payload(wire, limits)
        options = V1ResponseOptions(match.verb, model, event)
        if match.verb == EXPLAIN:
            check_body(text, limits)
            return ParsedRequest(backend.explanation_request(model, text), options)
        complete = partial(_complete, text, options, limits)
        return PartialInferRequest(model, "", complete, len(text))

    def build_response(self, response: Response, parsed: ParsedRequest) -> HttpResponse:
        if isinstance(response, InferResponse):
            options = parsed.response_options or V1ResponseOptions(model=response.model)
            is_explanation = options.verb == EXPLAIN
            write = backend.explanation_of if is_explanation else write_predictions
            return wrap_response([write(response)], options.model, options.event)
        operation = parsed.operation
        match response:
            case messages.HealthStatus(ok) if isinstance(operation, messages.ModelReadyRequest):
                state = readiness.READY if ok else ""
                entry = messages.ModelIndexEntry(operation.model, state=state)
                return readiness.write_readiness(operation.model, (entry,))
            case messages.HealthStatus(ok):
                return readiness.write_liveness(ok=ok)
            case messages.ModelIndex(entries) if name := getattr(operation, "model", ""):
                return readiness.write_readiness(name, entries)
            case messages.ModelIndex(entries):
                return readiness.write_list(entries)
        raise GatewayError(
            Kind.UNSUPPORTED, f"KServe's V1 protocol cannot express {type(response).__name__}"
        )

    def build_error(self, error: GatewayError, wire: HttpRequest | None = None) -> HttpResponse:
        return errors.build_error(error, wire)

    def response_size(self, response: InferResponse, parsed: ParsedRequest) -> tuple[int, int]:
        if getattr(parsed.response_options, "verb", PREDICT) == EXPLAIN:
            size = data_bytes(response.outputs)
            return size - 4, size
        return super().response_size(response, parsed)

    # ---- for backends

    def build_request(
        self, operation: Operation, profile: Profile, model: ModelMetadata | None = None
    ) -> HttpRequest:
        del profile
        return backend.build_request(operation, model)

    def parse_response(
        self,
        wire: HttpResponse,
        operation: Operation,
        limits: Limits,
        model: ModelMetadata | None = None,
    ) -> Response:
        return backend.parse_response(wire, operation, limits, model)

    # ---- pass-through

    def validate(self, wire: HttpRequest, limits: Limits) -> HttpRequest:
        """Check everything in the request except the values in the rows. Unwrap a CloudEvent."""
        if _match_of(wire).summary.operation is not InferRequest:
            self.parse_request(wire, limits)
            return wire
        text, event = read_payload(wire, limits)
        check_body(text, limits)
        return EventRequest(wire.method, wire.path, "", JSON_HEADERS, [text], event=event)

    def sequence_of(self, wire: HttpRequest, limits: Limits) -> SequenceId | None:
        """Return None, because V1 has no sequences."""
        del wire, limits
        return None

    def rewrite_request(
        self, wire: HttpRequest, model: str, version: str, profile: Profile
    ) -> HttpRequest | None:
        """Return ``wire`` with the path of ``model``, or None if ``version`` is not empty."""
        del profile
        if version:
            return None
        headers = JSON_HEADERS if isinstance(wire, EventRequest) else _event_headers(wire.headers)
        path = model_path(model, _match_of(wire).verb)
        return HttpRequest("POST", path, "", headers, wire.body)

    def rewrite_response(
        self, wire: HttpResponse, request: HttpRequest, model: str, version: str, limits: Limits
    ) -> HttpResponse:
        """Return the response, in a CloudEvent if the request was in a CloudEvent. The body is
        unchanged, because it does not contain the model's name."""
        del version, limits
        if wire.status != 200:
            raise backend_error(wire)
        if not isinstance(request, EventRequest):  # the request was not validated
            return HttpResponse(200, _event_headers(wire.headers), wire.body)
        model = model or _match_of(request).summary.model
        return wrap_response(list(wire.body), model, request.event)


def _match_of(wire: HttpRequest) -> V1PathMatch:
    """Return the match that ``summarize`` stored in ``wire``, or match the path."""
    match: V1PathMatch | None = wire.codec_state
    if match is None:
        match = wire.codec_state = match_request(wire.method, wire.path)
    return match


def _event_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the content type and the ``ce-`` headers in ``headers``."""
    return {
        name: value
        for name, value in headers.items()
        if name == "content-type" or name.startswith("ce-")
    }


def _complete(
    text: Buffer, options: V1ResponseOptions, limits: Limits, metadata: ModelMetadata
) -> ParsedRequest:
    # A helper process receives a long body as a memoryview.
    inputs = read_inputs(bytes(text), metadata, limits)
    return ParsedRequest(InferRequest(options.model, inputs=inputs), options)
