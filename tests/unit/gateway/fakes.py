"""A protocol of one line of text, and a backend that remembers: enough to test the gateway."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any

from infergate.codecs.base import Capabilities, Parsed, Peek, Profile
from infergate.codecs.profiles import GENERIC
from infergate.core.call import Call
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.limits import Limits
from infergate.core.messages import (
    Answer,
    Health,
    InferRequest,
    InferResponse,
    ModelIndex,
    ModelMetadata,
    ModelReadyRequest,
    Operation,
)
from infergate.core.sequences import SequenceId, SequenceName
from infergate.core.wire import RpcRequest, RpcResponse


def call(**fields: Any) -> Call:
    return Call(peer="test", started=time.monotonic(), **fields)


class LineCodec:
    """``infer MODEL VERSION ID`` or ``ready MODEL``; answers are ``repr`` of what they tell."""

    profiled = False
    described = False
    caps = Capabilities(frozenset(Datatype))
    streams: frozenset[str] = frozenset()
    forwards = True

    def __init__(self, name: str = "line") -> None:
        self.name = name
        self.decoded = 0

    def peek(self, wire: RpcRequest) -> Peek:
        words = wire.method.split(" ")
        if words[0] == "ready":
            return Peek(ModelReadyRequest, words[1])
        if words[0] == "infer":
            return Peek(InferRequest, words[1], words[2])
        raise bad_request("no such verb")

    def parse_request(self, wire: RpcRequest, limits: Limits) -> Parsed:
        self.decoded += 1
        peek = self.peek(wire)
        if peek.operation is ModelReadyRequest:
            return Parsed(ModelReadyRequest(peek.model))
        self.shield(wire, limits)
        return Parsed(InferRequest(peek.model, peek.version, wire.method.split(" ")[3]))

    def build_response(self, answer: Answer, parsed: Parsed) -> RpcResponse:
        return RpcResponse([repr(answer).encode()])

    def build_error(self, error: GatewayError, wire: RpcRequest | None = None) -> RpcResponse:
        return RpcResponse(code=3, details=f"{error.kind.value}: {error.public}")

    def shield(self, wire: RpcRequest, limits: Limits) -> RpcRequest:
        if "bad" in wire.method:
            raise bad_request("bad tensor")
        return wire

    def sequence(self, wire: RpcRequest, limits: Limits) -> SequenceId | None:
        return wire.metadata.get("sequence")

    def readdress(
        self, wire: RpcRequest, model: str, version: str, profile: Profile
    ) -> RpcRequest | None:
        if "odd" in wire.method:
            return None
        return replace(wire, method=f"infer {model} {version} x")

    def relabel(
        self, wire: RpcResponse, asked: RpcRequest, model: str, version: str, limits: Limits
    ) -> RpcResponse:
        if wire.code:
            raise GatewayError(Kind.BACKEND_ERROR, wire.details)
        return replace(wire, details=f"as {model or 'it said'}/{version or 'it said'}")


class Memory:
    """A backend that answers what it is told to and remembers what it was asked."""

    protocol = "memory"
    datatypes = frozenset(Datatype)
    sequences = True

    def __init__(self, name: str, answer: Answer | GatewayError | None = None) -> None:
        self.name = name
        self.answer = answer
        self.asked: list[Operation] = []
        self.description: ModelMetadata | GatewayError = ModelMetadata("m", ("1",))
        self.described: list[tuple[str, str, bool]] = []
        self.has_classes = True
        self.servers = 1
        self.profile_of_all = GENERIC

    async def perform(self, operation: Operation, call: Call) -> Answer:
        self.asked.append(operation)
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is not None:
            return self.answer
        if isinstance(operation, InferRequest):
            return InferResponse(operation.model, "7", "invented", {}, operation.inputs)
        return {"ModelIndexRequest": ModelIndex(), "ModelMetadataRequest": ModelMetadata("m")}.get(
            type(operation).__name__, Health(ok=True)
        )

    async def stream(
        self, request: InferRequest, call: Call
    ) -> AsyncGenerator[InferResponse, None]:
        answer = await self.perform(request, call)
        assert isinstance(answer, InferResponse)
        yield replace(answer, last=True)

    async def describe(
        self, model: str, version: str, call: Call, *, newer: bool = False
    ) -> ModelMetadata:
        self.described.append((model, version, newer))
        if isinstance(self.description, Exception):
            raise self.description
        return self.description

    async def everywhere(self, operation: Operation, call: Call) -> Sequence[Answer]:
        return [await self.perform(operation, call) for _ in range(self.servers)]

    async def kind(self, call: Call) -> Profile:
        return self.profile_of_all

    async def classifies(self, call: Call) -> bool:
        return self.has_classes

    async def close(self) -> None:
        pass


class Wired(Memory):
    """A backend behind the line protocol."""

    protocol = "line"

    def __init__(self, name: str, codec: LineCodec) -> None:
        super().__init__(name)
        self.codec = codec
        self.wires: list[RpcRequest] = []
        self.sequences: list[SequenceName | None] = []
        self.spreads = True
        self.reply = RpcResponse([b"as it came"])

    async def profile(self, call: Call) -> Profile:
        return GENERIC

    async def infer(
        self, wire: RpcRequest, call: Call, sequence: SequenceName | None = None
    ) -> RpcResponse:
        self.wires.append(wire)
        self.sequences.append(sequence)
        return self.reply
