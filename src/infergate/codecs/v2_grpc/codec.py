"""The V2 gRPC codec: RpcRequest and RpcResponse ⇄ canonical operations and answers.

*Strategy.* Tensors are memoryviews of the message on the way in and message parts on the way out
(see ``scan``). Forwarding touches names only: the model's name and version are cut out of the
message and put before it, everything else goes on as it stands.

Sources: seed specifications of the V2 protocol and the Open Inference Protocol over gRPC; how the
servers deviate is in docs/fidelity-v2.md.
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
"""A request other than an inference: it holds a name and a version."""
_MOST_ASKED_FIELDS: Final = 24 * KIB
"""Fields of such a request, and of an answer about one model."""
_MOST_FILES: Final = 4096
MOST_ANSWER: Final = 8 * MIB
"""A backend's answer other than to an inference: what it tells of a model takes 1 to 4 KiB."""
MOST_ANSWER_FIELDS: Final = 131072
"""Fields of an answer about all models: what it tells of each has up to 100."""
_ABOUT_ALL: Final = frozenset({ModelIndexRequest, ModelStatisticsRequest})
_NAMES: Final = frozenset({_MODEL, _VERSION, _ID})
_WRITERS: Final[dict[str, Callable[[InferResponse], Sequence[Buffer]]]] = {
    "raw": write_raw,
    "typed": write_typed_where_possible,
}


class _SharedRequest(RpcRequest):
    """A request that passed, some of whose tensors are in shared memory."""


