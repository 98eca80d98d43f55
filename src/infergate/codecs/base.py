"""The contract of a codec, which translates one protocol between its wire messages and canonical
operations, towards clients and towards backends.

Codecs are pure: no I/O, no clock, no logging, no asyncio. A frontend calls ``summarize``,
``parse_request``, ``build_response`` and ``build_error``; a backend calls ``build_request`` and
``parse_response``. If client and backend speak the same protocol and the route renames no tensor,
the gateway calls ``validate``, ``rewrite_request`` and ``rewrite_response`` of a
:class:`SupportsPassThrough` codec instead, and no tensor is decoded; if the backend has several
endpoints, it also calls ``sequence_of``.

*Rule 1.* Any bytes parse or raise :class:`GatewayError`; no other exception escapes.
*Rule 2.* The result of ``parse_request`` obeys Rule 1 of ``core.tensor``; ``validate`` rejects
exactly the requests that ``parse_request`` rejects.
*Rule 3.* A codec never knows which backend or route a request takes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, Operation, Response
from infergate.core.records import record
from infergate.core.sequences import SequenceId

Req = TypeVar("Req")
Resp = TypeVar("Resp")
Req_co = TypeVar("Req_co", covariant=True)
Req_contra = TypeVar("Req_contra", contravariant=True)
T = TypeVar("T")


class OutputsNeedTranslationError(GatewayError):
    """The server cannot return outputs in the form that a passed-through request asked for, but can
    return them in the form that ``build_request`` asks for."""


class TransportKind(enum.Enum):
    """The transport that carries a protocol's messages."""

    HTTP = "http"
    GRPC = "grpc"


@record
class RequestSummary:
    """A short description of a request, read without touching its tensors.

    ``operation`` is the class of the operation (``InferRequest``, ``ServerLiveRequest``, …).
    """

    operation: type[Operation]
    model: str = ""
    version: str = ""
    can_pass_through: bool = True
    """Whether the message may be passed through to a server of the same protocol. False for forms
    of a request that few servers understand."""


@record
class ParsedRequest:
    """An operation, and the codec's private notes on the response format that the client
    requested."""

    operation: Operation
    response_options: Any = None
    wants_stream: bool = False
    """For an inference over HTTP: the client wants all responses, one after the other in one
    body."""
    single_response_error: str = ""
    """For an inference that must have exactly one response although its model may return any
    number: the error text if it does not. Empty for all other inferences."""


@record
class PartialInferRequest(Generic[T]):
    """An inference that omits tensor names, datatypes or shapes, which the model's metadata
    supplies.

    ``complete`` returns either a :class:`ParsedRequest` or the validated request of a
    :class:`SupportsPassThrough` codec. It is pure and raises the client's errors. It may be called
    again with newer metadata. The metadata uses the client's names.
    """

    model: str
    version: str
    complete: Callable[[ModelMetadata], T]
    text_bytes: int = 0
    """Bytes of text that ``complete`` parses. A request with much text is pickled and completed by
    a helper process."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Facts about a kind of server that its protocol's specification leaves open."""

    name: str
    supports_binary: bool = False
    """V2 REST: accepts and returns tensors in the binary extension."""
    accepts_versions: bool = True
    """Accepts a model version (KServe rejects any version over REST)."""
    has_model_list: bool = False
    """V2 REST: lists its models at ``GET /v2/models``; it has no repository index."""
    supports_classification: bool = False
    """V2: returns classes for an output that has the parameter ``classification``."""
    reports_config: bool = False
    """V2: reports a model's configuration, including its maximum batch size."""
    reports_statistics: bool = False
    """V2: reports a model's statistics."""
    has_trace_settings: bool = False
    """V2: has trace settings."""
    has_log_settings: bool = False
    """V2: has log settings."""
    loads_by_name: bool = False
    """V2: loads a model by its name alone; parameters do not exist or are ignored."""
    loads_by_field_1: bool = False
    """V2 gRPC: the name of the model to load or unload is field 1 of the request instead of field
    2."""
    has_generate_stream: bool = False
    """V2 REST: returns all responses of a decoupled model from ``generate_stream``, and only from
    it."""
    supports_content_type: bool = False
    """V2 REST: decodes BYTES that the parameter ``content_type`` marks as base64, and accepts null
    instead of a bare ``NaN``."""
    has_infer_stream: bool = False
    """V2 REST: returns all responses to an inference from ``infer_stream``."""
    reports_decoupled: bool = False
    """V2: the configuration of every model says whether the model is decoupled. A model that is not
    decoupled returns one response, which a unary inference also returns; a unary inference also has
    error codes."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The features that a protocol can carry."""

    datatypes: frozenset[Datatype]
    supports_streaming: bool = False
    """The codec implements :class:`SupportsStreaming`."""
    supports_sequences: bool = True
    """Servers of this protocol have sequences, or may have them. If false, requests that belong to
    a sequence are not sent to them."""
    supports_classification: bool = False
    """Every server of the protocol supports classification. If false, the :class:`Profile` decides.
    """
    reports_config: bool = False
    """Every server of the protocol reports a model's configuration. If false, the :class:`Profile`
    decides."""
    reports_statistics: bool = False
    """Every server of the protocol reports a model's statistics. If false, the :class:`Profile`
    decides."""


