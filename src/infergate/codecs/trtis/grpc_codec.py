"""The legacy gRPC codec. It converts between gRPC messages and canonical operations.

The codec reports errors in the field ``request_status`` of a response whose gRPC status is OK. Only
an unknown method or an unreadable message results in another gRPC status. The references are the
API's protobuf files and the messages of its servers and clients (docs/fidelity-trtis.md)."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from infergate.codecs.base import ParsedRequest, PartialInferRequest, Profile, RequestSummary
from infergate.codecs.protos.bounded_parser import parse_checked
from infergate.codecs.trtis import grpc_backend, grpc_infer, grpc_methods, grpc_pass_through
from infergate.codecs.trtis import messages as pb
from infergate.codecs.trtis.base_codec import TrtisCodec
from infergate.codecs.trtis.grpc_methods import INFER, METHODS, STREAM_INFER, TrtisMethod
from infergate.codecs.trtis.grpc_pass_through import RequestState
from infergate.codecs.trtis.infer_request import read_request
from infergate.codecs.trtis.infer_response import write_response
from infergate.codecs.trtis.server_status import not_ready_if_unknown
from infergate.codecs.trtis.split_inference import REQUEST, split_inference
from infergate.core.bounded_cache import BoundedCache
from infergate.core.errors import GatewayError, Kind, retry_after_headers
from infergate.core.limits import KIB, Limits
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, Operation, Response
from infergate.core.sequences import SequenceId
from infergate.core.wire import RpcRequest, RpcResponse, join_parts, total_size

_MAX_SHOWN: Final = 200
_INFERENCES: Final = (INFER, STREAM_INFER)
_LATEST_VERSION: Final = -1
_MAX_OTHER_BYTES: Final = 64 * KIB
"""Maximum size in bytes of a request that is not an inference. Such requests contain no tensors."""
_MAX_CACHED_NAME: Final = 256
_target_cache: Final = BoundedCache[tuple[bytes, int], tuple[InferRequest, RequestSummary]](1024)
"""The models that recent requests named, by the encoded name and the version. Clients choose the
names, so the number and the length of the cached names are limited."""
_new_tuple: Final = tuple.__new__
"""Creates a named tuple at a third of the cost of calling the class."""
_INTERNAL: Final = 13
_UNIMPLEMENTED: Final = 12


class TrtisGrpcCodec(TrtisCodec):
    """The codec of the legacy gRPC API."""

    name: str = "trtis-grpc"
    streaming_methods: frozenset[str] = frozenset({STREAM_INFER})

    # ---- for clients

    def summarize(self, wire: RpcRequest) -> RequestSummary:
        """Return the operation and the model. For inferences, also return the version; only the
        top-level fields of their messages are read."""
        if wire.method in _INFERENCES:
            return _read_state(wire).summary
        operation = _parse_other(wire)[0]
        return RequestSummary(type(operation), getattr(operation, "model", ""))

    def parse_request(
        self, wire: RpcRequest, limits: Limits
    ) -> ParsedRequest | PartialInferRequest[ParsedRequest]:
        if wire.method not in _INFERENCES:
            return ParsedRequest(*_parse_other(wire))
        head, raw = grpc_infer.read_request(wire.message, limits)
        target = _requested_model(head.model_name, head.model_version)
        split_inputs = partial(grpc_infer.split_inputs, raw)
        return read_request(head.meta_data, target, split_inputs, self._options.level, limits)

    def build_response(self, response: Response, parsed: ParsedRequest) -> RpcResponse:
        if isinstance(response, InferResponse):
            assert isinstance(parsed.operation, InferRequest)
            header, raw = write_response(
                response,
                parsed.operation,
                parsed.response_options,
                data_type=self._options.data_type,
            )
            head = pb.InferResponse(request_status=self._status_factory.success(), meta_data=header)
            return RpcResponse(grpc_infer.message_parts(head, grpc_infer.RAW_OUTPUT, raw))
        method: TrtisMethod = parsed.response_options
        if not isinstance(response, method.response_types):
            raise GatewayError(
                Kind.UNSUPPORTED,
                f"the response of this method cannot express {type(response).__name__}",
            )
        message = method.response_class()
        grpc_methods.write_response(message, response, self._options.server_id)
        message.request_status.CopyFrom(self._status_factory.success())
        return RpcResponse((message.SerializeToString(deterministic=True),))

    def build_error(self, error: GatewayError, wire: RpcRequest | None = None) -> RpcResponse:
        """Build the response for ``error``: a gRPC status for an unknown method or an unreadable
        message, and a ``request_status`` for any other error."""
        if grpc_infer.is_unreadable(error):
            return RpcResponse(code=_INTERNAL, details="Unable to parse request")
        if wire is None:
            head = pb.InferResponse(request_status=self._status_factory.error(error, None))
        elif wire.method in _INFERENCES:
            head = self._infer_error(error, wire)
        elif wire.method in METHODS:
            try:
                operation: Operation | None = _parse_other(wire)[0]
            except GatewayError:
                operation = None
            head = METHODS[wire.method].response_class(
                request_status=self._status_factory.error(error, operation)
            )
        else:
            return RpcResponse(code=_UNIMPLEMENTED)
        message = head.SerializeToString(deterministic=True)
        return RpcResponse((message,), metadata=retry_after_headers(error))

    def _infer_error(self, error: GatewayError, wire: RpcRequest) -> Any:
        """Return an InferResponse for ``error``, with the id in ``wire`` if the id can be read."""
        try:
            model, version = grpc_infer.read_names(wire.message)
            number = grpc_infer.read_id(wire.message)
        except GatewayError:
            model, version, number = "", _LATEST_VERSION, 0
        target = InferRequest(model, _version_text(version))
        head = pb.InferResponse(request_status=self._status_factory.error(error, target))
        head.meta_data.id = number
        head.meta_data.SetInParent()
        return head

    def number_response(self, wire: RpcResponse) -> RpcResponse:
        """Append a second ``request_status``, with the next request number, to ``wire``. Protobuf
        merges the two statuses."""
        status = pb.InferResponse()
        status.request_status.request_id = self._status_factory.next_number()
        return RpcResponse(
            (*wire.message, status.SerializeToString()), wire.code, wire.details, wire.metadata
        )

    # ---- for backends

    def build_request(
        self, operation: Operation, profile: Profile, model: ModelMetadata | None = None
    ) -> RpcRequest:
        del profile
        return grpc_backend.build_request(operation, model)

    def parse_response(
        self,
        wire: RpcResponse,
        operation: Operation,
        limits: Limits,
        model: ModelMetadata | None = None,
    ) -> Response:
        try:
            return grpc_backend.parse_response(wire, operation, limits, model)
        except GatewayError as error:
            return not_ready_if_unknown(error, operation)

    # ---- pass-through

    def validate(
        self, wire: RpcRequest, limits: Limits
    ) -> RpcRequest | PartialInferRequest[RpcRequest]:
        if wire.method not in _INFERENCES:
            self.parse_request(wire, limits)
            return wire
        return grpc_pass_through.validate(
            wire, _read_state(wire), self._header_cache, self._options.level, limits
        )

    def sequence_of(self, wire: RpcRequest, limits: Limits) -> SequenceId | None:
        return grpc_pass_through.sequence_of(wire, limits)

    def rewrite_request(
        self, wire: RpcRequest, model: str, version: str, profile: Profile
    ) -> RpcRequest | None:
        """Return the request for the backend, or None if the request needs translation."""
        del profile
        return grpc_pass_through.rewrite_request(wire, model, version)

    def rewrite_response(
        self, wire: RpcResponse, request: RpcRequest, model: str, version: str, limits: Limits
    ) -> RpcResponse:
        return grpc_pass_through.rewrite_response(
            wire, request, model, version, limits, self._status_factory
        )


def _read_state(wire: RpcRequest) -> RequestState:
    """Return the state of ``wire``, and store it in ``wire``. Raises BAD_REQUEST and NOT_FOUND."""
    state: RequestState | None = wire.codec_state
    if type(state) is RequestState and state.message is wire.message:
        return state
    message = wire.message
    split = split_inference(message[0] if len(message) == 1 else join_parts(message), REQUEST)
    key = None
    if split is not None and len(split.first) <= _MAX_CACHED_NAME:
        key = bytes(split.first), split.version
    requested = None if key is None else _target_cache.get(key)
    if requested is None:
        names = None if split is None else grpc_pass_through.read_names(split)
        target = _requested_model(*(names or grpc_infer.read_names(message)))
        requested = target, RequestSummary(InferRequest, target.model, target.version)
        if key is not None and names is not None:
            _target_cache[key] = requested
    wire.codec_state = state = _new_tuple(RequestState, (message, *requested, split))
    return state


def _requested_model(model: str, version: int) -> InferRequest:
    """Return an InferRequest for ``model`` and ``version``. Raises NOT_FOUND for a version that
    cannot exist, such as 0, the value of an unset field."""
    if version < 1 and version != _LATEST_VERSION:
        raise GatewayError(
            Kind.NOT_FOUND,
            f"model '{model[:_MAX_SHOWN]}' has no version {version}; use -1 for the latest",
        )
    return InferRequest(model, _version_text(version))


def _version_text(number: int) -> str:
    return "" if number == _LATEST_VERSION else str(number)


def _parse_other(wire: RpcRequest) -> tuple[Operation, TrtisMethod]:
    method = METHODS.get(wire.method)
    if method is None:
        raise GatewayError(Kind.UNSUPPORTED, f"method {wire.method} is not supported")
    if total_size(wire.message) > _MAX_OTHER_BYTES:
        raise GatewayError(
            Kind.TOO_LARGE, f"the message to {wire.method} is larger than {_MAX_OTHER_BYTES} bytes"
        )
    with grpc_infer.reading_request():
        message = parse_checked(method.request_class, join_parts(wire.message))
    return method.read(message), method