class V2Grpc:
    """The codec. ``contents`` ("raw" or "typed") is how clients are given tensors, ``stream``
    ("triton" or "plain") whose form of a stream's messages they are given."""

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
        # A forwarded answer keeps the form the backend chose.
        self.forwards: bool = contents == "raw"
        self._requests: Final = Requests()
        self._responses: Final = Responses()
        self._answers: Final = Answers()

    def __reduce__(self) -> tuple[Any, ...]:
        return V2Grpc, self._options  # what is remembered stays here

    # ---- towards clients

    def peek(self, wire: RpcRequest) -> Peek:
        """Operation and names, from the top-level fields alone."""
        operation = _operation(wire)
        if operation is InferRequest:
            known = self._requests.find(wire)
            if known and known.head:
                return known.head.peek
            names = _strings(joined(wire.message), frozenset({_MODEL, _VERSION}), MAX_NAME)
            if not names.get(_MODEL):
                raise bad_request("model_name is missing")
            return Peek(operation, names[_MODEL], names.get(_VERSION, ""))
        if BY_PATH[wire.method].holds_files:
            return Peek(operation, _named(joined(wire.message)))
        asked = self.parse_request(wire, DEFAULT_LIMITS).operation
        return Peek(operation, getattr(asked, "model", ""), getattr(asked, "version", ""))

    def parse_request(self, wire: RpcRequest, limits: Limits) -> Parsed:
        """Raises UNSUPPORTED for a method the service lacks, BAD_REQUEST for a bad message."""
        if _operation(wire) is InferRequest:
            request = self._read(wire, limits)
            return streams.parsed(request)
        method = BY_PATH[wire.method]
        most = limits.body if method.holds_files else _MOST_ASKED
        if size(wire.message) > most:
            raise GatewayError(Kind.TOO_LARGE, f"the message to {wire.method} is over {most} bytes")
        if method.holds_files:
            _named(joined(wire.message))
        try:
            message = parse(method.request, joined(wire.message), _MOST_ASKED_FIELDS, most)
        except Malformed as error:
            raise bad_request(f"the message to {wire.method} cannot be read: {error}") from None
        return Parsed(method.read_request(message), method.reply(message))

    def _read(self, wire: RpcRequest, limits: Limits) -> InferRequest:
        asked = self._requests.find(wire)
        head = asked and asked.passes(limits)
        if asked and head:
            return asked.read(head)
        checked = read_request(wire.message, limits)
        self._requests.keep(asked, checked, limits)
        return checked.request

    def build_response(self, answer: Answer, parsed: Parsed) -> RpcResponse:
        """Tensors raw or typed as the codec was made."""
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
        """A status, the same for every method."""
        del wire
        return errors.build_error(error)

    # ---- towards backends

    def build_request(
        self, operation: Operation, profile: Profile, model: ModelMetadata | None = None
    ) -> RpcRequest:
        """Tensors always raw: every server takes that."""
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
        """The health service of gRPC itself, where the protocol's question is not implemented."""
        asks = isinstance(operation, ServerReadyRequest) and told is Kind.UNSUPPORTED
        return RpcRequest(HEALTH, (b"",)) if asks else None

    def parse_response(
        self,
        wire: RpcResponse,
        operation: Operation,
        limits: Limits,
        model: ModelMetadata | None = None,
    ) -> Answer:
        """Raises the backend's status, or BACKEND_GARBAGE."""
        del model
        if wire.code:
            raise_status(wire)
        if isinstance(operation, InferRequest):
            return self._responses.read(wire.message, limits, operation)
        method = method_of(operation)
        assert method is not None  # build_request found it
        try:
            most = MOST_ANSWER_FIELDS if method.operation in _ABOUT_ALL else _MOST_ASKED_FIELDS
            here = loop_bound(limits, TOLD_ON_LOOP)
            message = parse(method.response, joined(wire.message), most, MOST_ANSWER, here)
            return method.read_response(message)
        except Malformed as error:
            raise garbage(
                f"the backend's answer to {method.path} cannot be read", str(error)
            ) from None

    # ---- streams

    def build_stream_response(self, answer: InferResponse, parsed: Parsed) -> RpcResponse:
        """Tensors as ``build_response`` writes them."""
        if self._plain:
            return self.build_response(answer, parsed)
        return streams.wrapped(self.build_response(streams.marked(answer), parsed))

    def build_stream_end(self, parsed: Parsed) -> RpcResponse | None:
        """Triton's empty final response, where the request asks for it."""
        return None if self._plain else streams.build_end(parsed)

    def build_stream_error(self, error: GatewayError, wire: RpcRequest) -> RpcResponse:
        """In the stream; as a status, which ends it, in the plain form and where the client's
        metadata wants that."""
        if self._plain or streams.wants_status(wire):
            return errors.build_error(error)
        return streams.build_error(error, wire)

    def describes_streams(self, profile: Profile) -> bool:
        """Triton's configuration tells whether a model is decoupled."""
        return profile.tells_decoupled

    def build_stream_request(
        self, operation: InferRequest, profile: Profile, model: ModelMetadata | None = None
    ) -> RpcRequest | None:
        """The same message as that of a unary inference; None where that does as well."""
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
        """Of either form: they are told apart by their fields."""
        del model
        if wire.code:
            raise_status(wire)
        if not wire.message:  # metadata alone
            return None
        return streams.read_response(joined(wire.message), limits, operation)

    # ---- the same protocol on both sides

    def shield(self, wire: RpcRequest, limits: Limits) -> RpcRequest:
        """Everything ``parse_request`` checks. The same object, but where empty typed contents
        beside raw ones had to go."""
        if _operation(wire) is not InferRequest:
            self.parse_request(wire, limits)
            return wire
        asked = self._requests.find(wire)
        if asked and asked.passes(limits):
            return wire
        checked = read_request(wire.message, limits)
        self._requests.keep(asked, checked, limits)
        message, shared = shield_request(wire.message, checked)
        if shared:
            return _SharedRequest(wire.method, message, wire.metadata)
        if message is wire.message:
            return wire
        return RpcRequest(wire.method, message, wire.metadata)

    def sequence(self, wire: RpcRequest, limits: Limits) -> SequenceId | None:
        """From the request's own parameters alone."""
        asked = self._requests.find(wire)
        if asked and asked.head and asked.head.limits is limits:
            return asked.head.sequence
        try:
            return read_sequence(joined(wire.message), limits)
        except Malformed as error:
            raise bad_request(f"the ModelInferRequest cannot be read: {error}") from None

    def readdress(
        self, wire: RpcRequest, model: str, version: str, profile: Profile
    ) -> RpcRequest | None:
        """The metadata stays behind: what goes upstream is for the gateway to add. None where
        classes are asked for and the server is not known to give them, or tensors lie in shared
        memory: the gateway compares their places with the regions."""
        if isinstance(wire, _SharedRequest):
            return None
        asked = self._requests.find(wire)
        if asked and asked.head:
            if asked.head.classes and not profile.classifies:
                return None
            return RpcRequest(wire.method, asked.renamed(asked.head.names, model, version))
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
        """The bytes as they came, but for names that differ, an id that is not the client's, and
        typed contents, which are turned raw (Rule 1 of ``infer_response``)."""
        if wire.code:
            raise_status(wire)
        # "If specified, this identifier must be returned"; MLServer invents one where none was.
        request = self._requests.find(asked)
        if request is not None:
            number = request.apart.id
        else:
            number = _strings(joined(asked.message), frozenset({_ID}), MOST_HEAD).get(_ID, "")
        told = self._answers.find(wire.message, limits)
        if told is not None:
            return RpcResponse(told.renamed(model, version, number))
        message = joined(wire.message)
        try:
            if _may_be_typed(message, limits):
                wire = RpcResponse(write_raw(read_response(wire.message, limits)))
                message = joined(wire.message)
            names = strings(message, _NAMES, most_fields(limits), MOST_HEAD)
            wanted = {
                number: text for number, text in ((_MODEL, model), (_VERSION, version)) if text
            }
            wanted[_ID] = number
            changed = {n: text for n, text in wanted.items() if text != names.get(n, "")}
            if not changed:
                return RpcResponse(wire.message)
            rest = without(message, frozenset(changed), most_fields(limits))
        except Malformed as error:
            raise garbage("the backend's ModelInferResponse cannot be read", str(error)) from None
        return RpcResponse([_told(changed), *rest])


