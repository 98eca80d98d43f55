"""The interface of codecs. A codec translates the wire messages of one protocol to canonical
operations and back, both for clients and for backends.

Codecs use no I/O, clock, logging or asyncio. A frontend calls ``summarize``, ``parse_request``,
``build_response`` and ``build_error``; a backend calls ``build_request`` and ``parse_response``. A
message can pass through if the client and the backend speak the same protocol and the route does
not need decoded tensors, for example to rename them. The gateway then calls ``validate``,
``rewrite_request`` and ``rewrite_response`` of a :class:`SupportsPassThrough` codec instead, and
keeps no decoded tensors.

*Rule 1.* A codec parses any bytes or raises :class:`GatewayError`, or NeedsOffloadError for a long
message on the event loop; no other exception escapes.

*Rule 2.* The result of ``parse_request`` obeys Rule 1 of ``core.tensor``; ``validate`` rejects
exactly the requests that ``parse_request`` rejects. But if only ``parse_request`` needs the model's
metadata, ``validate`` leaves the comparison with the metadata to the server.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import Limits
from infergate.core.messages import (
    OPERATION_NAMES,
    InferRequest,
    InferResponse,
    ModelMetadata,
    Operation,
    Response,
)
from infergate.core.records import record
from infergate.core.sequences import SequenceId

Req = TypeVar("Req")
Resp = TypeVar("Resp")
Req_co = TypeVar("Req_co", covariant=True)
Req_contra = TypeVar("Req_contra", contravariant=True)
T = TypeVar("T")


def no_request(protocol: str, operation: Operation) -> GatewayError:
    """Return an UNSUPPORTED error for an ``operation`` that ``protocol`` does not have."""
    name = OPERATION_NAMES[type(operation)]
    return GatewayError(Kind.UNSUPPORTED, f"{protocol} has no request for {name}")


class OutputsNeedTranslationError(GatewayError):
    """The server cannot return the outputs in the format that the passed-through request selects,
    but can return them in the format that a translated request selects."""


class TransportKind(enum.Enum):
    """The transport that carries a protocol's messages."""

    HTTP = "http"
    GRPC = "grpc"


@record
class RequestSummary:
    """A short description of a request, obtained without reading the tensors."""

    operation: type[Operation]
    model: str = ""
    version: str = ""
    can_pass_through: bool = True
    """Whether the message may pass through. The value is false for requests that few servers
    support, and for clients without permission to use shared memory."""


@record
class ParsedRequest:
    """An operation, and the codec's private data about the response format that the client
    wants."""

    operation: Operation
    response_options: Any = None
    wants_stream: bool = False
    """HTTP: whether the client wants all responses to an inference in one body."""
    single_response_error: str = ""
    """The error text for an inference that must have exactly one response but has no response or
    several."""


