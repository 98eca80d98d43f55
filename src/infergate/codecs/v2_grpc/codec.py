"""The V2 gRPC codec: RpcRequest and RpcResponse ⇄ canonical operations and responses.

Tensors are memory views of the message on the way in, and message parts on the way out
(`codecs.protos.scan`). Passing a message through changes names only: model name and version are cut
out of the message and put in front of it; everything else stays unchanged.

Sources: seed specifications of the V2 protocol and the Open Inference Protocol over gRPC; the
servers' deviations are listed in docs/fidelity-v2.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from infergate.codecs.base import Capabilities, Parsed, Peek, Profile
from infergate.codecs.protos.parsing import loop_bound, parse
from infergate.codecs.protos.scan import (
    DELIMITED,
    MAX_NAME,
    TOLD_ON_LOOP,
    Malformed,
    fields,
    string_field,
    strings,
    without,
)
from infergate.codecs.protos.statuses import raise_status
from infergate.codecs.v2_grpc import errors, repository, streams
from infergate.codecs.v2_grpc.descriptions import MOST_FIELDS, MOST_HEAD, most_fields
from infergate.codecs.v2_grpc.infer_request import (
    asks_for_classes,
    read_request,
    read_sequence,
    shield_request,
    write_request,
)
from infergate.codecs.v2_grpc.infer_response import (
    RAW,
    read_response,
    write_raw,
    write_typed_where_possible,
)
from infergate.codecs.v2_grpc.known import (
    Answers,
    Requests,
    Responses,
)
from infergate.codecs.v2_grpc.methods import BY_PATH, HEALTH, INFER, OPERATIONS, STREAM, method_of
from infergate.codecs.v2_grpc.tensors import explain, typed_cost
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, bad_request, garbage
from infergate.core.limits import DEFAULT_LIMITS, KIB, MIB, Limits
from infergate.core.messages import (
    Answer,
    InferRequest,
    InferResponse,
    ModelIndexRequest,
    ModelMetadata,
    ModelStatisticsRequest,
    Operation,
    ServerReadyRequest,
)
from infergate.core.sequences import SequenceId
from infergate.core.tensor import Buffer
from infergate.core.wire import RpcRequest, RpcResponse, joined, size

# Fields 1, 2 and 3 of both ModelInfer messages; 1 and 2 also of requests about a model.
_MODEL: Final = 1
_VERSION: Final = 2
_ID: Final = 3
# ModelInferResponse.outputs
_OUTPUTS: Final = 5
_MOST_ASKED: Final = 64 * KIB
"""Bytes of a request other than an inference, which holds a name and a version."""
_MOST_ASKED_FIELDS: Final = 24 * KIB
"""Fields of such a request, and of a response about one model."""
_MOST_FILES: Final = 4096
MOST_ANSWER: Final = 8 * MIB
"""Bytes of a backend's response other than to an inference. The description of one model takes 1 to
4 KiB."""
MOST_ANSWER_FIELDS: Final = 131072
"""Fields of a response about all models; the description of each has up to 100."""
_ABOUT_ALL: Final = frozenset({ModelIndexRequest, ModelStatisticsRequest})
_NAMES: Final = frozenset({_MODEL, _VERSION, _ID})
_WRITERS: Final[dict[str, Callable[[InferResponse], Sequence[Buffer]]]] = {
    "raw": write_raw,
    "typed": write_typed_where_possible,
}


class _SharedRequest(RpcRequest):
    """A validated request that has tensors in shared memory."""


class V2Grpc:
    """The codec. `contents` ("raw" or "typed") is the form of tensors in responses to clients,
    `stream` ("triton" or "plain") that of stream messages to clients."""

    name: str = "v2-grpc"
    caps: Capabilities = Capabilities(datatypes=frozenset(Datatype), streaming=True)
    profiled: bool = False
    described: bool = False
    streams: frozenset[str] = frozenset()
    stream: str = STREAM

    def __init__(self, contents: str = "raw", stream: str = "triton") -> None:
        if contents not in _WRITERS:
            raise ValueError(f"contents is {contents!r}, not one of {sorted(_WRITERS)}")
        if stream not in ("triton", "plain"):
            raise ValueError(f"stream is {stream!r}, neither 'triton' nor 'plain'")
        self._options: Final = (contents, stream)
        self._plain: Final = stream == "plain"
        self._write_response: Final = _WRITERS[contents]
        # A response that passes through keeps the form that the backend chose.
        self.forwards: bool = contents == "raw"
        self._requests: Final = Requests()
        self._responses: Final = Responses()
        self._answers: Final = Answers()

    def __reduce__(self) -> tuple[Any, ...]:
        return V2Grpc, self._options  # without the caches

    # ---- towards clients

    def peek(self, wire: RpcRequest) -> Peek:
        """Read operation and names from the top-level fields alone."""
        operation = _operation(wire)
        if operation is InferRequest:
            split = self._requests.find(wire)
            if split and split.head:
                return split.head.peek
            names = _strings(joined(wire.message), frozenset({_MODEL, _VERSION}), MAX_NAME)
            if not names.get(_MODEL):
                raise bad_request("model_name is missing")
            return Peek(operation, names[_MODEL], names.get(_VERSION, ""))
        if BY_PATH[wire.method].holds_files:
            return Peek(operation, _named(joined(wire.message)))
        parsed_operation = self.parse_request(wire, DEFAULT_LIMITS).operation
        return Peek(
            operation,
            getattr(parsed_operation, "model", ""),
            getattr(parsed_operation, "version", ""),
        )

    def parse_request(self, wire: RpcRequest, limits: Limits) -> Parsed:
        """Parse any request. Raises UNSUPPORTED for an unknown method, BAD_REQUEST for an invalid
        message."""
        if _operation(wire) is InferRequest:
            request = self._read(wire, limits)
            return streams.parsed(request)
        method = BY_PATH[wire.method]
        max_bytes = limits.body if method.holds_files else _MOST_ASKED
        if size(wire.message) > max_bytes:
            raise GatewayError(
                Kind.TOO_LARGE, f"the message to {wire.method} is over {max_bytes} bytes"
            )
        if method.holds_files:
            _named(joined(wire.message))
        try:
            message = parse(method.request, joined(wire.message), _MOST_ASKED_FIELDS, max_bytes)
        except Malformed as error:
            raise bad_request(f"the message to {wire.method} cannot be read: {error}") from None
        return Parsed(method.read_request(message), method.reply(message))

    def _read(self, wire: RpcRequest, limits: Limits) -> InferRequest:
        split = self._requests.find(wire)
        head = split and split.passes(limits)
        if split and head:
            return split.read(head)
        validated = read_request(wire.message, limits)
        self._requests.keep(split, validated, limits)
        return validated.request

    def build_response(self, answer: Answer, parsed: Parsed) -> RpcResponse:
        """Build the response, with raw or typed tensors according to the codec's options."""
        operation = type(parsed.operation)
        try:
            if operation is InferRequest and isinstance(answer, InferResponse):
                return RpcResponse(self._write_response(answer))
            method = method_of(parsed.operation)
            if method is None or not isinstance(answer, method.answer):
                raise GatewayError(
                    Kind.UNSUPPORTED,
                    f"V2 gRPC cannot answer {operation.__name__} with {type(answer).__name__}",
                )
            message = parsed.reply or method.write_response(answer)
            return RpcResponse((message.SerializeToString(deterministic=True),))
        except ValueError as error:
            raise GatewayError(Kind.UNSUPPORTED, f"V2 gRPC: {explain(error)}") from None

    def build_error(self, error: GatewayError, wire: RpcRequest | None = None) -> RpcResponse:
        """Build the status for `error`, the same for every method."""
        del wire
        return errors.build_error(error)

    # ---- towards backends

    def build_request(
        self, operation: Operation, profile: Profile, model: ModelMetadata | None = None
    ) -> RpcRequest:
        """Build a request. Tensors are always raw, which every server accepts."""
        del model
        try:
            if isinstance(operation, InferRequest):
                return RpcRequest(INFER, write_request(operation))
            method = method_of(operation)
            if method is None:
                raise GatewayError(
                    Kind.UNSUPPORTED, f"V2 gRPC has no method for {type(operation).__name__}"
                )
            if method.profiled:
                message = method.write_request(operation, profile)
            else:
                message = method.write_request(operation)
            return RpcRequest(method.path, (message.SerializeToString(deterministic=True),))
        except ValueError as error:
            raise bad_request(f"V2 gRPC: {explain(error)}") from None

    def rephrase(self, operation: Operation, told: Kind) -> RpcRequest | None:
        """Ask the gRPC health service instead if a server does not implement ServerReady."""
        use_health_service = isinstance(operation, ServerReadyRequest) and told is Kind.UNSUPPORTED
        return RpcRequest(HEALTH, (b"",)) if use_health_service else None

    def parse_response(
        self,
        wire: RpcResponse,
        operation: Operation,
        limits: Limits,
        model: ModelMetadata | None = None,
    ) -> Answer:
        """Parse a backend's response. Raises the backend's error, or BACKEND_GARBAGE."""
        del model
        if wire.code:
            raise_status(wire)
        if isinstance(operation, InferRequest):
            return self._responses.read(wire.message, limits, operation)
        method = method_of(operation)
        assert method is not None  # build_request has checked it
        try:
            max_fields = (
                MOST_ANSWER_FIELDS if method.operation in _ABOUT_ALL else _MOST_ASKED_FIELDS
            )
            max_on_loop = loop_bound(limits, TOLD_ON_LOOP)
            message = parse(
                method.response, joined(wire.message), max_fields, MOST_ANSWER, max_on_loop
            )
            return method.read_response(message)
        except Malformed as error:
            raise garbage(
                f"the backend's answer to {method.path} cannot be read", str(error)
            ) from None

    # ---- streams

    def build_stream_response(self, answer: InferResponse, parsed: Parsed) -> RpcResponse:
        """Build one response of a stream, with tensors as in `build_response`."""
        if self._plain:
            return self.build_response(answer, parsed)
        return streams.wrapped(self.build_response(streams.marked(answer), parsed))

    def build_stream_end(self, parsed: Parsed) -> RpcResponse | None:
        """Build Triton's empty final response if the request asks for one."""
        return None if self._plain else streams.build_end(parsed)

    def build_stream_error(self, error: GatewayError, wire: RpcRequest) -> RpcResponse:
        """Build an error as a message of the stream; or as a status, which ends the stream, in the
        plain form and if the client's metadata asks for it."""
        if self._plain or streams.wants_status(wire):
            return errors.build_error(error)
        return streams.build_error(error, wire)

    def describes_streams(self, profile: Profile) -> bool:
        """Return whether the metadata tells if a model is decoupled, as Triton's does."""
        return profile.tells_decoupled

    def build_stream_request(
        self, operation: InferRequest, profile: Profile, model: ModelMetadata | None = None
    ) -> RpcRequest | None:
        """Build a streaming request with the same message as a unary one; return None if a unary
        inference is sufficient."""
        if profile.tells_decoupled and model is not None and model.decoupled is False:
            return None
        return RpcRequest(STREAM, self.build_request(operation, profile).message)

    def parse_stream_response(
        self,
        wire: RpcResponse,
        operation: InferRequest,
        limits: Limits,
        model: ModelMetadata | None = None,
    ) -> InferResponse | None:
        """Parse a stream message of either form; the fields tell the forms apart."""
        del model
        if wire.code:
            raise_status(wire)
        if not wire.message:  # metadata alone
            return None
        return streams.read_response(joined(wire.message), limits, operation)

    # ---- the same protocol on both sides

    def shield(self, wire: RpcRequest, limits: Limits) -> RpcRequest:
        """Check everything that `parse_request` checks. Return the same object, unless empty typed
        contents beside raw ones had to be removed."""
        if _operation(wire) is not InferRequest:
            self.parse_request(wire, limits)
            return wire
        split = self._requests.find(wire)
        if split and split.passes(limits):
            return wire
        validated = read_request(wire.message, limits)
        self._requests.keep(split, validated, limits)
        message, uses_shared_memory = shield_request(wire.message, validated)
        if uses_shared_memory:
            return _SharedRequest(wire.method, message, wire.metadata)
        if message is wire.message:
            return wire
        return RpcRequest(wire.method, message, wire.metadata)

    def sequence(self, wire: RpcRequest, limits: Limits) -> SequenceId | None:
        """Read the sequence id from the request's own parameters."""
        split = self._requests.find(wire)
        if split and split.head and split.head.limits is limits:
            return split.head.sequence
        try:
            return read_sequence(joined(wire.message), limits)
        except Malformed as error:
            raise bad_request(f"the ModelInferRequest cannot be read: {error}") from None

    def readdress(
        self, wire: RpcRequest, model: str, version: str, profile: Profile
    ) -> RpcRequest | None:
        """Replace model and version. The metadata is left out, because the gateway decides what
        goes upstream.

        Return None if classes are requested and the server is not known to return them, or if
        tensors are in shared memory, so that the gateway compares their regions.
        """
        if isinstance(wire, _SharedRequest):
            return None
        split = self._requests.find(wire)
        if split and split.head:
            if split.head.classes and not profile.classifies:
                return None
            return RpcRequest(wire.method, split.renamed(split.head.names, model, version))
        message = joined(wire.message)
        try:
            if not profile.classifies and asks_for_classes(message):
                return None
            rest = without(message, frozenset({_MODEL, _VERSION}), MOST_FIELDS)
        except Malformed as error:
            raise bad_request(f"the ModelInferRequest cannot be read: {error}") from None
        return RpcRequest(wire.method, [_told({_MODEL: model, _VERSION: version}), *rest])

    def relabel(
        self, wire: RpcResponse, asked: RpcRequest, model: str, version: str, limits: Limits
    ) -> RpcResponse:
        """Return the response unchanged but for names that differ, an id that is not the client's,
        and typed contents, which become raw (see `infer_response`)."""
        if wire.code:
            raise_status(wire)
        # "If specified, this identifier must be returned"; MLServer invents one if there was none.
        request = self._requests.find(asked)
        if request is not None:
            request_id = request.apart.id
        else:
            request_id = _strings(joined(asked.message), frozenset({_ID}), MOST_HEAD).get(_ID, "")
        split = self._answers.find(wire.message, limits)
        if split is not None:
            return RpcResponse(split.renamed(model, version, request_id))
        message = joined(wire.message)
        try:
            if _may_be_typed(message, limits):
                wire = RpcResponse(write_raw(read_response(wire.message, limits)))
                message = joined(wire.message)
            names = strings(message, _NAMES, most_fields(limits), MOST_HEAD)
            wanted = {
                request_id: text
                for request_id, text in ((_MODEL, model), (_VERSION, version))
                if text
            }
            wanted[_ID] = request_id
            changed = {n: text for n, text in wanted.items() if text != names.get(n, "")}
            if not changed:
                return RpcResponse(wire.message)
            rest = without(message, frozenset(changed), most_fields(limits))
        except Malformed as error:
            raise garbage("the backend's ModelInferResponse cannot be read", str(error)) from None
        return RpcResponse([_told(changed), *rest])