class _TypedV2Grpc(V2Grpc):
    """The codec of a listener that gives typed contents, which are written in a loop. It is
    Textual."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _TypedV2Grpc, self._options

    def json_in(self, wire: RpcRequest | RpcResponse, most: int) -> int:  # noqa: ARG002
        """There is none."""
        return 0

    def text_in(self, wire: RpcRequest) -> int:  # noqa: ARG002 - reading the message tells
        """Nothing is known beforehand."""
        return 0

    def text_forwarded(self, wire: RpcResponse, asked: RpcRequest) -> int:  # noqa: ARG002
        """Nothing is compressed."""
        return 0

    def text_out(self, answer: Answer, parsed: Parsed) -> int:  # noqa: ARG002
        """Elements of outputs, in the units of JSON's bytes."""
        return typed_cost(answer.outputs) if isinstance(answer, InferResponse) else 0

    def size_out(self, answer: InferResponse, parsed: Parsed) -> tuple[int, int]:
        """An integer takes up to 10 bytes."""
        return 0, 10 * self.text_out(answer, parsed)

    def text_to_backend(self, operation: InferRequest, profile: Profile) -> int:  # noqa: ARG002
        """Requests are raw."""
        return 0

    def size_to_backend(self, operation: InferRequest, profile: Profile) -> int:  # noqa: ARG002
        """Requests are raw."""
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
    """The model in a message that may hold files, of which there may be so many. The protobuf
    runtime makes up to twenty times its size of small ones."""
    try:
        return repository.read_name(message, _MOST_FILES)
    except Malformed as error:
        raise bad_request(f"the message to load a model cannot be read: {error}") from None


def _told(names: Mapping[int, str]) -> bytes:
    return b"".join(string_field(number, text) for number, text in names.items() if text)


def _may_be_typed(message: Buffer, limits: Limits) -> bool:
    """Outputs and no raw entry: their elements, if there are any, are typed."""
    numbers = {f.number for f in fields(message, most_fields(limits)) if f.wire_type == DELIMITED}
    return _OUTPUTS in numbers and RAW not in numbers


def make(options: Mapping[str, Any]) -> V2Grpc:
    """The codec with ``contents`` and ``stream`` from ``options``. Raises ValueError."""
    contents = options.get("contents", "raw")
    codec = _TypedV2Grpc if contents == "typed" else V2Grpc
    return codec(contents, options.get("stream", "triton"))