class Codec(Protocol[Req, Resp]):
    """A protocol. ``Req`` and ``Resp`` are the wire types of its :class:`TransportKind`."""

    name: str
    capabilities: Capabilities
    needs_profile: bool
    """Whether requests to a backend depend on its :class:`Profile`. If false, the profile is not
    detected, and the codec receives whatever is known, which may be ``GENERIC``."""
    needs_metadata: bool
    """Whether ``build_request`` and ``parse_response`` need the model's metadata for inferences."""
    streaming_methods: frozenset[str]
    """gRPC methods whose stream carries inferences, each answered in order by one message of the
    unary response type."""

    # ---- towards clients
    def summarize(self, wire: Req) -> RequestSummary:
        """Return operation, model and version. Raises NOT_FOUND, METHOD_NOT_ALLOWED or
        BAD_REQUEST."""
        ...

    def parse_request(
        self, wire: Req, limits: Limits
    ) -> ParsedRequest | PartialInferRequest[ParsedRequest]:
        """Parse the requested operation. Raises the client's errors."""
        ...

    def build_response(self, response: Response, parsed: ParsedRequest) -> Resp:
        """Write ``response`` as the answer to ``parsed``. Raises UNSUPPORTED if the protocol cannot
        express it."""
        ...

    def build_error(self, error: GatewayError, wire: Req | None = None) -> Resp:
        """Write ``error`` as the answer to ``wire``. Never raises."""
        ...

    # ---- towards backends
    def build_request(
        self, operation: Operation, profile: Profile, model: ModelMetadata | None = None
    ) -> Req:
        """Write ``operation`` as a new message, to which the caller may add headers.

        Raises UNSUPPORTED for operations that this protocol lacks, BAD_REQUEST for an operation
        that contradicts ``model``: the metadata, in the backend's names, which is passed for
        inferences if this codec ``needs_metadata``.
        """
        ...

    def parse_response(
        self,
        wire: Resp,
        operation: Operation,
        limits: Limits,
        model: ModelMetadata | None = None,
    ) -> Response:
        """Parse the response to ``operation``. Raises the backend's error, or BACKEND_GARBAGE.
        ``model`` is the same as for ``build_request``."""
        ...


@runtime_checkable
class SupportsPassThrough(Protocol[Req, Resp]):
    """Implemented by a codec whose messages can pass through unchanged if client and backend both
    speak its protocol."""

    can_pass_through: bool
    """Whether messages can pass through with the options of this codec."""

    def validate(self, wire: Req, limits: Limits) -> Req | PartialInferRequest[Req]:
        """Validate ``wire`` as ``parse_request`` does, without keeping the decoded tensors.

        Returns the request in a form that any server accepts (content encodings undone). A codec
        may return a subclass of ``Req`` that carries facts for ``rewrite_request`` and
        ``rewrite_response``. Returns a :class:`PartialInferRequest` if validation needs the model's
        metadata.
        """
        ...

    def sequence_of(self, wire: Req, limits: Limits) -> SequenceId | None:
        """Return the id of the sequence that ``wire``, an inference, belongs to. ``wire`` need not
        have been validated; raises the errors found while reading it."""
        ...

    def rewrite_request(self, wire: Req, model: str, version: str, profile: Profile) -> Req | None:
        """Return ``wire``, an inference, for another model and version, with its tensors untouched.

        The result is a new object, because headers are added to it; headers that concern only the
        connection with the client are dropped. Returns None if a server of ``profile`` cannot read
        the message unchanged, so that it must be translated.
        """
        ...

    def rewrite_response(
        self, wire: Resp, request: Req, model: str, version: str, limits: Limits
    ) -> Resp:
        """Return the backend's response ``wire`` as the response to ``request``, which is the
        result of ``validate`` or, if that was not called, the client's message.

        The response is named ``model`` and ``version`` (if empty: as the backend named it) and has
        the client's own id. Raises the backend's error like ``parse_response``.
        """
        ...


@runtime_checkable
class SupportsContentEncoding(Protocol[Req_contra]):
    """Implemented by a codec whose requests may be compressed."""

    def open_request(self, wire: Req_contra) -> None:
        """Undo the content encoding of ``wire`` in place if that is cheap, so that a short request
        is inflated once for its estimates and for reading. A body that inflates to much, or an
        invalid one, stays unchanged. Called once, after authorization. Never raises."""
        ...


