"""The GraphPipe codec: HttpRequest and HttpResponse ⇄ canonical operations and responses.

The path names the model (``paths``); the body, a flatbuffer read in place (``flatbuffer_reader``),
names the operation. The model's metadata supplies the names that a message omits
(``name_resolution``). Inferences are written around the memory of their tensors
(``flatbuffer_writer``), all other messages by the flatbuffers library. Raw sockets carry the same
bodies: their transport wraps them as HttpRequests.

Sources: seed specification 003, and the observed messages of servers and clients
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
"""The cost of writing a string, as the number of JSON bytes that cost the same."""
_TOLD: Final = 512
"""The cost of writing one input or output of the metadata (30 µs), as the number of JSON bytes that
cost the same."""
_JSON: Final = {"content-type": "application/json"}


class Form(enum.Enum):
    """The encoding of a metadata response."""

    FLATBUFFER = "flatbuffer"
    JSON = "json"


class GraphPipe:
    """The GraphPipe codec."""

    name: str = PROTOCOL
    caps: Capabilities = Capabilities(datatypes=frozenset(NUMBERS), sequences=False)
    profiled: bool = False
    described: bool = True
    streams: frozenset[str] = frozenset()

    def __init__(self, options: Options) -> None:
        self._options: Final = options

    # ---- towards clients

    def peek(self, wire: HttpRequest) -> Peek:
        """Raises NOT_FOUND for an unknown path, BAD_REQUEST for a body that is not a request."""
        match = locate(wire.path, self._options.model)
        if match.question is not None:
            return Peek(type(match.question), getattr(match.question, "model", ""))
        if wire.method == "GET" or _request(wire)[0] == METADATA:
            return Peek(ModelMetadataRequest, match.model, match.version)
        return Peek(InferRequest, match.model, match.version)

    def parse_request(self, wire: HttpRequest, limits: Limits) -> Parsed | Unfinished[Parsed]:
        """Raises NOT_FOUND for an unknown path, and errors in the body."""
        match = locate(wire.path, self._options.model)
        if match.question is not None:
            return Parsed(match.question, match.question)
        if wire.method == "GET":
            return Parsed(ModelMetadataRequest(match.model, match.version), Form.JSON)
        request_type, request = _request(wire)
        if request_type == METADATA:
            return Parsed(ModelMetadataRequest(match.model, match.version), Form.FLATBUFFER)
        table = request.table(REQ)
        if table is None:
            raise bad_request("the Request has no req; expected an InferRequest")
        return read_request(table, match.model, match.version, limits)

    def build_response(self, answer: Answer, parsed: Parsed) -> HttpResponse:
        """Write the response in the format that the request selected."""
        match answer:
            case InferResponse():
                return HttpResponse(200, BINARY, write_response(answer, parsed.reply))
            case ModelMetadata() if parsed.reply is Form.JSON:
                return HttpResponse(200, _JSON, [write_json(answer)])
            case ModelMetadata():
                return HttpResponse(200, BINARY, [write_metadata(answer)])
            case Health(ok):
                return _health(ok, parsed.reply)
        raise GatewayError(Kind.UNSUPPORTED, f"GraphPipe cannot express {type(answer).__name__}")

    def build_error(self, error: GatewayError, wire: HttpRequest | None = None) -> HttpResponse:
        """Write the error as text, or as an InferResponse if the option selects that and ``wire``
        is a GraphPipe message. A request without a method is one whose head could not be parsed."""
        if self._options.errors is Errors.STATUS or wire is None or wire.method in ("", "GET"):
            return refuse_by_status(error)
        try:
            match = locate(wire.path, self._options.model)
        except GatewayError:
            match = Place()
        return refuse_by_status(error) if match.question else refuse_by_response(error)

    def text_in(self, wire: HttpRequest) -> int:  # noqa: ARG002
        """Return 0: the cost is known only after parsing."""
        return 0

    def json_in(self, wire: HttpRequest | HttpResponse, most: int) -> int:  # noqa: ARG002
        """Return 0: requests contain no JSON."""
        return 0

    def text_forwarded(self, wire: HttpResponse, asked: HttpRequest) -> int:  # noqa: ARG002
        """Return 0: nothing is compressed."""
        return 0

    def text_out(self, answer: Answer, parsed: Parsed) -> int:  # noqa: ARG002
        """Count strings, each of which needs an offset, and the inputs and outputs of metadata."""
        if isinstance(answer, ModelMetadata):
            return _TOLD * (len(answer.inputs) + len(answer.outputs))
        return _strings(answer.outputs) if isinstance(answer, InferResponse) else 0

    def size_out(self, answer: InferResponse, parsed: Parsed) -> tuple[int, int]:  # noqa: ARG002
        """Return the size of the strings, which are copied; numeric data is not."""
        return 0, _written(answer.outputs)

    def text_to_backend(self, operation: InferRequest, profile: Profile) -> int:
        """Count strings, as in ``response_text_bytes``."""
        del profile
        return _strings(operation.inputs)

    def size_to_backend(self, operation: InferRequest, profile: Profile) -> int:
        """Return the size of the strings, as in ``response_size``."""
        del profile
        return _written(operation.inputs)

    # ---- towards backends

    def build_request(
        self, operation: Operation, profile: Profile, model: ModelMetadata | None = None
    ) -> HttpRequest:
        """Raises UNSUPPORTED for an operation that GraphPipe lacks, BAD_REQUEST, TOO_LARGE."""
        del profile
        return backend.build_request(operation, model)

    def rephrase(self, operation: Operation, told: Kind) -> HttpRequest | None:  # noqa: ARG002
        """Return a GET for every operation except an inference."""
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
    """Return the type and the table of the Request in the body.

    Raises BAD_REQUEST, also for an unknown type (as the specification requires; graphpipe-go
    answers with its metadata), and UNSUPPORTED_ENCODING, because no client compresses.
    """
    encoding = wire.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise GatewayError(
            Kind.UNSUPPORTED_ENCODING,
            f"content-encoding '{encoding[:40]}' is not supported by GraphPipe",
        )
    body = joined(wire.body)
    wire.body = (body,)  # joined only once, because a request is summarized and then parsed
    request = Message(body).root("Request")
    request_type = request.byte(REQ_TYPE)
    if request_type not in (INFER, METADATA):
        raise bad_request(
            f"req_type is {request_type}, neither {INFER} (InferRequest) nor {METADATA} "
            "(MetadataRequest)"
        )
    return request_type, request


def _strings(tensors: Sequence[Tensor]) -> int:
    """Return the cost of writing the strings in ``tensors``, in bytes of JSON that cost the
    same."""
    counts = [math.prod(tensor.shape) for tensor in tensors if tensor.datatype is Datatype.BYTES]
    return _STRING * sum(counts)


def _written(tensors: Sequence[Tensor]) -> int:
    """Return the maximum size of the offsets and strings that are written for ``tensors``."""
    return 3 * sum(len(tensor.data) for tensor in tensors if tensor.datatype is Datatype.BYTES)


def _health(ok: bool, question: Operation) -> HttpResponse:  # noqa: FBT001
    """Write a health response like those of graphpipe-go's control paths."""
    if ok:
        return HttpResponse(200, TEXT, [b"ok\n"])
    word = b"alive" if isinstance(question, ServerLiveRequest) else b"ready"
    return HttpResponse(503, TEXT, [b"not " + word + b"\n"])


def make(options: Mapping[str, Any]) -> GraphPipe:
    """Create the codec from the options ``model`` and ``errors``. Raises ValueError."""
    return GraphPipe(read_options(options))
