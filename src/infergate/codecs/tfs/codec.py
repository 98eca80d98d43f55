"""The codec of TensorFlow Serving's gRPC API. It converts between gRPC messages and canonical
operations.

The references are tensorflow/serving, tensorflow/tensorflow, and messages captured from their
clients (docs/fidelity-tfs.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from infergate.codecs.base import Capabilities, ParsedRequest, Profile, RequestSummary
from infergate.codecs.binary_estimates import BinaryEstimates
from infergate.codecs.protos.bounded_parser import parse
from infergate.codecs.protos.statuses import raise_status
from infergate.codecs.protos.wire_scanner import MalformedMessageError
from infergate.codecs.tfs import backend, errors, forwarded_calls, metadata, predict
from infergate.codecs.tfs import messages as pb
from infergate.codecs.tfs.model_spec import (
    DEFAULT_SIGNATURE,
    GRPC_PROTOCOL,
    ModelSpec,
    RequestedModel,
    numeric_version,
    write_spec,
)
from infergate.codecs.tfs.options import TfsOptions
from infergate.codecs.tfs.tensor_writer import writing_cost, written_bytes
from infergate.core import messages
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, backend_garbage, bad_request
from infergate.core.limits import KIB, Limits
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, Operation, Response
from infergate.core.records import record
from infergate.core.sequences import SequenceId
from infergate.core.tensor import Buffer
from infergate.core.wire import RpcRequest, RpcResponse, join_parts, total_size

_INFERENCES: Final = forwarded_calls.FORWARDED | {pb.PREDICT}
_OPERATIONS: Final[dict[str, type[Operation]]] = {
    **dict.fromkeys(_INFERENCES, InferRequest),
    pb.METADATA: messages.ModelMetadataRequest,
    pb.STATUS: messages.ModelIndexRequest,
    pb.RELOAD: messages.ModelLoadRequest,
}
_MAX_OTHER_BYTES: Final = 64 * KIB
_MAX_OTHER_FIELDS: Final = 4096
"""The maximum size in bytes, and the maximum number of fields, of a request that is not an
inference."""


@record
class _ResponseOptions:
    """The method of a request, and the model that the request names."""

    method: str
    requested: RequestedModel


@record
class _SummaryState:
    """The ``requested`` model, and the ``message`` parts from which it was read."""

    message: Sequence[Buffer]
    requested: RequestedModel


class TfsGrpcCodec(BinaryEstimates):
    """Translates messages of TensorFlow Serving's gRPC API for listeners and backends."""

    name: str = GRPC_PROTOCOL
    capabilities: Capabilities = Capabilities(
        datatypes=frozenset(Datatype), supports_sequences=False
    )
    needs_profile: bool = False
    needs_metadata: bool = False
    streaming_methods: frozenset[str] = frozenset()

    def __init__(self, options: TfsOptions) -> None:
        self._options: Final = options
        # A tensor that passes through keeps the form that the server chose, so responses pass
        # through only with "auto".
        self.can_pass_through: bool = options.contents == "auto"

    # ---- for clients

    def summarize(self, wire: RpcRequest) -> RequestSummary:
        """Return the operation, model and version. Only the ModelSpec or, in a request to reload,
        the list of models is read."""
        if wire.method == pb.RELOAD:
            return RequestSummary(messages.ModelLoadRequest, self._read_reload(wire).model)
        if _is_health_check(wire):
            return RequestSummary(messages.ServerReadyRequest)
        requested = self._requested(wire)
        return RequestSummary(_OPERATIONS[wire.method], requested.model, requested.version)

    def _requested(self, wire: RpcRequest) -> RequestedModel:
        """Return the model that ``wire`` names. Raises UNSUPPORTED and BAD_REQUEST."""
        state = wire.codec_state
        if isinstance(state, _SummaryState) and state.message is wire.message:
            return state.requested
        if wire.method not in _OPERATIONS:
            raise GatewayError(Kind.UNSUPPORTED, f"method {wire.method} is not served")
        try:
            requested = forwarded_calls.requested_by(
                join_parts(wire.message), wire.method, self._options
            )
        except MalformedMessageError as error:
            raise _unreadable(wire, error) from None
        wire.codec_state = _SummaryState(wire.message, requested)
        return requested

    def parse_request(self, wire: RpcRequest, limits: Limits) -> ParsedRequest:
        if wire.method == pb.RELOAD:
            return ParsedRequest(self._read_reload(wire))
        if _is_health_check(wire):
            return ParsedRequest(messages.ServerReadyRequest())
        requested = self._requested(wire)
        options = _ResponseOptions(wire.method, requested)
        if wire.method in _INFERENCES:
            return ParsedRequest(self._read_inference(wire, requested, limits), options)
        if wire.method == pb.METADATA:
            message = _parse_other(wire, pb.GetModelMetadataRequest)
            metadata.check_fields(message.metadata_field)
            operation: Operation = messages.ModelMetadataRequest(requested.model, requested.version)
        else:
            operation = messages.ModelIndexRequest(model=requested.model, version=requested.version)
        return ParsedRequest(operation, options)

    def _read_inference(
        self, wire: RpcRequest, requested: RequestedModel, limits: Limits
    ) -> InferRequest:
        message = join_parts(wire.message)
        try:
            if wire.method != pb.PREDICT:
                return forwarded_calls.read_call(message, wire.method, requested, self._options)
            return InferRequest(
                requested.model,
                requested.version,
                parameters=requested.parameters,
                inputs=predict.read_tensors(message, predict.INPUTS, "input", limits),
                outputs=predict.read_output_filter(message, limits),
            )
        except MalformedMessageError as error:
            raise _unreadable(wire, error) from None

    def _read_reload(self, wire: RpcRequest) -> messages.ModelLoadRequest:
        """Return the request to load the only model in the list. Raises UNSUPPORTED for any other
        number of models, because the list would replace the models of other clients."""
        config = _parse_other(wire, pb.ReloadConfigRequest).config
        models = config.model_config_list.config
        if len(models) != 1:
            raise GatewayError(
                Kind.UNSUPPORTED,
                "HandleReloadConfigRequest can only load the model in a model_config_list of one "
                f"model; this list has {len(models)} models",
            )
        if not models[0].name:
            raise bad_request("the model in model_config_list has no name")
        return messages.ModelLoadRequest(models[0].name)

    def build_response(self, response: Response, parsed: ParsedRequest) -> RpcResponse:
        if isinstance(response, messages.HealthStatus):
            return backend.status_without_model(is_ready=response.ok)
        options = parsed.response_options
        try:
            if options is None and not isinstance(response, messages.Acknowledgement):
                # Another codec parsed the request. Take the names from the request that this codec
                # would send to a backend.
                wire = backend.build_request(parsed.operation)
                options = _ResponseOptions(wire.method, self._requested(wire))
            if isinstance(response, InferResponse):
                return RpcResponse(self._inference_parts(response, options))
            return RpcResponse((_other_message(response, options).SerializeToString(),))
        except (ValueError, TypeError) as error:
            raise GatewayError(
                Kind.UNSUPPORTED, f"TensorFlow Serving's API cannot express the response: {error}"
            ) from None

    def _inference_parts(
        self, response: InferResponse, options: _ResponseOptions
    ) -> Sequence[Buffer]:
        requested, version = options.requested, response.version
        if options.method != pb.PREDICT:
            return forwarded_calls.rewrite_response(
                forwarded_calls.response_message(response),
                options.method,
                lambda spec: _client_spec(spec, requested, response.model, version),
            )
        version = version if numeric_version(version) is not None else ""
        signature = requested.spec.signature or DEFAULT_SIGNATURE
        spec = write_spec(_client_model(requested, response.model), version, "", signature)
        return predict.response_parts(spec, response.outputs, self._options.contents)

    def build_error(self, error: GatewayError, wire: RpcRequest | None = None) -> RpcResponse:
        if wire is None:
            return errors.build_error(error, "", None)
        requested = None
        if error.kind is Kind.NOT_FOUND and wire.method in _OPERATIONS:
            with suppress(GatewayError):
                requested = self._requested(wire)
        return errors.build_error(error, wire.method, requested)

    def response_text_bytes(self, response: Response, parsed: ParsedRequest) -> int:
        """Return the cost of writing strings and of converting numbers."""
        del parsed
        if not isinstance(response, InferResponse):
            return 0
        return writing_cost(response.outputs, self._options.contents)

    def response_size(self, response: InferResponse, parsed: ParsedRequest) -> tuple[int, int]:
        """Return 0 and the maximum memory in bytes for strings and converted numbers."""
        del parsed
        return 0, written_bytes(response.outputs, self._options.contents)

    # ---- for backends

    def backend_text_bytes(self, operation: InferRequest, profile: Profile) -> int:
        """Return the cost of writing strings. Numbers are written without conversion."""
        del profile
        return writing_cost(operation.inputs, "raw")

    def build_request(
        self, operation: Operation, profile: Profile, model: ModelMetadata | None = None
    ) -> RpcRequest:
        del profile, model
        try:
            return backend.build_request(operation)
        except ValueError:
            raise bad_request("a name in the request is not valid Unicode") from None

    def parse_response(
        self,
        wire: RpcResponse,
        operation: Operation,
        limits: Limits,
        model: ModelMetadata | None = None,
    ) -> Response:
        del model
        try:
            return backend.parse_response(wire, operation, limits)
        except MalformedMessageError as error:
            raise backend_garbage(
                f"the backend's response to {messages.OPERATION_NAMES[type(operation)]} "
                "cannot be read",
                str(error),
            ) from None

    # ---- pass-through

    def validate(self, wire: RpcRequest, limits: Limits) -> RpcRequest:
        self.parse_request(wire, limits)
        return wire

    def sequence_of(self, wire: RpcRequest, limits: Limits) -> SequenceId | None:
        """Return None, because TensorFlow Serving has no sequences."""
        del wire, limits
        return None

    def rewrite_request(
        self, wire: RpcRequest, model: str, version: str, profile: Profile
    ) -> RpcRequest:
        """Replace the model and version, and any labels and signatures that the options map."""
        del profile
        try:
            parts = forwarded_calls.rewrite_request(
                join_parts(wire.message), wire.method, model, version, self._options
            )
        except MalformedMessageError as error:
            raise _unreadable(wire, error) from None
        return RpcRequest(wire.method, parts)

    def rewrite_response(
        self, wire: RpcResponse, request: RpcRequest, model: str, version: str, limits: Limits
    ) -> RpcResponse:
        """Replace the model and version. If the options map the client's signature to a model,
        restore the signature."""
        del limits
        if wire.code:
            raise_status(wire)
        requested = self._requested(request)
        try:
            parts = forwarded_calls.rewrite_response(
                join_parts(wire.message),
                request.method,
                lambda spec: _client_spec(spec, requested, model, version),
            )
        except MalformedMessageError as error:
            raise backend_garbage("the backend's response cannot be read", str(error)) from None
        return RpcResponse(parts)