@record
class PartialInferRequest(Generic[T]):
    """An inference without tensor names, datatypes or shapes, which the model's metadata supplies.

    ``complete`` returns either a :class:`ParsedRequest` or the validated request of a
    :class:`SupportsPassThrough` codec. ``complete`` has no side effects, raises the client's
    errors, and may be called again with newer metadata. The metadata contains the names that the
    client uses.
    """

    model: str
    version: str
    complete: Callable[[ModelMetadata], T]
    text_bytes: int = 0
    """The number of bytes of text that ``complete`` parses. A helper process parses long text."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Facts about a kind of server that the protocol's specification leaves open."""

    name: str
    supports_binary: bool = False
    """V2 REST: the server accepts and returns tensors in the format of the binary extension."""
    accepts_versions: bool = True
    """The server accepts a model version. KServe rejects every version over REST."""
    has_model_list: bool = False
    """V2 REST: the server lists its models at ``GET /v2/models`` and has no repository index."""
    supports_classification: bool = False
    """V2: the server returns classes for an output with the parameter ``classification``."""
    reports_config: bool = False
    """V2: the server reports a model's configuration, including its maximum batch size."""
    reports_statistics: bool = False
    """V2: the server reports a model's statistics."""
    has_trace_settings: bool = False
    """V2: the server has trace settings."""
    has_log_settings: bool = False
    """V2: the server has log settings."""
    loads_by_name: bool = False
    """V2: the server loads a model by its name alone. The server has no load parameters or ignores
    them."""
    loads_by_field_1: bool = False
    """V2 gRPC: the model name is field 1, not field 2, of a request to load or unload a model."""
    has_generate_stream: bool = False
    """V2 REST: only ``generate_stream`` returns all responses of a decoupled model."""
    supports_content_type: bool = False
    """V2 REST: the server decodes BYTES with the parameter ``content_type: base64``, and accepts
    null for ``NaN``."""
    has_infer_stream: bool = False
    """V2 REST: ``infer_stream`` returns all responses to an inference."""
    reports_decoupled: bool = False
    """V2: every model's configuration states whether the model is decoupled. Inferences for other
    models are sent as unary requests, because unary responses have error codes."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The features of a protocol. If ``supports_classification``, ``reports_config`` or
    ``reports_statistics`` is false, the :class:`Profile` of a server states whether the server has
    the feature."""

    datatypes: frozenset[Datatype]
    supports_streaming: bool = False
    """The codec implements :class:`SupportsStreaming`."""
    supports_sequences: bool = True
    """Whether servers may support sequences. If false, the gateway sends no requests that belong to
    a sequence."""
    supports_classification: bool = False
    """Every server returns classes for an output with the parameter ``classification``."""
    reports_config: bool = False
    """Every server reports a model's configuration."""
    reports_statistics: bool = False
    """Every server reports a model's statistics."""


class Codec(Protocol[Req, Resp]):
    """The codec of a protocol. The :class:`TransportKind` determines the wire types ``Req`` and
    ``Resp``."""

    name: str
    capabilities: Capabilities
    needs_profile: bool
    """Whether the gateway must detect the backend's :class:`Profile` before it builds a request. If
    false, a generic profile replaces an undetected one, and inferences must not depend on the
    profile."""
    needs_metadata: bool
    """Whether ``build_request`` and ``parse_response`` need the model's metadata for inferences."""
    streaming_methods: frozenset[str]
    """The gRPC methods that carry a stream of inferences. The responses are in the order of the
    inferences."""

    # ---- for clients
    def summarize(self, wire: Req) -> RequestSummary:
        """Return the operation, the model and the version. Raises the client's errors."""

    def parse_request(
        self, wire: Req, limits: Limits
    ) -> ParsedRequest | PartialInferRequest[ParsedRequest]:
        """Parse the requested operation. Raises the client's errors."""

    def build_response(self, response: Response, parsed: ParsedRequest) -> Resp:
        """Write the response to ``parsed``. Raises UNSUPPORTED if the protocol cannot express the
        response."""

    def build_error(self, error: GatewayError, wire: Req | None = None) -> Resp:
        """Write ``error`` as the response to ``wire``. Never raises."""

    # ---- for backends
    def build_request(
        self, operation: Operation, profile: Profile, model: ModelMetadata | None = None
    ) -> Req:
        """Write ``operation`` as a new message. The caller may add headers to the message.

        If this codec ``needs_metadata``, ``model`` is the metadata of an inference's model, with
        the backend's names. Raises UNSUPPORTED for an operation that the protocol does not have,
        and BAD_REQUEST for an operation that contradicts ``model``.
        """

    def parse_response(
        self, wire: Resp, operation: Operation, limits: Limits, model: ModelMetadata | None = None
    ) -> Response:
        """Parse the response to ``operation``. Raises the backend's error, or BACKEND_GARBAGE."""


