"""The contract of a codec: wire ⇄ canonical, for one protocol, both sides.

*Strategy.* A codec is pure: no I/O, no clock, no logging, no asyncio. The frontend uses
``peek``, ``parse_request``, ``build_response`` and ``build_error``; the backend uses
``build_request`` and ``parse_response``. Where both sides spell the same protocol and the route
renames no tensor, the gateway uses ``shield``, ``readdress`` and ``relabel`` of a
:class:`Forwarding` codec instead and no tensor is decoded; ``sequence`` too, where the backend has
several endpoints.

*Rule 1.* Any bytes parse, or raise :class:`GatewayError`; nothing else escapes.
*Rule 2.* What ``parse_request`` returns obeys Rule 1 of ``core.tensor``; ``shield`` refuses
exactly what ``parse_request`` refuses.
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
from infergate.core.messages import Answer, InferRequest, InferResponse, ModelMetadata, Operation
from infergate.core.records import record
from infergate.core.sequences import SequenceId

Req = TypeVar("Req")
Resp = TypeVar("Resp")
Req_co = TypeVar("Req_co", covariant=True)
Req_contra = TypeVar("Req_contra", contravariant=True)
T = TypeVar("T")


class OutputsNeedTranslation(GatewayError):  # noqa: N818 - a GatewayError by its name as well
    """The server cannot give outputs in the form that a forwarded message asked for, but can in the
    form that ``build_request`` asks for."""


class Carrier(enum.Enum):
    """Which transport carries a protocol's messages."""

    HTTP = "http"
    GRPC = "grpc"


@record
class Peek:
    """What a request is about, read without touching its tensors.

    ``operation`` is the class of the operation (``InferRequest``, ``ServerLiveRequest`` ...).
    """

    operation: type[Operation]
    model: str = ""
    version: str = ""
    forwards: bool = True
    """It may go on as it came to a server of the same protocol: most of them know this form."""


@record
class Parsed:
    """An operation, and the codec's private notes on how this client wants its answer written."""

    operation: Operation
    reply: Any = None
    streamed: bool = False
    """An inference over HTTP: all answers to it are wanted, one after the other in one body."""
    only: str = ""
    """An inference: its one answer is wanted, of a model that may give any number; else this is
    told."""


@record
class Unfinished(Generic[T]):
    """An inference that only the model's metadata makes whole: its message leaves out names,
    datatypes or shapes.

    ``finish`` makes it what was wanted of it: a :class:`Parsed` inference, or the request of a
    :class:`Forwarding` codec, checked. It is pure, and raises what the client did wrong. It may be
    called again, with newer metadata. The metadata is in the client's names.
    """

    model: str
    version: str
    finish: Callable[[ModelMetadata], T]
    text: int = 0
    """Bytes of text that it goes through. Where there are many it is pickled."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Facts about a kind of server that its protocol's specification does not settle."""

    name: str
    binary: bool = False
    """V2 REST: takes and gives tensors in the binary extension."""
    versions: bool = True
    """Takes a model version (KServe refuses any over REST)."""
    lists_models: bool = False
    """V2 REST: tells its models by ``GET /v2/models``; it has no repository index."""
    classifies: bool = False
    """V2: answers with classes where an output's parameter ``classification`` asks for them."""
    tells_config: bool = False
    """V2: tells a model's configuration, its largest batch for one."""
    tells_statistics: bool = False
    """V2: tells what it has counted and measured of a model."""
    traces: bool = False
    """V2: has trace settings."""
    logs: bool = False
    """V2: has log settings."""
    loads_by_name: bool = False
    """V2: a model is loaded by its name alone: there are no parameters, or they mean nothing."""
    loads_by_first_field: bool = False
    """V2 gRPC: the name of a model to load or unload is field 1 of the request, not 2."""
    generates: bool = False
    """V2 REST: gives all answers of a decoupled model by ``generate_stream``, and only by that."""
    content_types: bool = False
    """V2 REST: decodes BYTES that the parameter ``content_type`` marks as base64, and takes null,
    not a bare ``NaN``."""
    streams_infer: bool = False
    """V2 REST: gives all answers to an inference by ``infer_stream``."""
    tells_decoupled: bool = False
    """V2: its configuration tells of every model whether it is decoupled. One that is not gives one
    answer, which a unary inference gives too, and its errors with a code."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a protocol can carry."""

    datatypes: frozenset[Datatype]
    streaming: bool = False
    """The codec is :class:`Streaming`."""
    sequences: bool = True
    """Its servers have sequences, or may have: else they are not sent a request of one."""
    classifies: bool = False
    """Every server of the protocol answers with classes where an output asks for them; else it is
    its :class:`Profile` that tells."""
    tells_config: bool = False
    """Every server of the protocol tells a model's configuration; else as above."""
    tells_statistics: bool = False
    """Every server of the protocol tells what it has counted of a model; else as above."""