class _TypedV2Grpc(V2Grpc):
    """The codec of a listener with typed responses, whose elements are written one by one. It
    implements `SupportsLongText`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _TypedV2Grpc, self._options

    def json_in(self, wire: RpcRequest | RpcResponse, most: int) -> int:  # noqa: ARG002
        """Return 0: messages hold no JSON."""
        return 0

    def text_in(self, wire: RpcRequest) -> int:  # noqa: ARG002
        """Return 0: the size is known only after reading the message."""
        return 0

    def text_forwarded(self, wire: RpcResponse, asked: RpcRequest) -> int:  # noqa: ARG002
        """Return 0: nothing is compressed."""
        return 0

    def text_out(self, answer: Answer, parsed: Parsed) -> int:  # noqa: ARG002
        """Return the cost of writing the outputs, in bytes of JSON."""
        return typed_cost(answer.outputs) if isinstance(answer, InferResponse) else 0

    def size_out(self, answer: InferResponse, parsed: Parsed) -> tuple[int, int]:
        """Return the bounds of the size; an integer takes up to 10 bytes."""
        return 0, 10 * self.text_out(answer, parsed)

    def text_to_backend(self, operation: InferRequest, profile: Profile) -> int:  # noqa: ARG002
        """Return 0: requests are raw."""
        return 0

    def size_to_backend(self, operation: InferRequest, profile: Profile) -> int:  # noqa: ARG002
        """Return 0: requests are raw."""
        return 0


def _operation(wire: RpcRequest) -> type[Operation]:
    operation = OPERATIONS.get(wire.method)
    if operation is None:
        raise GatewayError(Kind.UNSUPPORTED, f"method {wire.method} is not served")
    return operation


def _strings(message: Buffer, numbers: frozenset[int], longest: int) -> dict[int, str]:
    try:
        return strings(message, numbers, MOST_FIELDS, longest)
    except Malformed as error:
        raise bad_request(f"the ModelInferRequest cannot be read: {error}") from None


def _named(message: Buffer) -> str:
    """Read the model name from a message that may hold up to `_MAX_FILES` files. The message is not
    parsed: the protobuf runtime takes up to twenty times the size of small files."""
    try:
        return repository.read_name(message, _MOST_FILES)
    except Malformed as error:
        raise bad_request(f"the message to load a model cannot be read: {error}") from None


def _told(names: Mapping[int, str]) -> bytes:
    return b"".join(string_field(number, text) for number, text in names.items() if text)


def _may_be_typed(message: Buffer, limits: Limits) -> bool:
    """Return whether the message has outputs but no raw entries, so that their elements, if any,
    are typed."""
    numbers = {f.number for f in fields(message, most_fields(limits)) if f.wire_type == DELIMITED}
    return _OUTPUTS in numbers and RAW not in numbers


def make(options: Mapping[str, Any]) -> V2Grpc:
    """Create the codec with `contents` and `stream` from `options`. Raises ValueError."""
    contents = options.get("contents", "raw")
    codec = _TypedV2Grpc if contents == "typed" else V2Grpc
    return codec(contents, options.get("stream", "triton"))