@runtime_checkable
class SupportsPassThrough(Protocol[Req, Resp]):
    """Implemented by a codec whose messages can pass through unchanged."""

    can_pass_through: bool
    """Whether messages can pass through with the options of this codec."""

    def validate(self, wire: Req, limits: Limits) -> Req | PartialInferRequest[Req]:
        """Validate ``wire`` as ``parse_request`` does, without keeping the decoded tensors.

        Returns a :class:`PartialInferRequest` if the validation needs the model's metadata.
        Otherwise returns the request without content encodings and without empty fields that some
        servers reject. The result may be a subclass of ``Req`` with data for ``rewrite_request``
        and ``rewrite_response``.
        """

    def sequence_of(self, wire: Req, limits: Limits) -> SequenceId | None:
        """Return the sequence id of the inference ``wire``, which may be a message that was not
        validated. Raises an error if the message cannot be read."""

    def rewrite_request(self, wire: Req, model: str, version: str, profile: Profile) -> Req | None:
        """Rewrite the inference ``wire`` for another model and version. The tensors are unchanged.
        The result is a new object without the headers that concern only the client's connection.
        Returns None if a server of ``profile`` cannot read the message. The gateway then translates
        the message.
        """

    def rewrite_response(
        self, wire: Resp, request: Req, model: str, version: str, limits: Limits
    ) -> Resp:
        """Rewrite the backend's response ``wire`` as the response to ``request``. ``request`` is
        the result of ``validate``, or the client's message if ``validate`` was not called.

        In the result, the client's id replaces the backend's id, and ``model`` and ``version``,
        unless empty, replace the backend's model name and version. Raises the backend's error, as
        ``parse_response`` does.
        """


@runtime_checkable
class SupportsPriority(Protocol[Req_contra]):
    """Implemented by a codec whose messages can pass through and contain a priority."""

    def priority_of(self, wire: Req_contra) -> int:
        """Return the priority of the inference ``wire``, or 0 if the inference has no priority or
        was not validated. Never raises."""


@runtime_checkable
class SupportsContentEncoding(Protocol[Req_contra]):
    """Implemented by a codec whose requests may be compressed."""

    def open_request(self, wire: Req_contra) -> None:
        """Decode a short body of ``wire`` in place, so that the body is inflated only once. Long
        and invalid bodies stay unchanged. The gateway calls this method once, after authorization.
        Never raises."""


@runtime_checkable
class SupportsMessageFields(Protocol):
    """Implemented by a codec for binary bodies that no library can print."""

    def request_fields(self, wire: Any) -> dict[str, Any] | None:
        """Return the fields of a request's body as JSON data, with the first elements of long
        lists. Return None if the body is invalid. Never raises."""

    def response_fields(self, wire: Any) -> dict[str, Any] | None:
        """Return the fields of the body of an inference response, like ``request_fields``."""


@runtime_checkable
class SupportsLongText(Protocol[Req_contra]):
    """Implemented by a codec whose messages may contain long text, which is slow to read and
    write. The methods estimate costs. Their results do not affect the contents of messages.

    The codec, its arguments and its results can be pickled.
    """

    def request_text_bytes(self, wire: Req_contra) -> int:
        """Return the maximum number of bytes of text that are read for ``wire``, after inflation.
        Never raises."""

    def json_bytes(self, wire: Any, max_bytes: int) -> int:
        """Return the maximum number of bytes of JSON in the inflated request or response ``wire``.
        The codec rejects JSON of more than ``max_bytes`` before reading it. Never raises."""

    def rewrite_bytes(self, wire: Any, request: Any) -> int:
        """Return the number of bytes that ``rewrite_response`` compresses or inflates for
        ``wire``."""

    def response_text_bytes(self, response: Response, parsed: ParsedRequest) -> int:
        """Return the number of tensor bytes that ``build_response`` would write as text or in a
        loop."""

    def backend_text_bytes(self, operation: InferRequest, profile: Profile) -> int:
        """Return the number of tensor bytes that ``build_request`` would write as text or in a
        loop."""

    def response_size(self, response: InferResponse, parsed: ParsedRequest) -> tuple[int, int]:
        """Return the minimum size of the body that ``build_response`` would write, and the maximum
        memory that ``build_response`` would allocate for the body, in bytes."""

    def max_backend_text_bytes(self, operation: InferRequest, profile: Profile) -> int:
        """Return the maximum number of bytes of text that ``build_request`` would write."""


