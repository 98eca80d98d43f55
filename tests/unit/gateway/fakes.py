"""A protocol of one line of text, and backends that record their requests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from contexts import new_context
from infergate.codecs.base import Capabilities, ParsedRequest, Profile, RequestSummary
from infergate.codecs.profiles import GENERIC
from infergate.core import messages
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, Operation, Response
from infergate.core.request_context import RequestContext
from infergate.core.sequences import SequenceId, SequenceKey
from infergate.core.wire import RpcRequest, RpcResponse
from infergate.gateway.gateway import GatewayOptions, RoutingGateway
from infergate.gateway.inference_gateway import InferenceGateway
from infergate.routing.table import Route, RouteTable

R = TypeVar("R")


def build_gateway(
    *routes: Route, backends: Iterable[Any], declared: Any = None, **options: Any
) -> RoutingGateway:
    by_name = {backend.name: backend for backend in backends}
    return RoutingGateway(RouteTable(routes), by_name, declared or {}, GatewayOptions(**options))


async def perform(
    gateway: InferenceGateway,
    operation: Operation,
    kind: type[R],
    context: RequestContext | None = None,
) -> R:
    """Return the response to ``operation``, which must be of the type ``kind``."""
    response = await gateway.perform(operation, context or new_context())
    assert isinstance(response, kind)
    return response


class LineCodec:
    """A request is ``infer MODEL VERSION ID`` or ``ready MODEL``; its response is a ``repr``."""

    needs_profile = False
    needs_metadata = False
    capabilities = Capabilities(frozenset(Datatype))
    streaming_methods: frozenset[str] = frozenset()
    can_pass_through = True

    def __init__(self, name: str = "line") -> None:
        self.name = name
        self.decoded = 0

    def summarize(self, wire: RpcRequest) -> RequestSummary:
        words = wire.method.split(" ")
        if words[0] == "ready":
            return RequestSummary(messages.ModelReadyRequest, words[1])
        if words[0] == "infer":
            return RequestSummary(InferRequest, words[1], words[2])
        raise bad_request("no such verb")

    def parse_request(self, wire: RpcRequest, limits: Limits) -> ParsedRequest:
        self.decoded += 1
        summary = self.summarize(wire)
        if summary.operation is messages.ModelReadyRequest:
            return ParsedRequest(messages.ModelReadyRequest(summary.model))
        self.validate(wire, limits)
        return ParsedRequest(
            InferRequest(summary.model, summary.version, wire.method.split(" ")[3])
        )

    def build_response(self, response: Response, parsed: ParsedRequest) -> RpcResponse:
        return RpcResponse([repr(response).encode()])

    def build_error(self, error: GatewayError, wire: RpcRequest | None = None) -> RpcResponse:
        return RpcResponse(code=3, details=f"{error.kind.value}: {error.public}")

    def validate(self, wire: RpcRequest, limits: Limits) -> RpcRequest:
        if "bad" in wire.method:
            raise bad_request("bad tensor")
        return wire

    def sequence_of(self, wire: RpcRequest, limits: Limits) -> SequenceId | None:
        return wire.metadata.get("sequence")

    def rewrite_request(
        self, wire: RpcRequest, model: str, version: str, profile: Profile
    ) -> RpcRequest | None:
        if "odd" in wire.method:
            return None
        return replace(wire, method=f"infer {model} {version} x")

    def rewrite_response(
        self, wire: RpcResponse, request: RpcRequest, model: str, version: str, limits: Limits
    ) -> RpcResponse:
        if wire.code:
            raise GatewayError(Kind.BACKEND_ERROR, wire.details)
        return replace(wire, details=f"{model or 'unchanged'}/{version or 'unchanged'}")


class Memory:
    """A backend that returns ``answer`` or the inputs, and records its requests."""

    protocol = "memory"
    datatypes = frozenset(Datatype)
    supports_sequences = True

    def __init__(self, name: str, answer: Response | GatewayError | None = None) -> None:
        self.name = name
        self.answer = answer
        self.requests: list[Operation] = []
        self.description: ModelMetadata | GatewayError = ModelMetadata("m", ("1",))
        self.described: list[tuple[str, str, bool]] = []
        self.has_classes = True
        self.servers = 1
        self.profile_of_all = GENERIC

    async def perform(self, operation: Operation, context: RequestContext) -> Response:
        self.requests.append(operation)
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is not None:
            return self.answer
        if isinstance(operation, InferRequest):
            return InferResponse(operation.model, "7", "invented", {}, operation.inputs)
        return {
            "ModelIndexRequest": messages.ModelIndex(),
            "ModelMetadataRequest": ModelMetadata("m"),
        }.get(type(operation).__name__, messages.HealthStatus(ok=True))

    async def stream(
        self, request: InferRequest, context: RequestContext
    ) -> AsyncGenerator[InferResponse, None]:
        answer = await self.perform(request, context)
        assert isinstance(answer, InferResponse)
        yield replace(answer, is_last=True)

    async def describe(
        self, model: str, version: str, context: RequestContext, *, refresh: bool = False
    ) -> ModelMetadata:
        self.described.append((model, version, refresh))
        if isinstance(self.description, Exception):
            raise self.description
        return self.description

    async def perform_on_all(
        self, operation: Operation, context: RequestContext
    ) -> Sequence[Response]:
        return [await self.perform(operation, context) for _ in range(self.servers)]

    async def server_profile(self, context: RequestContext) -> Profile:
        return self.profile_of_all

    async def supports_classification(self, context: RequestContext) -> bool:
        return self.has_classes

    async def close(self) -> None:
        pass


class WireBackend(Memory):
    """A backend whose servers use the line protocol."""

    protocol = "line"

    def __init__(self, name: str, codec: LineCodec) -> None:
        super().__init__(name)
        self.codec = codec
        self.sent: list[RpcRequest] = []
        self.sequences: list[SequenceKey | None] = []
        self.has_several_endpoints = True
        self.has_queue = False
        self.reply = RpcResponse([b"from the server"])

    fixed_profile = None

    async def request_profile(self, context: RequestContext) -> Profile:
        return GENERIC

    async def infer(
        self, wire: RpcRequest, context: RequestContext, sequence: SequenceKey | None = None
    ) -> RpcResponse:
        self.sent.append(wire)
        self.sequences.append(sequence)
        return self.reply
