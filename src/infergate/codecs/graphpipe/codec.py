"""The GraphPipe codec: HttpRequest and HttpResponse ⇄ canonical operations and answers.

*Strategy.* The path tells the model (``paths``), the body what is asked of it: a flatbuffer read in
place (``reading``). Names that a message leaves out are the model's metadata's (``names``).
Inferences are written around their tensors' memory (``layout``), everything else by flatbuffers.
Raw sockets carry the same bodies: their transport makes HttpRequests of them.

Sources: seed specification 003, and what servers and clients put on the wire
(docs/fidelity-graphpipe.md).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from infergate.codecs.base import Capabilities, Parsed, Peek, Profile, Unfinished
from infergate.codecs.graphpipe import backend
from infergate.codecs.graphpipe.config_text import PROTOCOL
from infergate.codecs.graphpipe.datatypes import NUMBERS
from infergate.codecs.graphpipe.errors import (
    BINARY,
    TEXT,
    refuse_by_response,
    refuse_by_status,
)
from infergate.codecs.graphpipe.fields import INFER, METADATA, REQ, REQ_TYPE
from infergate.codecs.graphpipe.infer_request import read_request
from infergate.codecs.graphpipe.infer_response import write_response
from infergate.codecs.graphpipe.metadata import write_json, write_metadata
from infergate.codecs.graphpipe.options import Errors, Options, read_options
from infergate.codecs.graphpipe.paths import Place, locate
from infergate.codecs.graphpipe.reading import Message, Table
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.limits import Limits
from infergate.core.messages import (
    Answer,
    Health,
    InferRequest,
    InferResponse,
    ModelMetadata,
    ModelMetadataRequest,
    Operation,
    ServerLiveRequest,
)
from infergate.core.tensor import Tensor
from infergate.core.wire import HttpRequest, HttpResponse, joined

_STRING: Final = 4
_TOLD: Final = 512
"""Bytes of JSON that cost as much as an input or output of the metadata: 30 µs."""
_JSON: Final = {"content-type": "application/json"}


class Form(enum.Enum):
    """How metadata is told."""

    FLATBUFFER = "flatbuffer"
    JSON = "json"


class GraphPipe:
    """The codec."""

    name: str = PROTOCOL
    caps: Capabilities = Capabilities(datatypes=frozenset(NUMBERS), sequences=False)
    profiled: bool = False
    described: bool = True
    streams: frozenset[str] = frozenset()

    def __init__(self, options: Options) -> None:
        self._options: Final = options

    # ---- towards clients

    def peek(self, wire: HttpRequest) -> Peek:
        """Raises NOT_FOUND for a path, BAD_REQUEST for a body that is no request."""
        place = locate(wire.path, self._options.model)
        if place.question is not None:
            return Peek(type(place.question), getattr(place.question, "model", ""))
        if wire.method == "GET" or _request(wire)[0] == METADATA:
            return Peek(ModelMetadataRequest, place.model, place.version)
        return Peek(InferRequest, place.model, place.version)

    def parse_request(self, wire: HttpRequest, limits: Limits) -> Parsed | Unfinished[Parsed]:
        """Raises NOT_FOUND for a path, and what is wrong with the body."""
        place = locate(wire.path, self._options.model)
        if place.question is not None:
            return Parsed(place.question, place.question)
        if wire.method == "GET":
            return Parsed(ModelMetadataRequest(place.model, place.version), Form.JSON)
        kind, request = _request(wire)
        if kind == METADATA:
            return Parsed(ModelMetadataRequest(place.model, place.version), Form.FLATBUFFER)
        table = request.table(REQ)
        if table is None:
            raise bad_request("the Request has no req, which should be an InferRequest")
        return read_request(table, place.model, place.version, limits)

    def build_response(self, answer: Answer, parsed: Parsed) -> HttpResponse:
        """The answer in the form that the request noted."""
        match answer:
            case InferResponse():
                return HttpResponse(200, BINARY, write_response(answer, parsed.reply))
            case ModelMetadata() if parsed.reply is Form.JSON:
                return HttpResponse(200, _JSON, [write_json(answer)])
            case ModelMetadata():
                return HttpResponse(200, BINARY, [write_metadata(answer)])
            case Health(ok):
                return _health(ok, parsed.reply)
        raise GatewayError(Kind.UNSUPPORTED, f"GraphPipe cannot tell {type(answer).__name__}")

    def build_error(self, error: GatewayError, wire: HttpRequest | None = None) -> HttpResponse:
        """As text, unless the option wants otherwise and ``wire`` is a GraphPipe message. One
        without a method is a head that could not be read."""
        if self._options.errors is Errors.STATUS or wire is None or wire.method in ("", "GET"):
            return refuse_by_status(error)
        try:
            place = locate(wire.path, self._options.model)
        except GatewayError:
            place = Place()
        return refuse_by_status(error) if place.question else refuse_by_response(error)

    def text_in(self, wire: HttpRequest) -> int:  # noqa: ARG002 - reading the message tells
        """Nothing is known beforehand."""
        return 0

    def json_in(self, wire: HttpRequest | HttpResponse, most: int) -> int:  # noqa: ARG002
        """There is none."""
        return 0

    def text_forwarded(self, wire: HttpResponse, asked: HttpRequest) -> int:  # noqa: ARG002
        """Nothing is compressed."""
        return 0

    def text_out(self, answer: Answer, parsed: Parsed) -> int:  # noqa: ARG002
        """Strings: each is told by an offset; and what is told of inputs and outputs."""
        if isinstance(answer, ModelMetadata):
            return _TOLD * (len(answer.inputs) + len(answer.outputs))
        return _strings(answer.outputs) if isinstance(answer, InferResponse) else 0

    def size_out(self, answer: InferResponse, parsed: Parsed) -> tuple[int, int]:  # noqa: ARG002
        """Strings are written anew."""
        return 0, _written(answer.outputs)

    def text_to_backend(self, operation: InferRequest, profile: Profile) -> int:
        """As of ``text_out``."""
        del profile
        return _strings(operation.inputs)

    def size_to_backend(self, operation: InferRequest, profile: Profile) -> int:
        """As of ``size_out``."""
        del profile
        return _written(operation.inputs)

    # ---- towards backends

    def build_request(
        self, operation: Operation, profile: Profile, model: ModelMetadata | None = None
    ) -> HttpRequest:
        """Raises UNSUPPORTED for what GraphPipe lacks, BAD_REQUEST, TOO_LARGE."""
        del profile
        return backend.build_request(operation, model)

    def rephrase(self, operation: Operation, told: Kind) -> HttpRequest | None:  # noqa: ARG002
        """A GET for all but inferences."""
        return None if isinstance(operation, InferRequest) else backend.by_get()

    def parse_response(
        self,
        wire: HttpResponse,
        operation: Operation,
        limits: Limits,
        model: ModelMetadata | None = None,
    ) -> Answer:
        """Raises the backend's error, or BACKEND_GARBAGE."""
        return backend.parse_response(wire, operation, limits, model)