@runtime_checkable
class SupportsLongText(Protocol[Req_contra]):
    """Implemented by a codec whose messages may hold much text, which is expensive to read and
    write.

    The codec, its arguments, and the results it builds from long text can be pickled. The estimates
    change nothing.
    """

    def request_text_bytes(self, wire: Req_contra) -> int:
        """Return the maximum number of bytes of text that reading the request ``wire`` processes,
        including everything that is inflated for it. Never raises."""
        ...

    def json_bytes(self, wire: Any, max_bytes: int) -> int:
        """Return the maximum number of bytes of JSON in the request or response ``wire``, its
        content encoding undone. JSON longer than ``max_bytes`` is rejected before it is read. Never
        raises."""
        ...

    def rewrite_bytes(self, wire: Any, request: Any) -> int:
        """Return the number of bytes that ``rewrite_response`` compresses or inflates for ``wire``,
        the response to ``request``."""
        ...

    def response_text_bytes(self, response: Response, parsed: ParsedRequest) -> int:
        """Return the bytes of tensors that ``build_response`` would write as text, or in a loop."""
        ...

    def backend_text_bytes(self, operation: InferRequest, profile: Profile) -> int:
        """Return the bytes of tensors that ``build_request`` would write as text, or in a loop."""
        ...

    def response_size(self, response: InferResponse, parsed: ParsedRequest) -> tuple[int, int]:
        """Return two bounds on the bytes that ``build_response`` would write: the minimum size of
        the body, and the maximum size of the memory that it allocates for the body."""
        ...

    def max_backend_text_bytes(self, operation: InferRequest, profile: Profile) -> int:
        """Return the maximum number of bytes of text that ``build_request`` would write."""
        ...


@runtime_checkable
class SupportsResponseNumbering(Protocol[Resp]):
    """Implemented by a codec that numbers its responses."""

    def number_response(self, wire: Resp) -> Resp:
        """Return ``wire``, an inference response that a helper process wrote, with the next number.
        Helper processes do not know how many responses there have been."""
        ...


@runtime_checkable
class SupportsServerVariants(Protocol[Req_co]):
    """Implemented by a codec that has an alternative request for servers that reject the usual
    one."""

    def build_alternative_request(self, operation: Operation, error_kind: Kind) -> Req_co | None:
        """Return another request for ``operation``, for a server that rejected the request of
        ``build_request`` with ``error_kind``; None if there is no other. ``parse_response`` reads
        its response too."""
        ...


@runtime_checkable
class SupportsStreaming(Protocol[Req, Resp]):
    """Implemented by a codec whose protocol has streams of inferences, in which each request has
    any number of responses. Requests are summarized and parsed like unary requests."""

    streaming_method: str
    """The gRPC method. Empty over HTTP, where a request asks for a stream."""

    # ---- towards clients
    def build_stream_response(self, response: InferResponse, parsed: ParsedRequest) -> Resp:
        """Write one response to ``parsed``. Raises UNSUPPORTED if the protocol cannot express
        it."""
        ...

    def build_stream_end(self, parsed: ParsedRequest) -> Resp | None:
        """Write the message that ends the responses to ``parsed``, for a client that wants one if
        no response was known to be the last. Returns None if there is no such message."""
        ...

    def build_stream_error(self, error: GatewayError, wire: Req) -> Resp:
        """Write ``error`` as the last response to ``wire``. An error with a code ends the stream.
        Never raises."""
        ...

    # ---- towards backends
    def streams_need_metadata(self, profile: Profile) -> bool:
        """Whether the methods below need the model's metadata for a server of ``profile``."""
        ...

    def build_stream_request(
        self, operation: InferRequest, profile: Profile, model: ModelMetadata | None = None
    ) -> Req | None:
        """Write ``operation`` as the only request of a stream. Returns None if a server of
        ``profile`` does not answer for ``model`` by a stream. Raises like ``build_request``."""
        ...

    def parse_stream_response(
        self,
        wire: Resp,
        operation: InferRequest,
        limits: Limits,
        model: ModelMetadata | None = None,
    ) -> InferResponse | None:
        """Parse one message of such a stream; None if it holds no response. Raises like
        ``parse_response``, and UNSUPPORTED if the server has no such stream."""
        ...


@dataclass(frozen=True, slots=True)
class CodecPlugin:
    """The object behind an entry point of the group ``infergate.codecs``, one for each protocol.

    ``claims`` are the first path segments (HTTP, ``"v2"``) or full service names (gRPC) that a
    shared listener dispatches to this codec. ``create`` builds the codec from the options of a
    listener or a backend, which the config schema has validated. A request that no codec claims is
    answered by a codec with ``is_fallback``.
    """

    name: str
    transport_kind: TransportKind
    claims: tuple[str, ...]
    create: Callable[[Mapping[str, Any]], Codec[Any, Any]]
    is_fallback: bool = False
    supports_shared_memory: bool = False
    """The protocol can register shared memory regions and refer to tensors in them."""
    supports_framing: bool = False
    """HTTP: requests and responses work without path and headers, so that size-prefixed frames can
    carry them."""
    min_header_bytes: int = 0
    """Bytes of headers that a request needs if its headers hold more than a description of the
    body. A listener for this protocol allows this many by default."""
    max_response_header_bytes: int = 0
    """HTTP: bytes of the longest response header line that the protocol's own clients accept, if
    that is more than ``Limits.response_header``."""
