"""The legacy HTTP codec: HttpRequest and HttpResponse ⇄ canonical operations and answers.

*Strategy.* The path tells the operation (``paths``), NV-InferRequest the tensors' names and shapes,
the model's metadata their datatypes. ``http_frontend`` knows how clients are answered,
``http_backend`` how servers are asked; the rest is common to both carriers.

Sources: seed specification 004, and what servers and clients of the API put on the wire
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
    """The codec."""

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
        # No server of the old API tells its outputs' datatypes.
        self.forwards: bool = not options.data_type

    def __reduce__(self) -> tuple[Any, ...]:
        return TrtisHttp, (self._options,)  # what is remembered stays here

    # ---- towards clients

    def peek(self, wire: HttpRequest) -> Peek:
        """The path tells all. Where the header cannot be read, the answer is the same whatever else
        is wrong: see ``build_error``."""
        operation = find(wire.method, wire.path)
        return Peek(
            type(operation), getattr(operation, "model", ""), getattr(operation, "version", "")
        )

    def parse_request(self, wire: HttpRequest, limits: Limits) -> Parsed | Unfinished[Parsed]:
        """Raises NOT_FOUND for a path, METHOD_NOT_ALLOWED, and what is wrong with an inference."""
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
        """The answer in the form that the request noted."""
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
                    Kind.UNSUPPORTED, f"the legacy HTTP API cannot tell {type(answer).__name__}"
                )
        return http_frontend.told(message, parsed.reply, status())

    def build_error(self, error: GatewayError, wire: HttpRequest | None = None) -> HttpResponse:
        """By ``wire`` a bare 400 or 405, where no handler was reached; else with NV-Status."""
        answer = self._refused(error, wire)
        return replace(answer, headers={**answer.headers, **refusal_headers(error)})

    def _refused(self, error: GatewayError, wire: HttpRequest | None) -> HttpResponse:
        operation: Operation | None = None
        if wire is not None:
            try:
                operation = find(wire.method, wire.path)
            except GatewayError as misplaced:
                not_allowed = misplaced.kind is Kind.METHOD_NOT_ALLOWED
                return http_frontend.bare(405 if not_allowed else 400)
            if isinstance(operation, InferRequest):
                return http_frontend.refused_inference(
                    wire, error, lambda: self._statuses.error(error, operation)
                )
        return http_frontend.empty(self._statuses.error(error, operation), ok=False)

    def numbered(self, wire: HttpResponse) -> HttpResponse:
        """See Numbering."""
        return http_frontend.numbered(wire, self._statuses.number())

    def text_in(self, wire: HttpRequest) -> int:  # noqa: ARG002 - reading the header tells
        """Nothing is known beforehand."""
        return 0

    def json_in(self, wire: HttpRequest | HttpResponse, most: int) -> int:  # noqa: ARG002
        """There is none."""
        return 0

    def text_forwarded(self, wire: HttpResponse, asked: HttpRequest) -> int:  # noqa: ARG002
        """Nothing is compressed."""
        return 0

    def text_out(self, answer: Answer, parsed: Parsed) -> int:
        """Classes and shapes, in the units of JSON's bytes."""
        if not isinstance(answer, InferResponse):
            return 0
        return written_text(answer.outputs, parsed.reply.inference.outputs)

    def size_out(self, answer: InferResponse, parsed: Parsed) -> tuple[int, int]:
        """Headers are short, tensors are not copied."""
        return 0, self.text_out(answer, parsed)

    def text_to_backend(self, operation: InferRequest, profile: Profile) -> int:
        """Shapes, in the units of JSON's bytes."""
        del profile
        return written_text(operation.inputs, ())

    def size_to_backend(self, operation: InferRequest, profile: Profile) -> int:
        """As of ``size_out``."""
        return self.text_to_backend(operation, profile)

    # ---- towards backends

    def build_request(
        self, operation: Operation, profile: Profile, model: ModelMetadata | None = None
    ) -> HttpRequest:
        """Raises UNSUPPORTED for what the API or a path of it cannot tell, TOO_LARGE."""
        del profile
        return http_backend.build_request(operation, model)

    def parse_response(
        self,
        wire: HttpResponse,
        operation: Operation,
        limits: Limits,
        model: ModelMetadata | None = None,
    ) -> Answer:
        """Raises the backend's error, or BACKEND_GARBAGE."""
        try:
            return http_backend.parse_response(wire, operation, limits, model)
        except GatewayError as error:
            return unknown_is_not_ready(error, operation)

    # ---- where both sides speak it

    def shield(self, wire: HttpRequest, limits: Limits) -> HttpRequest | Unfinished[HttpRequest]:
        """Raises what is wrong with an inference; any other request passes once it is read."""
        operation = find(wire.method, wire.path)
        if isinstance(operation, InferRequest):
            level = self._options.level
            return http_forwarding.check(wire, operation, self._checked, level, limits)
        self.parse_request(wire, limits)
        return wire

    def sequence(self, wire: HttpRequest, limits: Limits) -> SequenceId | None:
        """By the correlation id."""
        return http_forwarding.sequence(wire, limits)

    def readdress(
        self, wire: HttpRequest, model: str, version: str, profile: Profile
    ) -> HttpRequest | None:
        """None where releases of the server differ in what they make of it."""
        del profile
        return http_forwarding.readdress(wire, model, version)

    def relabel(
        self, wire: HttpResponse, asked: HttpRequest, model: str, version: str, limits: Limits
    ) -> HttpResponse:
        """Raises the backend's error, or BACKEND_GARBAGE."""
        status = self._statuses.success
        return http_forwarding.relabel(wire, asked, model, version, status, limits)


@record
class _Reply:
    """How an inference is answered, and the form of the header after its data."""

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
    """The codec with ``level``, ``server_id`` and ``data_type`` from ``options``. Raises
    ValueError."""
    return TrtisHttp(read_options(options))
