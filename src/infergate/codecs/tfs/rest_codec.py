"""The codec of TensorFlow Serving's REST API. It converts between HTTP messages and canonical
operations.

The references are tensorflow/serving, and messages captured from its code and clients
(docs/fidelity-tfs.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from infergate.codecs.base import (
    Capabilities,
    ParsedRequest,
    PartialInferRequest,
    Profile,
    RequestSummary,
    no_request,
)
from infergate.codecs.encodings import (
    CONTENT_ENCODING,
    decode_body,
    inflate_small,
    max_decoded_bytes,
    without_encoding,
)
from infergate.codecs.json_tensors.estimates import NestedListEstimates
from infergate.codecs.json_tensors.json_document import is_array
from infergate.codecs.json_tensors.row_document import parse_document
from infergate.codecs.json_tensors.row_writer import nesting_cost
from infergate.codecs.tfs import forwarded_calls, rest_messages, rest_paths, rest_predict
from infergate.codecs.tfs.errors import unknown_model_text
from infergate.codecs.tfs.metadata import is_available
from infergate.codecs.tfs.model_spec import (
    REST_PROTOCOL,
    SIGNATURE,
    ModelSpec,
    RequestedModel,
    apply_options,
    spec_parameters,
)
from infergate.codecs.tfs.options import TfsOptions
from infergate.codecs.tfs.rest_messages import JSON_HEADERS
from infergate.codecs.tfs.rest_paths import CLASSIFY, PREDICT, REGRESS, RestPathMatch, match_path
from infergate.codecs.tfs.rest_predict import PredictFormat
from infergate.core import messages
from infergate.core.datatypes import Datatype
from infergate.core.errors import (
    GatewayError,
    Kind,
    as_backend_error,
    backend_garbage,
    bad_request,
)
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, Operation, Response
from infergate.core.records import record
from infergate.core.sequences import SequenceId
from infergate.core.wire import HttpRequest, HttpResponse, join_parts

_OPERATIONS: Final[Mapping[str, type[Operation]]] = {
    PREDICT: InferRequest,
    CLASSIFY: InferRequest,
    REGRESS: InferRequest,
    rest_paths.METADATA: messages.ModelMetadataRequest,
    rest_paths.STATUS: messages.ModelIndexRequest,
    rest_paths.SERVER: messages.ServerReadyRequest,
    rest_paths.OPTIONS: messages.ServerLiveRequest,
}
_WITH_SIGNATURE: Final = (PREDICT, CLASSIFY, REGRESS)
_WITHOUT_MODEL: Final = (rest_paths.SERVER, rest_paths.OPTIONS)
_NO_MODEL: Final = "Missing model name in request."
_EXAMPLES: Final = "examples"


@record
class _Target:
    """The action and the model of a request. ``requested`` is None if the request names no
    model."""

    action: str
    requested: RequestedModel | None


class TfsRestCodec(NestedListEstimates):
    """Translates messages of TensorFlow Serving's REST API for listeners and backends."""

    name: str = REST_PROTOCOL
    capabilities: Capabilities = Capabilities(
        datatypes=frozenset(Datatype), supports_sequences=False
    )
    needs_profile: bool = False
    needs_metadata: bool = True
    streaming_methods: frozenset[str] = frozenset()
    can_pass_through: bool = True

    def __init__(self, options: TfsOptions) -> None:
        self._options: Final = options

    # ---- for clients

    def summarize(self, wire: HttpRequest) -> RequestSummary:
        """Return the operation, model and version that the path names. The body is searched for a
        signature if the options map signatures of the model."""
        target = self._target(wire)
        operation, requested = _OPERATIONS[target.action], target.requested
        if requested is None:
            return RequestSummary(operation)
        return RequestSummary(operation, requested.model, requested.version)

    def _target(self, wire: HttpRequest) -> _Target:
        target: _Target | None = wire.codec_state
        if target is None:
            match = match_path(wire)
            requested = None
            if match.action not in _WITHOUT_MODEL:
                requested = self._requested(wire, match)
            target = wire.codec_state = _Target(match.action, requested)
        return target

    def _requested(self, wire: HttpRequest, match: RestPathMatch) -> RequestedModel:
        spec = match.spec
        if match.action in _WITH_SIGNATURE and self._maps_signatures(spec.name):
            signature = rest_predict.find_signature(wire.headers, wire.body)
            spec = replace(spec, signature=signature)
        return apply_options(spec, self._options)

    def _maps_signatures(self, model: str) -> bool:
        return bool(self._options.signatures.get(model))

    def parse_request(
        self, wire: HttpRequest, limits: Limits
    ) -> ParsedRequest | PartialInferRequest[ParsedRequest]:
        target = self._target(wire)
        requested = target.requested
        if requested is None:
            return ParsedRequest(_OPERATIONS[target.action](), target)  # type: ignore[call-arg]  # no fields
        maps_signatures = self._maps_signatures(requested.spec.name)
        if target.action == PREDICT:
            read, encoding = rest_predict.read_request, _encoding_headers(wire)
            complete = partial(read, encoding, wire.body, requested, maps_signatures, limits)
            size = max_decoded_bytes(wire.headers, wire.body)
            return PartialInferRequest(requested.model, requested.version, complete, size)
        if target.action in (CLASSIFY, REGRESS):
            call = _read_forwarded(
                wire, target.action, requested, limits, maps_signatures=maps_signatures
            )
            return ParsedRequest(call, target)
        if target.action == rest_paths.METADATA:
            operation: Operation = messages.ModelMetadataRequest(requested.model, requested.version)
        else:
            operation = messages.ModelIndexRequest(model=requested.model, version=requested.version)
        return ParsedRequest(operation, target)

    def build_response(self, response: Response, parsed: ParsedRequest) -> HttpResponse:
        options = parsed.response_options
        if options is None:  # another codec parsed the request
            options = _target_of(parsed.operation)
        match response:
            case InferResponse() if isinstance(options, PredictFormat):
                body = rest_predict.response_body(response, options)
                return HttpResponse(200, JSON_HEADERS, body)
            case InferResponse():
                body = [forwarded_calls.response_message(response)]
                return HttpResponse(200, JSON_HEADERS, body)
            case messages.HealthStatus(ok):
                return _health_response(options.action, is_ok=ok)
            case ModelMetadata():
                return rest_messages.write_metadata(response, options.requested)
            case messages.ModelIndex():
                return rest_messages.write_status(response, options.requested)
        raise GatewayError(
            Kind.UNSUPPORTED,
            f"TensorFlow Serving's REST API cannot express {type(response).__name__}",
        )

    def build_error(self, error: GatewayError, wire: HttpRequest | None = None) -> HttpResponse:
        text = error.public
        if error.kind is Kind.NOT_FOUND and wire is not None:
            try:
                target = self._target(wire)
            except GatewayError:
                target = _Target("", None)
            if target.requested is not None:
                is_status = target.action == rest_paths.STATUS
                text = unknown_model_text(target.requested, is_status=is_status)
        return rest_messages.build_error(error, text)

    # ---- costs

    def open_request(self, wire: HttpRequest) -> None:
        if CONTENT_ENCODING in wire.headers:
            inflate_small(wire)

    def request_text_bytes(self, wire: HttpRequest) -> int:
        """Return the maximum size of the body in bytes after inflation. The result is 0 for a
        request other than POST, and for Predict, whose body is read later, when the model's
        metadata is known."""
        target: _Target | None = wire.codec_state
        if wire.method != "POST" or (target is not None and target.action == PREDICT):
            return 0
        return max_decoded_bytes(wire.headers, wire.body)

    def json_bytes(self, wire: HttpRequest | HttpResponse, max_bytes: int) -> int:
        return min(max_decoded_bytes(wire.headers, wire.body), max_bytes)

    def response_text_bytes(self, response: Response, parsed: ParsedRequest) -> int:
        """Return the size of the outputs, plus the cost of their lists and of the names in rows."""
        if getattr(parsed.response_options, "has_rows", False):
            return super().response_text_bytes(response, parsed)
        return nesting_cost(response.outputs) if isinstance(response, InferResponse) else 0

    def backend_text_bytes(self, operation: InferRequest, profile: Profile) -> int:
        """Return the size of the inputs, plus the cost of their lists."""
        del profile
        return nesting_cost(operation.inputs)

    # ---- for backends

    def build_request(
        self, operation: Operation, profile: Profile, model: ModelMetadata | None = None
    ) -> HttpRequest:
        del profile
        match operation:
            case InferRequest(name, version):
                signature, label = spec_parameters(operation.parameters)
                call = forwarded_calls.call_of(operation, REST_PROTOCOL)
                if call is not None:
                    action, body = call
                    path = rest_paths.model_path(name, version, label, f":{action}")
                    return HttpRequest("POST", path, "", JSON_HEADERS, [body])
                if model is not None:
                    rest_predict.check_outputs(operation, model, signature)
                path = rest_paths.model_path(name, version, label, f":{PREDICT}")
                parts = rest_predict.request_body(operation, signature)
                return HttpRequest("POST", path, "", JSON_HEADERS, parts)
            case messages.ServerLiveRequest() | messages.ServerReadyRequest():
                return HttpRequest("GET", "/v1/models")
            case messages.ModelReadyRequest(name, version) | messages.ModelIndexRequest(
                _, name, version
            ):
                return HttpRequest("GET", rest_paths.model_path(name, version, "", ""))
            case messages.ModelMetadataRequest(name, version):
                return HttpRequest("GET", rest_paths.model_path(name, version, "", "/metadata"))
        raise no_request("TensorFlow Serving's REST API", operation)

    def parse_response(
        self,
        wire: HttpResponse,
        operation: Operation,
        limits: Limits,
        model: ModelMetadata | None = None,
    ) -> Response:
        if isinstance(operation, messages.ServerLiveRequest | messages.ServerReadyRequest):
            if wire.status >= 500 and wire.status not in (501, 503):
                raise _server_error(wire)
            return messages.HealthStatus(ok=wire.status != 503)
        body = _success_body(wire, limits)
        if isinstance(operation, InferRequest):
            if forwarded_calls.call_of(operation, REST_PROTOCOL) is not None:
                return forwarded_calls.read_response(body, operation, operation.version)
            assert model is not None  # needs_metadata
            signature, _ = spec_parameters(operation.parameters)
            return rest_predict.read_response(body, operation, model, signature, limits)
        return _read_description(body, operation, limits)

    # ---- pass-through

    def validate(
        self, wire: HttpRequest, limits: Limits
    ) -> HttpRequest | PartialInferRequest[HttpRequest]:
        parsed = self.parse_request(wire, limits)
        if isinstance(parsed, PartialInferRequest):
            complete = partial(_complete_validation, wire, parsed.complete, limits)
            return PartialInferRequest(parsed.model, parsed.version, complete, parsed.text_bytes)
        return _plain_request(wire, limits)

    def sequence_of(self, wire: HttpRequest, limits: Limits) -> SequenceId | None:
        """Return None, because TensorFlow Serving has no sequences."""
        del wire, limits
        return None

    def rewrite_request(
        self, wire: HttpRequest, model: str, version: str, profile: Profile
    ) -> HttpRequest | None:
        """Return ``wire`` with the path of ``model``, or None if ``wire`` names no model or its
        body has a signature that the options map."""
        del profile
        target = self._target(wire)
        requested = target.requested
        if requested is None:
            return None
        if requested.spec.signature and requested.is_mapped:
            return None
        path = rest_paths.model_path(
            model, version or requested.version, requested.label, f":{target.action}"
        )
        # The body is still encoded if the route does not validate requests.
        headers = {**JSON_HEADERS, **_encoding_headers(wire)}
        return HttpRequest("POST", path, "", headers, wire.body)

    def rewrite_response(
        self, wire: HttpResponse, request: HttpRequest, model: str, version: str, limits: Limits
    ) -> HttpResponse:
        """Return a response with the server's body, which contains neither a model name nor a
        version. Raises the server's error if the status is not 200."""
        del request, model, version, limits
        if wire.status != 200:
            raise _server_error(wire)
        return HttpResponse(200, JSON_HEADERS, wire.body)