class Codec(Protocol[Req, Resp]):
    """One protocol. ``Req``/``Resp`` are the wire types of its :class:`Carrier`."""

    name: str
    caps: Capabilities
    profiled: bool
    """Whether requests to a backend depend on its :class:`Profile`. Else it is not asked for, and
    the codec is given what is known of it, which may be nothing (``GENERIC``)."""
    described: bool
    """Whether ``build_request`` and ``parse_response`` need the model's metadata for inferences."""
    streams: frozenset[str]
    """gRPC methods whose stream carries inferences, each answered in turn by the messages of a
    unary one."""

    # ---- towards clients
    def peek(self, wire: Req) -> Peek:
        """Operation, model and version. Raises NOT_FOUND, METHOD_NOT_ALLOWED, BAD_REQUEST."""
        ...

    def parse_request(self, wire: Req, limits: Limits) -> Parsed | Unfinished[Parsed]:
        """The operation that ``wire`` asks for. Raises what the client did wrong."""
        ...

    def build_response(self, answer: Answer, parsed: Parsed) -> Resp:
        """The wire form of ``answer`` to ``parsed``. Raises UNSUPPORTED for what cannot be told."""
        ...

    def build_error(self, error: GatewayError, wire: Req | None = None) -> Resp:
        """The wire form of ``error`` in answer to ``wire``. Never raises."""
        ...

    # ---- towards backends
    def build_request(
        self, operation: Operation, profile: Profile, model: ModelMetadata | None = None
    ) -> Req:
        """The wire form of ``operation``, made anew: headers are put on it. Raises UNSUPPORTED for
        what this protocol lacks, BAD_REQUEST for what contradicts ``model``: metadata in the
        backend's names, given for inferences where this codec is ``described``."""
        ...

    def parse_response(
        self,
        wire: Resp,
        operation: Operation,
        limits: Limits,
        model: ModelMetadata | None = None,
    ) -> Answer:
        """The answer in ``wire``; raises the backend's error, or BACKEND_GARBAGE. ``model`` as for
        ``build_request``."""
        ...


@runtime_checkable
class Forwarding(Protocol[Req, Resp]):
    """What a codec has besides whose messages can go on as they came, where both sides spell its
    protocol."""

    forwards: bool
    """Whether they may with the options this codec was made with."""

    def shield(self, wire: Req, limits: Limits) -> Req | Unfinished[Req]:
        """``wire`` checked as by ``parse_request`` but not decoded, in a form any server takes
        (content encodings undone). A codec may give back a subclass of ``Req`` that tells
        ``readdress`` and ``relabel`` what was learnt. Unfinished where the check needs the model's
        metadata."""
        ...

    def sequence(self, wire: Req, limits: Limits) -> SequenceId | None:
        """The id of the sequence that ``wire`` (an inference, shielded or not) belongs to. Raises
        what is found wrong with it on the way."""
        ...

    def readdress(self, wire: Req, model: str, version: str, profile: Profile) -> Req | None:
        """``wire`` (an inference) asking for another model and version; its tensors untouched.

        It is another object, for headers are put on it; those that concern only the connection with
        the client are left out. None where a server of ``profile`` cannot take the message as it
        stands: it must be translated.
        """
        ...

    def relabel(self, wire: Resp, asked: Req, model: str, version: str, limits: Limits) -> Resp:
        """The backend's answer to an inference as the answer to ``asked`` (what ``shield`` gave;
        the client's message where that was not called), named ``model`` and ``version`` (empty:
        as the backend said). The id is the client's own. Raises the backend's error like
        ``parse_response``."""
        ...


