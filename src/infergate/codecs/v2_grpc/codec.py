"""The V2 gRPC codec converts between gRPC messages and canonical operations and responses.

The sources are the specifications of the V2 protocol and of the Open Inference Protocol over gRPC,
and docs/fidelity-v2.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from infergate.codecs.base import Capabilities, ParsedRequest, Profile, RequestSummary, no_request
from infergate.codecs.binary_estimates import BinaryEstimates
from infergate.codecs.protos.bounded_parser import max_fields_on_loop, parse
from infergate.codecs.protos.statuses import raise_status
from infergate.codecs.protos.wire_scanner import (
    DELIMITED,
    MAX_METADATA_FIELDS_ON_LOOP,
    MAX_NAME_BYTES,
    MalformedMessageError,
    read_strings,
    remove_fields,
    scan_fields,
    string_field,
)
from infergate.codecs.v2_grpc import errors, repository, stream_messages
from infergate.codecs.v2_grpc.head_limits import MAX_FIELDS, MAX_HEAD_BYTES, max_fields
from infergate.codecs.v2_grpc.infer_request import (
    pass_through_parts,
    read_priority,
    read_request,
    read_sequence,
    requests_classes,
    write_request,
)
from infergate.codecs.v2_grpc.infer_response import (
    RAW_FIELD,
    read_response,
    write_raw,
    write_typed_where_possible,
)
from infergate.codecs.v2_grpc.methods import BY_PATH, HEALTH, INFER, OPERATIONS, STREAM, method_of
from infergate.codecs.v2_grpc.tensors import describe_error, max_typed_bytes, typed_cost
from infergate.codecs.v2_grpc.validated_heads import (
    ID,
    MODEL,
    OUTPUTS,
    VERSION,
    PassThroughHeads,
    RequestHeads,
    ResponseHeads,
    SplitRequest,
)
from infergate.core import messages
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, backend_garbage, bad_request
from infergate.core.limits import DEFAULT_LIMITS, KIB, MIB, Limits
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, Operation, Response
from infergate.core.priorities import requested_priority
from infergate.core.sequences import SequenceId
from infergate.core.tensor import Buffer
from infergate.core.wire import RpcRequest, RpcResponse, join_parts, total_size

_MAX_REQUEST_BYTES: Final = 64 * KIB
"""Maximum size in bytes of a request that can hold neither tensors nor files."""
_MAX_REQUEST_FIELDS: Final = 24 * KIB
"""Maximum number of fields of a request other than an inference, and of a response about at most
one model."""
_MAX_FILES: Final = 4096
MAX_RESPONSE_BYTES: Final = 8 * MIB
"""Maximum size in bytes of a response to a request other than an inference. The description of a
model takes 1 to 4 KiB."""
MAX_RESPONSE_FIELDS: Final = 131072
"""Maximum number of fields of a response about all models. Each model has up to 100 fields."""
_ABOUT_ALL_MODELS: Final = frozenset({messages.ModelIndexRequest, messages.ModelStatisticsRequest})
_NAMES: Final = frozenset({MODEL, VERSION, ID})
_WRITERS: Final[dict[str, Callable[[InferResponse], Sequence[Buffer]]]] = {
    "raw": write_raw,
    "typed": write_typed_where_possible,
}


class _SharedMemoryRequest(RpcRequest):
    """A validated request that has tensors in shared memory."""


class V2Grpc:
    """The V2 gRPC codec. `contents` ("raw" or "typed") is the form of tensors in responses to
    clients. `stream` ("triton" or "plain") is the form of stream messages to clients."""

    name: str = "v2-grpc"
    capabilities: Capabilities = Capabilities(
        datatypes=frozenset(Datatype), supports_streaming=True
    )
    needs_profile: bool = False
    needs_metadata: bool = False
    streaming_methods: frozenset[str] = frozenset()
    streaming_method: str = STREAM

    def __init__(self, contents: str = "raw", stream: str = "triton") -> None:
        if contents not in _WRITERS:
            raise ValueError(f"contents is {contents!r}, not one of {sorted(_WRITERS)}")
        if stream not in ("triton", "plain"):
            raise ValueError(f"stream is {stream!r}, neither 'triton' nor 'plain'")
        self._options: Final = (contents, stream)
        self._is_plain: Final = stream == "plain"
        self._write_response: Final = _WRITERS[contents]
        # Responses that pass through have raw contents.
        self.can_pass_through: bool = contents == "raw"
        self._request_heads: Final = RequestHeads()
        self._response_heads: Final = ResponseHeads()
        self._pass_through_heads: Final = PassThroughHeads()

    def __reduce__(self) -> tuple[Any, ...]:
        return V2Grpc, self._options  # a pickled codec has empty caches

    # ---- for clients

    def summarize(self, wire: RpcRequest) -> RequestSummary:
        """Return the operation and the names. Read only top-level fields of inferences."""
        operation = OPERATIONS.get(wire.method) or _operation_of(wire)
        if operation is InferRequest:
            split = self._request_heads.find(wire)
            if split and split.head:
                return split.head.summary
            names = _read_names(
                join_parts(wire.message), frozenset({MODEL, VERSION}), MAX_NAME_BYTES
            )
            if not names.get(MODEL):
                raise bad_request("model_name is missing")
            return RequestSummary(operation, names[MODEL], names.get(VERSION, ""))
        if BY_PATH[wire.method].holds_files:
            return RequestSummary(operation, _read_model_name(join_parts(wire.message)))
        parsed_operation = self.parse_request(wire, DEFAULT_LIMITS).operation
        return RequestSummary(
            operation,
            getattr(parsed_operation, "model", ""),
            getattr(parsed_operation, "version", ""),
        )

    def parse_request(self, wire: RpcRequest, limits: Limits) -> ParsedRequest:
        if _operation_of(wire) is InferRequest:
            request = self._read_inference(wire, limits)
            return stream_messages.without_stream_parameter(request)
        method = BY_PATH[wire.method]
        max_bytes = limits.body if method.holds_files else _MAX_REQUEST_BYTES
        if total_size(wire.message) > max_bytes:
            raise GatewayError(
                Kind.TOO_LARGE, f"the message to {wire.method} is over {max_bytes} bytes"
            )
        if method.holds_files:
            _read_model_name(join_parts(wire.message))
        try:
            message = parse(
                method.request, join_parts(wire.message), _MAX_REQUEST_FIELDS, max_bytes
            )
        except MalformedMessageError as error:
            raise bad_request(f"the message to {wire.method} cannot be read: {error}") from None
        return ParsedRequest(method.read_request(message), method.special_response(message))

    def _read_inference(self, wire: RpcRequest, limits: Limits) -> InferRequest:
        split = self._request_heads.find(wire)
        head = split and split.validated_head(limits)
        if split and head:
            return split.read(head)
        validated = read_request(wire.message, limits)
        self._request_heads.store(split, validated, limits)
        return validated.request

    def build_response(self, response: Response, parsed: ParsedRequest) -> RpcResponse:
        operation = type(parsed.operation)
        try:
            if operation is InferRequest and isinstance(response, InferResponse):
                return RpcResponse(self._write_response(response))
            method = method_of(parsed.operation)
            if method is None or not isinstance(response, method.response_type):
                raise GatewayError(
                    Kind.UNSUPPORTED,
                    f"V2 gRPC cannot respond to {operation.__name__} with "
                    f"{type(response).__name__}",
                )
            message = parsed.response_options or method.write_response(response)
            return RpcResponse((message.SerializeToString(deterministic=True),))
        except ValueError as error:
            raise GatewayError(Kind.UNSUPPORTED, f"V2 gRPC: {describe_error(error)}") from None

    def build_error(self, error: GatewayError, wire: RpcRequest | None = None) -> RpcResponse:
        del wire
        return errors.build_error(error)

    # ---- for backends

    def build_request(
        self, operation: Operation, profile: Profile, model: ModelMetadata | None = None
    ) -> RpcRequest:
        """Build a request with raw tensors, which every server accepts."""
        del model
        try:
            if isinstance(operation, InferRequest):
                return RpcRequest(INFER, write_request(operation))
            method = method_of(operation)
            if method is None:
                raise no_request("V2 gRPC", operation)
            message = method.write_request(operation, profile)
            return RpcRequest(method.path, (message.SerializeToString(deterministic=True),))
        except ValueError as error:
            raise bad_request(f"V2 gRPC: {describe_error(error)}") from None

    def build_alternative_request(
        self, operation: Operation, error_kind: Kind
    ) -> RpcRequest | None:
        """Build a gRPC health check if the server does not implement ServerReady."""
        use_health_service = (
            isinstance(operation, messages.ServerReadyRequest) and error_kind is Kind.UNSUPPORTED
        )
        return RpcRequest(HEALTH, (b"",)) if use_health_service else None

    def parse_response(
        self,
        wire: RpcResponse,
        operation: Operation,
        limits: Limits,
        model: ModelMetadata | None = None,
    ) -> Response:
        del model
        if wire.code:
            raise_status(wire)
        if isinstance(operation, InferRequest):
            return self._response_heads.read(wire.message, limits, operation)
        method = method_of(operation)
        assert method is not None  # `build_request` has checked the operation
        about_all = method.operation in _ABOUT_ALL_MODELS
        try:
            message = parse(
                method.response,
                join_parts(wire.message),
                MAX_RESPONSE_FIELDS if about_all else _MAX_REQUEST_FIELDS,
                MAX_RESPONSE_BYTES,
                max_fields_on_loop(limits, MAX_METADATA_FIELDS_ON_LOOP),
            )
            return method.read_response(message)
        except MalformedMessageError as error:
            raise backend_garbage(
                f"the backend's response to {method.path} cannot be read", str(error)
            ) from None

    # ---- streams

    def build_stream_response(self, response: InferResponse, parsed: ParsedRequest) -> RpcResponse:
        if self._is_plain:
            return self.build_response(response, parsed)
        return stream_messages.wrap(
            self.build_response(stream_messages.with_final_flag(response), parsed)
        )

    def build_stream_end(self, parsed: ParsedRequest) -> RpcResponse | None:
        """Build Triton's empty final response if the client requested it."""
        return None if self._is_plain else stream_messages.build_end(parsed)

    def build_stream_error(self, error: GatewayError, wire: RpcRequest) -> RpcResponse:
        """Build an error as a stream message. In the plain form, or if the client's metadata
        requests a status, build a status instead, which ends the stream."""
        if self._is_plain or stream_messages.wants_status(wire):
            return errors.build_error(error)
        return stream_messages.build_error(error, wire)

    def streams_need_metadata(self, profile: Profile) -> bool:
        return profile.reports_decoupled

    def build_stream_request(
        self, operation: InferRequest, profile: Profile, model: ModelMetadata | None = None
    ) -> RpcRequest | None:
        """Build a request for ModelStreamInfer, or return None for a Triton model that is not
        decoupled, because a unary inference returns its only response."""
        if profile.reports_decoupled and model is not None and model.decoupled is False:
            return None
        return RpcRequest(STREAM, self.build_request(operation, profile).message)

    def parse_stream_response(
        self,
        wire: RpcResponse,
        operation: InferRequest,
        limits: Limits,
        model: ModelMetadata | None = None,
    ) -> InferResponse | None:
        del model
        if wire.code:
            raise_status(wire)
        if not wire.message:  # the backend sent only gRPC metadata
            return None
        return stream_messages.read_response(join_parts(wire.message), limits, operation)

    # ---- the same protocol on both sides

    def validate(self, wire: RpcRequest, limits: Limits) -> RpcRequest:
        """Validate `wire` as `parse_request` does. If there are raw contents, drop empty typed
        contents."""
        if OPERATIONS.get(wire.method) is not InferRequest:
            self.parse_request(wire, limits)
            return wire
        split: SplitRequest | None = wire.codec_state
        if type(split) is not SplitRequest or split.message is not wire.message:
            split = self._request_heads.find(wire)
        if split and split.validated_head(limits):
            return wire
        validated = read_request(wire.message, limits)
        self._request_heads.store(split, validated, limits)
        message, uses_shared_memory = pass_through_parts(wire.message, validated)
        if uses_shared_memory:
            return _SharedMemoryRequest(wire.method, message, wire.metadata)
        if message is wire.message:
            return wire
        return RpcRequest(wire.method, message, wire.metadata)

    def sequence_of(self, wire: RpcRequest, limits: Limits) -> SequenceId | None:
        split = self._request_heads.find(wire)
        head = split and split.head and split.head.validated
        if head and head.limits is limits:
            return head.sequence
        try:
            return read_sequence(join_parts(wire.message), limits)
        except MalformedMessageError as error:
            raise bad_request(f"the ModelInferRequest cannot be read: {error}") from None

    def priority_of(self, wire: RpcRequest) -> int:
        if OPERATIONS.get(wire.method) is not InferRequest:
            return 0
        split = self._request_heads.find(wire)
        head = split and split.head and split.head.validated
        if head:
            return requested_priority(head.request.parameters)
        return read_priority(join_parts(wire.message) if split is None else split.split.head)

    def rewrite_request(
        self, wire: RpcRequest, model: str, version: str, profile: Profile
    ) -> RpcRequest | None:
        """Replace model and version, and drop the client's metadata.

        Return None if the request asks for classes and the server might not support classification,
        or if any tensor is in shared memory, because the gateway must check its region.
        """
        if isinstance(wire, _SharedMemoryRequest):
            return None
        split: SplitRequest | None = wire.codec_state
        if type(split) is not SplitRequest or split.message is not wire.message:
            split = self._request_heads.find(wire)
        head = split and (split.head or self._request_heads.find_names(split))
        if split and head:
            if head.wants_classes and not profile.supports_classification:
                return None
            names = head.names
            if names.model == model and names.version == version:
                return RpcRequest(wire.method, split.message)
            return RpcRequest(wire.method, split.renamed(names, model, version))
        message = join_parts(wire.message)
        try:
            if not profile.supports_classification and requests_classes(message):
                return None
            rest = remove_fields(message, frozenset({MODEL, VERSION}), MAX_FIELDS)
        except MalformedMessageError as error:
            raise bad_request(f"the ModelInferRequest cannot be read: {error}") from None
        return RpcRequest(wire.method, [_name_fields({MODEL: model, VERSION: version}), *rest])

    def rewrite_response(
        self, wire: RpcResponse, request: RpcRequest, model: str, version: str, limits: Limits
    ) -> RpcResponse:
        """Set the model, the version and the id, and replace typed contents with raw contents."""
        if wire.code:
            raise_status(wire)
        # The specification says: "If specified, this identifier must be returned". MLServer
        # generates an id if the request has no id.
        sent: SplitRequest | None = request.codec_state
        if type(sent) is not SplitRequest or sent.message is not request.message:
            sent = self._request_heads.find(request)
        if sent is not None:
            request_id = sent.split.id
        else:
            request_id = _read_names(
                join_parts(request.message), frozenset({ID}), MAX_HEAD_BYTES
            ).get(ID, "")
        split = self._pass_through_heads.find(wire.message, limits)
        if split is not None:
            if not model and not version and split.split.id == request_id:
                is_bare = not wire.metadata and not wire.details
                return wire if is_bare else RpcResponse(wire.message)
            return RpcResponse(split.renamed(model, version, request_id))
        message = join_parts(wire.message)
        try:
            if _may_be_typed(message, limits):
                wire = RpcResponse(write_raw(read_response(wire.message, limits)))
                message = join_parts(wire.message)
            names = read_strings(message, _NAMES, max_fields(limits), MAX_HEAD_BYTES)
            new_names = {
                number: text for number, text in ((MODEL, model), (VERSION, version)) if text
            }
            new_names[ID] = request_id
            changed = {n: text for n, text in new_names.items() if text != names.get(n, "")}
            if not changed:
                return RpcResponse(wire.message)
            rest = remove_fields(message, frozenset(changed), max_fields(limits))
        except MalformedMessageError as error:
            raise backend_garbage(
                "the backend's ModelInferResponse cannot be read", str(error)
            ) from None
        return RpcResponse([_name_fields(changed), *rest])