def _request(wire: HttpRequest) -> tuple[int, Table]:
    """The Request in the body and which of the two it is. Raises BAD_REQUEST, also for a type that
    is neither (the specification asks for an error; graphpipe-go answers with its metadata), and
    UNSUPPORTED_ENCODING: no client compresses."""
    encoding = wire.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise GatewayError(
            Kind.UNSUPPORTED_ENCODING, f"content-encoding '{encoding[:40]}' is not of GraphPipe"
        )
    body = joined(wire.body)
    wire.body = (body,)  # made one piece once: a request is peeked at, then parsed
    request = Message(body).root("Request")
    kind = request.byte(REQ_TYPE)
    if kind not in (INFER, METADATA):
        raise bad_request(
            f"req_type is {kind}, neither {INFER} (InferRequest) nor {METADATA} (MetadataRequest)"
        )
    return kind, request


def _strings(tensors: Sequence[Tensor]) -> int:
    """What it costs to write ``tensors``, in bytes of JSON that cost as much."""
    strings = [math.prod(each.shape) for each in tensors if each.datatype is Datatype.BYTES]
    return _STRING * sum(strings)


def _written(tensors: Sequence[Tensor]) -> int:
    """Bytes of the offsets and strings that are written of ``tensors``, at most."""
    return 3 * sum(len(each.data) for each in tensors if each.datatype is Datatype.BYTES)


def _health(ok: bool, question: Operation) -> HttpResponse:  # noqa: FBT001 - it is the answer
    """As graphpipe-go's control paths say it."""
    if ok:
        return HttpResponse(200, TEXT, [b"ok\n"])
    word = b"alive" if isinstance(question, ServerLiveRequest) else b"ready"
    return HttpResponse(503, TEXT, [b"not " + word + b"\n"])


def make(options: Mapping[str, Any]) -> GraphPipe:
    """The codec with ``model`` and ``errors`` from ``options``. Raises ValueError."""
    return GraphPipe(read_options(options))
