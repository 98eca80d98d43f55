"""The contract of a backend: canonical operation in, canonical answer out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol, runtime_checkable

from infergate.codecs.base import Profile
from infergate.core.call import Call
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.figures import EndpointFigures, PlaceFigures
from infergate.core.messages import Answer, InferRequest, InferResponse, ModelMetadata, Operation


class Backend(Protocol):
    """Something that serves models."""

    @property
    def name(self) -> str:
        """The operator's name for it."""
        ...

    @property
    def protocol(self) -> str:
        """The registry's name of what it speaks."""
        ...

    @property
    def datatypes(self) -> frozenset[Datatype]:
        """What it can be sent."""
        ...

    @property
    def sequences(self) -> bool:
        """Whether it may be sent requests of sequences."""
        ...

    async def perform(self, operation: Operation, call: Call) -> Answer:
        """Carry out ``operation`` before ``call.deadline``. A model that ``call`` has declared is
        believed to be so. Raises GatewayError."""
        ...

    def stream(self, request: InferRequest, call: Call) -> AsyncGenerator[InferResponse, None]:
        """All answers to ``request``, each made when it is pulled, before ``call.deadline``; its
        end is the end. Closing it gives up the rest. Raises GatewayError."""
        ...

    async def describe(
        self, model: str, version: str, call: Call, *, newer: bool = False
    ) -> ModelMetadata:
        """The metadata of a model with its ``max_batch_size``, where that can be told, as it was in
        the last minute; ``newer``: in the last second. Raises GatewayError."""
        ...

    async def everywhere(self, operation: Operation, call: Call) -> Sequence[Answer]:
        """Carry out ``operation`` on each of its servers, all at once; the answers in their order,
        at least one. Raises GatewayError when all have ended and one has failed: the first one's,
        which tells how many."""
        ...

    async def kind(self, call: Call) -> Profile:
        """What is known of its servers. Raises GatewayError."""
        ...

    async def classifies(self, call: Call) -> bool:
        """Whether it answers with classes where an inference asks for them. Raises GatewayError."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


@runtime_checkable
class Watched(Protocol):
    """What a backend has besides whose servers are elsewhere."""

    @property
    def ready(self) -> bool | None:
        """Whether any of them can serve, as far as they are asked now and then; None: they are not,
        or not yet."""
        ...

    def start(self) -> None:
        """Look after its endpoints from now on, until it is closed. It may be told so again."""
        ...

    def figures(self) -> Sequence[EndpointFigures]:
        """What is known of its endpoints."""
        ...


@runtime_checkable
class Bounded(Protocol):
    """What a backend has besides that may be sent no more than so many inferences at once."""

    @property
    def places(self) -> PlaceFigures | None:
        """None: as many as come."""
        ...


def named(error: GatewayError, backend: str) -> GatewayError:
    """``error`` told with the name of the backend it came about with. What the gateway has no
    memory for is not about a backend."""
    ours = error.kind is Kind.OVERLOADED and error.origin is Origin.GATEWAY
    return GatewayError(
        error.kind,
        error.public if ours else f"backend '{backend}': {error.public}",
        origin=error.origin,
        detail=error.detail,
        retry_after=error.retry_after,
        limit=error.limit,
    )


def several(errors: Sequence[GatewayError], count: int, backend: str) -> GatewayError:
    """The first of ``errors``, telling how many of ``count`` endpoints of ``backend`` failed."""
    first = errors[0]
    if count == 1:
        return first
    return GatewayError(
        first.kind,
        f"{len(errors)} of {count} endpoints of backend '{backend}' failed: {first.public}",
        origin=first.origin,
        detail="; ".join(f"{each.public} {each.detail}" for each in errors),
        retry_after=first.retry_after,
        limit=first.limit,
    )


def read_wrong(error: GatewayError, backend: str) -> GatewayError:
    """What was raised while reading an answer of ``backend``: named if it is about the answer,
    as it is if it is what the backend said."""
    return named(error, backend) if error.kind is Kind.BACKEND_GARBAGE else error