@runtime_checkable
class Textual(Protocol[Req_contra]):
    """What a codec has besides whose messages may hold much text, which is dear to read and write.
    Such a codec, what it is given and what it makes of long text can be pickled."""

    def text_in(self, wire: Req_contra) -> int:
        """Bytes of text that reading the request ``wire`` goes through, at most, and of all that is
        inflated for it. Never raises."""
        ...

    def json_in(self, wire: Any, most: int) -> int:
        """Bytes of JSON in the request or answer ``wire``, its encoding undone, at most; a longer
        one than ``most`` is refused before it is read. Never raises."""
        ...

    def text_forwarded(self, wire: Any, asked: Any) -> int:
        """Bytes that ``relabel`` compresses or inflates for the answer ``wire`` to ``asked``."""
        ...

    def text_out(self, answer: Answer, parsed: Parsed) -> int:
        """Bytes of tensors that ``build_response`` would write as text, or in a loop."""
        ...

    def text_to_backend(self, operation: InferRequest, profile: Profile) -> int:
        """The same of ``build_request``."""
        ...

    def size_out(self, answer: InferResponse, parsed: Parsed) -> tuple[int, int]:
        """Bytes that ``build_response`` would write: at least those of the body, and at most those
        that it allocates for it."""
        ...

    def size_to_backend(self, operation: InferRequest, profile: Profile) -> int:
        """Bytes of text that ``build_request`` would write for the inference, at most."""
        ...


@runtime_checkable
class Numbering(Protocol[Resp]):
    """What a codec has besides that numbers its answers."""

    def numbered(self, wire: Resp) -> Resp:
        """``wire``, an answer to an inference that a helper wrote, with the next number: helpers do
        not know how many answers there were."""
        ...


@runtime_checkable
class Rephrasing(Protocol[Req_co]):
    """What a codec has besides some of whose servers must be asked in another way."""

    def rephrase(self, operation: Operation, told: Kind) -> Req_co | None:
        """Another way to ask a backend ``operation``, for servers that make nothing of
        ``build_request``'s, as they ``told``; its answer is for ``parse_response`` too. None: there
        is none."""
        ...


@runtime_checkable
class Streaming(Protocol[Req, Resp]):
    """What a codec has besides whose protocol has streams of inferences, each request of which is
    given any number of answers. A request is peeked at and parsed like a unary one."""

    stream: str
    """The gRPC method; none over HTTP, where it is a request that asks for a stream."""

    # ---- towards clients
    def build_stream_response(self, answer: InferResponse, parsed: Parsed) -> Resp:
        """One answer to ``parsed``. Raises UNSUPPORTED for what cannot be told."""
        ...

    def build_stream_end(self, parsed: Parsed) -> Resp | None:
        """What tells that there is no further answer to ``parsed``, where the client wants to be
        told and no answer was known to be the last."""
        ...

    def build_stream_error(self, error: GatewayError, wire: Req) -> Resp:
        """``error`` as the last answer to ``wire``; one with a code ends the stream. Never
        raises."""
        ...

    # ---- towards backends
    def describes_streams(self, profile: Profile) -> bool:
        """Whether the model's metadata is needed below, for a server of ``profile``."""
        ...

    def build_stream_request(
        self, operation: InferRequest, profile: Profile, model: ModelMetadata | None = None
    ) -> Req | None:
        """``operation`` as the only request of a stream; None where a server of ``profile`` gives
        ``model``'s answer by no stream. Raises like ``build_request``."""
        ...

    def parse_stream_response(
        self,
        wire: Resp,
        operation: InferRequest,
        limits: Limits,
        model: ModelMetadata | None = None,
    ) -> InferResponse | None:
        """The answer in one message of such a stream, None where it holds none. Raises like
        ``parse_response``; UNSUPPORTED where the server has no such stream."""
        ...


@dataclass(frozen=True, slots=True)
class CodecPlugin:
    """What the entry-point group ``infergate.codecs`` holds, one a protocol.

    ``claims`` are first path segments (HTTP, ``"v2"``) or full service names (gRPC) that a shared
    listener hands to this codec. ``make`` builds the codec with the options of a listener or a
    backend (validated by the config schema). What no codec claims is answered by one of those with
    ``answers_rest``.
    """

    name: str
    carrier: Carrier
    claims: tuple[str, ...]
    make: Callable[[Mapping[str, Any]], Codec[Any, Any]]
    answers_rest: bool = False
    shares_memory: bool = False
    """It can register regions of shared memory, and tell of tensors that lie there."""
    framed: bool = False
    """HTTP: its requests and answers may do without path and headers, so that size-prefixed frames
    carry them as well."""
    headers: int = 0
    """Bytes of headers that its requests need, where they hold more than words about a body: what a
    listener that takes them allows unless the configuration says otherwise."""
    response_header: int = 0
    """HTTP: bytes of the longest header line of its servers' responses that their own clients
    take, where that is more than ``Limits.response_header``."""