def _encoding_headers(wire: HttpRequest) -> dict[str, str]:
    return {name: value for name, value in wire.headers.items() if name == CONTENT_ENCODING}


def _plain_request(wire: HttpRequest, limits: Limits) -> HttpRequest:
    """Return ``wire`` without its content encoding."""
    if CONTENT_ENCODING not in wire.headers:
        return wire
    body = decode_body(wire.headers, wire.body, limits)
    headers = without_encoding(wire.headers)
    return HttpRequest(wire.method, wire.path, wire.query, headers, (body,))


def _complete_validation(
    wire: HttpRequest, complete: Any, limits: Limits, metadata: ModelMetadata
) -> HttpRequest:
    complete(metadata)
    return _plain_request(wire, limits)


def _target_of(operation: Operation) -> Any:
    """Return the response options for an operation that another codec parsed."""
    name, version = getattr(operation, "model", ""), getattr(operation, "version", "")
    requested = RequestedModel(ModelSpec(name), name, version, "", "")
    if isinstance(operation, InferRequest):
        return PredictFormat(requested)
    actions = {kind: action for action, kind in _OPERATIONS.items()}
    return _Target(actions.get(type(operation), ""), requested)


def _health_response(action: str, *, is_ok: bool) -> HttpResponse:
    """Return the response to OPTIONS or to a request without a model. TensorFlow Serving rejects a
    request without a model even if the server is ready."""
    if not is_ok:
        error = GatewayError(Kind.NO_BACKEND, "the server is not ready")
        return rest_messages.build_error(error, error.public)
    if action == rest_paths.OPTIONS:
        return HttpResponse(200)
    return rest_messages.build_error(bad_request(_NO_MODEL), _NO_MODEL)