def _is_health_check(wire: RpcRequest) -> bool:
    """Return whether ``wire`` is the request that ``backend`` sends to check a server's health."""
    return wire.method == pb.STATUS and not total_size(wire.message)


def _client_model(requested: RequestedModel, model: str) -> str:
    """Return the model name for a response: the name that the client requested if the options
    mapped the signature to a model, and ``model`` in all other cases."""
    return requested.spec.name if requested.is_mapped else model


def _client_spec(spec: ModelSpec, requested: RequestedModel, model: str, version: str) -> bytes:
    """Return a server's ``spec`` with the client's names. An empty ``model``, and a
    ``version`` that is not a number, are ignored."""
    own_version = "" if spec.version is None else str(spec.version)
    return write_spec(
        _client_model(requested, model or spec.name or requested.model),
        version if numeric_version(version) is not None else own_version,
        "",
        requested.spec.signature if requested.is_mapped else spec.signature,
    )


def _other_message(response: Response, options: _ResponseOptions) -> Any:
    """Return the message that responds to a request other than an inference. Raises TypeError."""
    match response:
        case ModelMetadata():
            return metadata.write_metadata(response, options.requested)
        case messages.ModelIndex():
            return metadata.write_status(response)
        case messages.Acknowledgement():
            message = pb.ReloadConfigResponse()
            message.status.SetInParent()
            return message
    raise TypeError(f"there is no message for {type(response).__name__}")


def _parse_other(wire: RpcRequest, message_class: Any) -> Any:
    if total_size(wire.message) > _MAX_OTHER_BYTES:
        raise GatewayError(
            Kind.TOO_LARGE, f"the message to {wire.method} is over {_MAX_OTHER_BYTES} bytes"
        )
    try:
        return parse(message_class, join_parts(wire.message), _MAX_OTHER_FIELDS, _MAX_OTHER_BYTES)
    except MalformedMessageError as error:
        raise _unreadable(wire, error) from None


def _unreadable(wire: RpcRequest, error: MalformedMessageError) -> GatewayError:
    return bad_request(
        f"the message to {wire.method} cannot be read: {error}", limit=error.limit_name
    )
