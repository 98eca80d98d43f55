"""The legacy gRPC codec: RpcRequest and RpcResponse ⇄ canonical operations and responses.

The gRPC status is OK even for errors: ``request_status`` in the response reports them. Only an
unknown method or an unreadable message ends with a gRPC error status. The requests of StreamInfer
are those of Infer, answered in turn. ``grpc_backend`` covers the backend side; the contents of
messages are shared with HTTP.

Sources: seed specification 004, and messages captured from servers and clients of the API
(docs/fidelity-trtis.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.message import DecodeError

from infergate.codecs.base import Capabilities, Parsed, Peek, Profile, Unfinished
from infergate.codecs.protos.scan import Malformed
from infergate.codecs.trtis import grpc_backend, grpc_forwarding, grpc_infer
from infergate.codecs.trtis import messages as pb
from infergate.codecs.trtis.checked import CheckedHeaders
from infergate.codecs.trtis.datatypes import NUMBERS
from infergate.codecs.trtis.infer_request import read_request
from infergate.codecs.trtis.infer_response import write_response, written_text
from infergate.codecs.trtis.methods import BY_PATH, INFER, STREAM_INFER, Method
from infergate.codecs.trtis.options import Options, read_options
from infergate.codecs.trtis.status import unknown_is_not_ready
from infergate.codecs.trtis.statuses import Statuses
from infergate.core.errors import GatewayError, Kind, retry_headers
from infergate.core.limits import KIB, Limits
from infergate.core.messages import (
    Answer,
    InferRequest,
    InferResponse,
    ModelMetadata,
    Operation,
)
from infergate.core.sequences import SequenceId
from infergate.core.wire import RpcRequest, RpcResponse, joined, size

_SHOWN: Final = 200
_INFERENCES: Final = (INFER, STREAM_INFER)
_LATEST: Final = -1
_MOST_ASKED: Final = 64 * KIB
"""The largest request other than an inference: it contains a name or two."""
_INTERNAL: Final = 13
_UNIMPLEMENTED: Final = 12


class _Unreadable(GatewayError):  # noqa: N818
    """The bytes are not a message of the method: the only error that is reported as a gRPC
    status."""

    def __init__(self, why: str) -> None:
        super().__init__(Kind.BAD_REQUEST, f"the message cannot be parsed: {why}")


class TrtisGrpc:
    """The codec of the legacy gRPC API."""

    name: str = "trtis-grpc"
    caps: Capabilities = Capabilities(
        datatypes=frozenset(NUMBERS), classifies=True, tells_config=True, tells_statistics=True
    )
    profiled: bool = False
    described: bool = True
    streams: frozenset[str] = frozenset({STREAM_INFER})

    def __init__(self, options: Options) -> None:
        self._options: Final = options
        self._statuses: Final = Statuses(options)
        self._checked: Final = CheckedHeaders()
        # No legacy server reports the datatypes of outputs, so `data_type` needs translation.
        self.forwards: bool = not options.data_type

    def __reduce__(self) -> tuple[Any, ...]:
        return TrtisGrpc, (self._options,)  # without the cache

    # ---- towards clients

    def peek(self, wire: RpcRequest) -> Peek:
        """Return the operation and names, from the top-level fields alone."""
        if wire.method in _INFERENCES:
            try:
                target = _asked(*grpc_infer.read_names(wire.message))
            except Malformed as error:
                raise _Unreadable(str(error)) from None
            return Peek(InferRequest, target.model, target.version)
        operation = _other(wire)[0]
        return Peek(type(operation), getattr(operation, "model", ""))

    def parse_request(self, wire: RpcRequest, limits: Limits) -> Parsed | Unfinished[Parsed]:
        """Parse a request. Raises UNSUPPORTED for an unknown method, and errors of the message."""
        if wire.method not in _INFERENCES:
            return Parsed(*_other(wire))
        try:
            head, raw = grpc_infer.read_request(wire.message, limits)
        except Malformed as error:
            raise _Unreadable(str(error)) from None
        target = _asked(head.model_name, head.model_version)
        return read_request(
            head.meta_data, target, grpc_infer.allot(raw), self._options.level, limits
        )

    def build_response(self, answer: Answer, parsed: Parsed) -> RpcResponse:
        """Build a response whose ``request_status`` is SUCCESS."""
        if isinstance(answer, InferResponse):
            assert isinstance(parsed.operation, InferRequest)
            header, raw = write_response(
                answer, parsed.operation, parsed.reply, data_type=self._options.data_type
            )
            head = pb.InferResponse(request_status=self._statuses.success(), meta_data=header)
            return RpcResponse(grpc_infer.message_parts(head, grpc_infer.RAW_OUTPUT, raw))
        method: Method = parsed.reply
        if not isinstance(answer, method.answers):
            raise GatewayError(
                Kind.UNSUPPORTED,
                f"the legacy gRPC API has no such response here: {type(answer).__name__}",
            )
        message = method.response()
        method.write(message, answer, self._options.server_id)
        message.request_status.CopyFrom(self._statuses.success())
        return RpcResponse((message.SerializeToString(deterministic=True),))

    def build_error(self, error: GatewayError, wire: RpcRequest | None = None) -> RpcResponse:
        """Build the response for ``error``: with a ``request_status``, or, for an unknown method or
        an unreadable message, with a gRPC status. The response to an inference has its id. The
        Retry-After value is sent as metadata."""
        if isinstance(error, _Unreadable):
            return RpcResponse(code=_INTERNAL, details="Unable to parse request")
        if wire is None:
            head = pb.InferResponse(request_status=self._statuses.error(error, None))
        elif wire.method in _INFERENCES:
            head = self._refused(error, wire)
        elif wire.method in BY_PATH:
            try:
                operation: Operation | None = _other(wire)[0]
            except GatewayError:
                operation = None
            head = BY_PATH[wire.method].response(
                request_status=self._statuses.error(error, operation)
            )
        else:
            return RpcResponse(code=_UNIMPLEMENTED)
        message = head.SerializeToString(deterministic=True)
        return RpcResponse((message,), metadata=retry_headers(error))

    def _refused(self, error: GatewayError, wire: RpcRequest) -> Any:
        """Return an InferResponse to as much of ``wire`` as can be parsed."""
        try:
            model, version = grpc_infer.read_names(wire.message)
            number = grpc_infer.read_id(wire.message)
        except (Malformed, GatewayError):
            model, version, number = "", _LATEST, 0
        target = InferRequest(model, _version(version))
        head = pb.InferResponse(request_status=self._statuses.error(error, target))
        head.meta_data.id = number
        head.meta_data.SetInParent()
        return head

    def numbered(self, wire: RpcResponse) -> RpcResponse:
        """Return ``wire`` with the next request number. The status is appended once more: protobuf
        merges it with the first."""
        status = pb.InferResponse()
        status.request_status.request_id = self._statuses.number()
        return RpcResponse(
            (*wire.message, status.SerializeToString()), wire.code, wire.details, wire.metadata
        )

    def text_in(self, wire: RpcRequest) -> int:  # noqa: ARG002
        """Return 0: the cost is known only while the message is read."""
        return 0

    def json_in(self, wire: RpcRequest | RpcResponse, most: int) -> int:  # noqa: ARG002
        """Return 0: there is no JSON."""
        return 0

    def text_forwarded(self, wire: RpcResponse, asked: RpcRequest) -> int:  # noqa: ARG002
        """Return 0: nothing is compressed."""
        return 0

    def text_out(self, answer: Answer, parsed: Parsed) -> int:
        """Return the cost of classes and shapes, in bytes of JSON that cost as much."""
        if not isinstance(answer, InferResponse):
            return 0
        return written_text(answer.outputs, parsed.reply.outputs)

    def size_out(self, answer: InferResponse, parsed: Parsed) -> tuple[int, int]:
        """Return the bounds: headers are short, and tensors are not copied."""
        return 0, self.text_out(answer, parsed)

    def text_to_backend(self, operation: InferRequest, profile: Profile) -> int:
        """Return the cost of shapes, in bytes of JSON that cost as much."""
        del profile
        return written_text(operation.inputs, ())

    def size_to_backend(self, operation: InferRequest, profile: Profile) -> int:
        """Return the same as ``backend_text_bytes``."""
        return self.text_to_backend(operation, profile)

    # ---- towards backends

    def build_request(
        self, operation: Operation, profile: Profile, model: ModelMetadata | None = None
    ) -> RpcRequest:
        """Build the request to a backend. Raises UNSUPPORTED for operations that the API lacks."""
        del profile
        return grpc_backend.build_request(operation, model)

    def parse_response(
        self,
        wire: RpcResponse,
        operation: Operation,
        limits: Limits,
        model: ModelMetadata | None = None,
    ) -> Answer:
        """Parse a backend's response. Raises the backend's error, or BACKEND_GARBAGE."""
        try:
            return grpc_backend.parse_response(wire, operation, limits, model)
        except GatewayError as error:
            return unknown_is_not_ready(error, operation)

    # ---- pass-through

    def shield(self, wire: RpcRequest, limits: Limits) -> RpcRequest | Unfinished[RpcRequest]:
        """Validate an inference; any other request is only parsed."""
        if wire.method not in _INFERENCES:
            self.parse_request(wire, limits)
            return wire
        try:
            target = _asked(*grpc_infer.read_names(wire.message))
            return grpc_forwarding.check(wire, target, self._checked, self._options.level, limits)
        except Malformed as error:
            raise _Unreadable(str(error)) from None

    def sequence(self, wire: RpcRequest, limits: Limits) -> SequenceId | None:
        """Return the correlation id."""
        try:
            return grpc_forwarding.sequence(wire, limits)
        except Malformed as error:
            raise _Unreadable(str(error)) from None

    def readdress(
        self, wire: RpcRequest, model: str, version: str, profile: Profile
    ) -> RpcRequest | None:
        """Return the request for the backend; None if server releases interpret the message
        differently."""
        del profile
        try:
            return grpc_forwarding.readdress(wire, model, version)
        except Malformed as error:
            raise _Unreadable(str(error)) from None

    def relabel(
        self, wire: RpcResponse, asked: RpcRequest, model: str, version: str, limits: Limits
    ) -> RpcResponse:
        """Return the response for the client. Raises the backend's error, or BACKEND_GARBAGE."""
        success = self._statuses.success
        return grpc_forwarding.relabel(wire, asked, model, version, limits, success)