@runtime_checkable
class SupportsResponseNumbering(Protocol[Resp]):
    """Implemented by a codec that numbers its responses."""

    def number_response(self, wire: Resp) -> Resp:
        """Return ``wire``, an inference response from a helper process, with the next number."""


@runtime_checkable
class SupportsServerVariants(Protocol[Req_co]):
    """Implemented by a codec that has alternatives to requests that some servers reject."""

    def build_alternative_request(self, operation: Operation, error_kind: Kind) -> Req_co | None:
        """Return another request for a server that rejected the result of ``build_request`` with
        ``error_kind``, or None. ``parse_response`` also parses the response to the alternative."""


@runtime_checkable
class SupportsStreaming(Protocol[Req, Resp]):
    """Implemented by a codec whose protocol has streams of inferences. Each request of a stream has
    any number of responses, and is summarized and parsed like a unary request."""

    streaming_method: str
    """The gRPC method of the stream. The value is empty over HTTP, where each request states
    whether the client wants a stream."""

    # ---- for clients
    def build_stream_response(self, response: InferResponse, parsed: ParsedRequest) -> Resp:
        """Write one response to ``parsed``. Raises UNSUPPORTED."""

    def build_stream_end(self, parsed: ParsedRequest) -> Resp | None:
        """Write the message that ends the responses to ``parsed`` if no response was marked as the
        last. Returns None if the protocol has no such message or the client does not want it."""

    def build_stream_error(self, error: GatewayError, wire: Req) -> Resp:
        """Write ``error`` as the last response. A result with a status code ends the stream."""

    # ---- for backends
    def streams_need_metadata(self, profile: Profile) -> bool:
        """Return whether ``build_stream_request`` and ``parse_stream_response`` need the model's
        metadata for a server of ``profile``."""

    def build_stream_request(
        self, operation: InferRequest, profile: Profile, model: ModelMetadata | None = None
    ) -> Req | None:
        """Write ``operation`` as the only request of a stream. Returns None if a server of
        ``profile`` has no stream for ``model``. Raises like ``build_request``."""

    def parse_stream_response(
        self,
        wire: Resp,
        operation: InferRequest,
        limits: Limits,
        model: ModelMetadata | None = None,
    ) -> InferResponse | None:
        """Parse one message of a backend's stream. Returns None if the message contains no
        response. Raises like ``parse_response``, and UNSUPPORTED if the server has no such
        stream."""


@dataclass(frozen=True, slots=True)
class CodecPlugin:
    """The object that an entry point of the group ``infergate.codecs`` provides for a protocol.

    ``claims`` are first path segments (HTTP, for example ``"v2"``) or full service names (gRPC). A
    shared listener dispatches a request to the codec that claims the request's first path segment
    or service, or to the codec with ``is_fallback`` if no codec claims it. If several codecs have
    the same claim, the configuration selects one codec. ``create`` builds the codec from validated
    options.
    """

    name: str
    transport_kind: TransportKind
    claims: tuple[str, ...]
    create: Callable[[Mapping[str, Any]], Codec[Any, Any]]
    is_fallback: bool = False
    supports_shared_memory: bool = False
    """The protocol can register shared memory regions and refer to tensors in them."""
    supports_framing: bool = False
    """HTTP: the messages need no path and no headers, so size-prefixed frames can carry them."""
    min_header_bytes: int = 0
    """Minimum default of ``limits.headers``, in bytes, for a listener that serves this protocol."""
    max_response_header_bytes: int = 0
    """HTTP: the maximum length in bytes of a response header line that the protocol's own clients
    accept, if greater than ``Limits.response_header``."""
    options_type: type | None = None
    """A pydantic model or a dataclass, which validates the options of this codec in
    ``listeners.codecs`` and in ``backends.<name>.options``. ``create`` receives the values of the
    configuration. If ``options_type`` is None, the configuration cannot have such options."""