def _read_forwarded(
    wire: HttpRequest,
    action: str,
    requested: RequestedModel,
    limits: Limits,
    *,
    maps_signatures: bool,
) -> InferRequest:
    """Return a Classify or Regress request as an inference. Raises BAD_REQUEST, TOO_LARGE,
    UNSUPPORTED_ENCODING, and NeedsOffloadError on the event loop."""
    body = rest_predict.decoded_json(wire.headers, wire.body, limits)
    members = parse_document(body, (_EXAMPLES, SIGNATURE), limits)
    signature = rest_predict.read_signature(members)
    if maps_signatures:
        rest_predict.check_signature(signature, requested)
        if signature and requested.is_mapped:
            body = rest_predict.without_signature(body)
    if _EXAMPLES not in members:
        raise bad_request(
            f"When method is {action}, key '{_EXAMPLES}' is expected and was not found"
        )
    examples = members[_EXAMPLES].node
    if not is_array(examples) or not len(examples):
        raise bad_request(f"'{_EXAMPLES}' value must be an array that is not empty")
    return forwarded_calls.as_inference(requested, REST_PROTOCOL, action, body, requested.label)


# ---- responses of servers


def _success_body(wire: HttpResponse, limits: Limits) -> bytes:
    """Return the body of a response. Raises the server's error, BACKEND_GARBAGE and TOO_LARGE."""
    if wire.status != 200:
        raise _server_error(wire)
    try:
        return bytes(decode_body(wire.headers, wire.body, limits))
    except GatewayError as error:
        raise as_backend_error(error) from None


def _server_error(wire: HttpResponse) -> GatewayError:
    return rest_messages.backend_error(wire, bytes(join_parts(wire.body)))


def _read_description(body: bytes, operation: Operation, limits: Limits) -> Response:
    """Return the metadata, index or health in ``body``. Raises BACKEND_GARBAGE, TOO_LARGE and
    NeedsOffloadError."""
    try:
        document = rest_messages.read_document(body, limits)
        if isinstance(operation, messages.ModelMetadataRequest):
            return rest_messages.read_metadata(document, operation.model)
        # ``build_request`` rejects all other operations.
        assert isinstance(operation, messages.ModelReadyRequest | messages.ModelIndexRequest)
        index = rest_messages.read_status(document, operation.model)
    except GatewayError as error:
        raise as_backend_error(error) from None
    except (LookupError, TypeError, ValueError) as error:
        raise backend_garbage(
            f"the backend's response to {messages.OPERATION_NAMES[type(operation)]} cannot be read",
            str(error)[:200],
        ) from None
    if isinstance(operation, messages.ModelIndexRequest):
        return index
    return messages.HealthStatus(ok=is_available(index))