class _TypedV2Grpc(BinaryEstimates, V2Grpc):
    """The codec of a listener whose responses have typed contents, which are written element by
    element."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _TypedV2Grpc, self._options

    def response_text_bytes(self, response: Response, parsed: ParsedRequest) -> int:  # noqa: ARG002
        return typed_cost(response.outputs) if isinstance(response, InferResponse) else 0

    def response_size(self, response: InferResponse, parsed: ParsedRequest) -> tuple[int, int]:
        del parsed
        return 0, max_typed_bytes(response.outputs)


def _operation_of(wire: RpcRequest) -> type[Operation]:
    operation = OPERATIONS.get(wire.method)
    if operation is None:
        raise GatewayError(Kind.UNSUPPORTED, f"method {wire.method} is not served")
    return operation


def _read_names(message: Buffer, numbers: frozenset[int], max_bytes: int) -> dict[int, str]:
    try:
        return read_strings(message, numbers, MAX_FIELDS, max_bytes)
    except MalformedMessageError as error:
        raise bad_request(f"the ModelInferRequest cannot be read: {error}") from None


def _read_model_name(message: Buffer) -> str:
    """Read the model name from a message with up to `_MAX_FILES` files. The message is not parsed,
    because the protobuf runtime would allocate up to twenty times the size of small files."""
    try:
        return repository.read_name(message, _MAX_FILES)
    except MalformedMessageError as error:
        raise bad_request(f"the message to load a model cannot be read: {error}") from None


def _name_fields(names: Mapping[int, str]) -> bytes:
    return b"".join(string_field(number, text) for number, text in names.items() if text)


def _may_be_typed(message: Buffer, limits: Limits) -> bool:
    """Return whether the message has outputs but no raw data."""
    numbers = {
        f.number for f in scan_fields(message, max_fields(limits)) if f.wire_type == DELIMITED
    }
    return OUTPUTS in numbers and RAW_FIELD not in numbers


def create(options: Mapping[str, Any]) -> V2Grpc:
    """Create the codec with `contents` and `stream` from `options`. Raises ValueError."""
    contents = options.get("contents", "raw")
    codec = _TypedV2Grpc if contents == "typed" else V2Grpc
    return codec(contents, options.get("stream", "triton"))
