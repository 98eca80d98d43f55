"""The legacy HTTP codec: HttpRequest and HttpResponse ⇄ canonical operations and responses.

The path determines the operation (``http_paths``), NV-InferRequest the names and shapes of the
tensors, and the model's metadata their datatypes. ``http_frontend`` covers the client side,
``http_backend`` the backend side; the rest is shared with gRPC.

Sources: seed specification 004, and messages captured from servers and clients of the API
(docs/fidelity-trtis.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from infergate.codecs.base import Capabilities, Parsed, Peek, Profile, Unfinished
from infergate.codecs.trtis import answers, http_backend, http_forwarding, http_frontend
from infergate.codecs.trtis.checked import CheckedHeaders
from infergate.codecs.trtis.datatypes import NUMBERS
from infergate.codecs.trtis.http_frontend import Form
from infergate.codecs.trtis.infer_request import read_request
from infergate.codecs.trtis.infer_response import write_response, written_text
from infergate.codecs.trtis.messages import SharedMemoryStatus as Regions
from infergate.codecs.trtis.options import Options, read_options
from infergate.codecs.trtis.paths import find
from infergate.codecs.trtis.status import unknown_is_not_ready
from infergate.codecs.trtis.statuses import Statuses
from infergate.core.errors import GatewayError, Kind, refusal_headers
from infergate.core.limits import Limits
from infergate.core.messages import (
    Answer,
    Done,
    Health,
    InferRequest,
    InferResponse,
    ModelIndex,
    ModelMetadata,
    Operation,
    ServerStatus,
    ServerStatusRequest,
    SharedMemoryRegisterRequest,
    SharedMemoryStatus,
)
from infergate.core.records import record
from infergate.core.sequences import SequenceId
from infergate.core.wire import HttpRequest, HttpResponse, joined


class TrtisHttp:
    """The codec of the legacy HTTP API."""

    name: str = "trtis-http"
    caps: Capabilities = Capabilities(
        datatypes=frozenset(NUMBERS), classifies=True, tells_config=True, tells_statistics=True
    )
    profiled: bool = False
    described: bool = True
    streams: frozenset[str] = frozenset()

    def __init__(self, options: Options) -> None:
        self._options: Final = options
        self._statuses: Final = Statuses(options)
        self._checked: Final = CheckedHeaders()
        # No legacy server reports the datatypes of outputs, so `data_type` needs translation.
        self.forwards: bool = not options.data_type

    def __reduce__(self) -> tuple[Any, ...]:
        return TrtisHttp, (self._options,)  # without the cache

    # ---- towards clients

    def peek(self, wire: HttpRequest) -> Peek:
        """Return the operation and names, which are all in the path. The header is not parsed: if
        it is invalid, ``build_error`` ignores every other error."""
        operation = find(wire.method, wire.path)
        return Peek(
            type(operation), getattr(operation, "model", ""), getattr(operation, "version", "")
        )

    def parse_request(self, wire: HttpRequest, limits: Limits) -> Parsed | Unfinished[Parsed]:
        """Parse a request. Raises NOT_FOUND for an unknown path, METHOD_NOT_ALLOWED, and errors of
        the inference."""
        operation = find(wire.method, wire.path)
        match operation:
            case InferRequest():
                header = http_frontend.read_header(wire, limits)
                unfinished = read_request(
                    header, operation, http_frontend.allot(wire.body), self._options.level, limits
                )
                return _with_form(unfinished, http_frontend.form_of(wire))
            case ServerStatusRequest():
                return Parsed(operation, http_frontend.status_form_of(wire, self._options.level))
            case SharedMemoryRegisterRequest(device=int()):
                return Parsed(replace(operation, handle=bytes(joined(wire.body))))
        return Parsed(operation, http_frontend.form_of(wire))

    def build_response(self, answer: Answer, parsed: Parsed) -> HttpResponse:
        """Build a response in the format that the request asked for."""
        status = self._statuses.success
        match answer:
            case InferResponse():
                reply: _Reply = parsed.reply
                assert isinstance(parsed.operation, InferRequest)
                header, raw = write_response(
                    answer,
                    parsed.operation,
                    reply.inference,
                    data_type=self._options.data_type,
                )
                return http_frontend.inference(header, raw, reply.form, status())
            case Health(ok):
                return http_frontend.empty(status(), ok=ok)
            case Done():
                return http_frontend.empty(status(), ok=True)
            case ServerStatus():
                message = answers.status(answer, self._options.server_id)
            case ModelIndex():
                message = answers.index(answer)
            case SharedMemoryStatus():
                message = Regions()
                answers.add_regions(message.shared_memory_region, answer)
            case _:
                raise GatewayError(
                    Kind.UNSUPPORTED,
                    f"the legacy HTTP API has no such response: {type(answer).__name__}",
                )
        return http_frontend.told(message, parsed.reply, status())

    def build_error(self, error: GatewayError, wire: HttpRequest | None = None) -> HttpResponse:
        """Build the response for ``error``: a bare 400 or 405 if a server would have reached no
        handler, else one with NV-Status."""
        error_response = self._refused(error, wire)
        return replace(error_response, headers={**error_response.headers, **refusal_headers(error)})

    def _refused(self, error: GatewayError, wire: HttpRequest | None) -> HttpResponse:
        operation: Operation | None = None
        if wire is not None:
            try:
                operation = find(wire.method, wire.path)
            except GatewayError as path_error:
                not_allowed = path_error.kind is Kind.METHOD_NOT_ALLOWED
                return http_frontend.bare(405 if not_allowed else 400)
            if isinstance(operation, InferRequest):
                return http_frontend.refused_inference(
                    wire, error, lambda: self._statuses.error(error, operation)
                )
        return http_frontend.empty(self._statuses.error(error, operation), ok=False)

    def numbered(self, wire: HttpResponse) -> HttpResponse:
        """Return ``wire`` with the next request number."""
        return http_frontend.numbered(wire, self._statuses.number())

    def text_in(self, wire: HttpRequest) -> int:  # noqa: ARG002
        """Return 0: the cost is known only while the header is read."""
        return 0

    def json_in(self, wire: HttpRequest | HttpResponse, most: int) -> int:  # noqa: ARG002
        """Return 0: there is no JSON."""
        return 0

    def text_forwarded(self, wire: HttpResponse, asked: HttpRequest) -> int:  # noqa: ARG002
        """Return 0: nothing is compressed."""
        return 0

    def text_out(self, answer: Answer, parsed: Parsed) -> int:
        """Return the cost of classes and shapes, in bytes of JSON that cost as much."""
        if not isinstance(answer, InferResponse):
            return 0
        return written_text(answer.outputs, parsed.reply.inference.outputs)

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
    ) -> HttpRequest:
        """Build the request to a backend. Raises UNSUPPORTED for operations that the API lacks and
        names that do not fit in a path, TOO_LARGE."""
        del profile
        return http_backend.build_request(operation, model)

    def parse_response(
        self,
        wire: HttpResponse,
        operation: Operation,
        limits: Limits,
        model: ModelMetadata | None = None,
    ) -> Answer:
        """Parse a backend's response. Raises the backend's error, or BACKEND_GARBAGE."""
        try:
            return http_backend.parse_response(wire, operation, limits, model)
        except GatewayError as error:
            return unknown_is_not_ready(error, operation)

    # ---- pass-through

    def shield(self, wire: HttpRequest, limits: Limits) -> HttpRequest | Unfinished[HttpRequest]:
        """Validate an inference; any other request is only parsed."""
        operation = find(wire.method, wire.path)
        if isinstance(operation, InferRequest):
            level = self._options.level
            return http_forwarding.check(wire, operation, self._checked, level, limits)
        self.parse_request(wire, limits)
        return wire

    def sequence(self, wire: HttpRequest, limits: Limits) -> SequenceId | None:
        """Return the correlation id."""
        return http_forwarding.sequence(wire, limits)

    def readdress(
        self, wire: HttpRequest, model: str, version: str, profile: Profile
    ) -> HttpRequest | None:
        """Return the request for the backend; None if server releases interpret the message
        differently."""
        del profile
        return http_forwarding.readdress(wire, model, version)

    def relabel(
        self, wire: HttpResponse, asked: HttpRequest, model: str, version: str, limits: Limits
    ) -> HttpResponse:
        """Return the response for the client. Raises the backend's error, or BACKEND_GARBAGE."""
        status = self._statuses.success
        return http_forwarding.relabel(wire, asked, model, version, status, limits)


@record
class _Reply:
    """The response options of an inference, and the format of the header after its data."""

    inference: Any
    form: Form


def _with_form(unfinished: Unfinished[Parsed], form: Form) -> Unfinished[Parsed]:
    finish = partial(_finish, unfinished.finish, form)
    return Unfinished(unfinished.model, unfinished.version, finish)


def _finish(
    finish: Callable[[ModelMetadata], Parsed], form: Form, metadata: ModelMetadata
) -> Parsed:
    parsed = finish(metadata)
    return Parsed(parsed.operation, _Reply(parsed.reply, form))


def make(options: Mapping[str, Any]) -> TrtisHttp:
    """Return the codec for the options ``level``, ``server_id`` and ``data_type``. Raises
    ValueError."""
    return TrtisHttp(read_options(options))