def _asked(model: str, version: int) -> InferRequest:
    """Return the requested model and version. Raises NOT_FOUND for a version that cannot exist. The
    servers treat 0, the value of an unset field, as such a version."""
    if version < 1 and version != _LATEST:
        raise GatewayError(
            Kind.NOT_FOUND,
            f"model '{model[:_SHOWN]}' has no version {version}; use -1 for the latest",
        )
    return InferRequest(model, _version(version))


def _version(number: int) -> str:
    return "" if number == _LATEST else str(number)


def _other(wire: RpcRequest) -> tuple[Operation, Method]:
    method = BY_PATH.get(wire.method)
    if method is None:
        raise GatewayError(Kind.UNSUPPORTED, f"method {wire.method} is not supported")
    if size(wire.message) > _MOST_ASKED:
        raise GatewayError(
            Kind.TOO_LARGE, f"the message to {wire.method} is larger than {_MOST_ASKED} bytes"
        )
    try:
        return method.read(method.request.FromString(joined(wire.message))), method
    except DecodeError as error:
        raise _Unreadable(str(error)) from None


def make(options: Mapping[str, Any]) -> TrtisGrpc:
    """Return the codec for the options ``level``, ``server_id`` and ``data_type``. Raises
    ValueError."""
    return TrtisGrpc(read_options(options))
