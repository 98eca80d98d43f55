"""The operations that every frontend calls, whatever its protocol.

*Strategy.* An operation on a model finds its route by name and version, is told in the backend's
names, performed, and answered in the client's names. An operation on the server asks the backends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from infergate import __version__
from infergate.backends.base import Backend
from infergate.core.call import Call
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import (
    OPERATIONS,
    Answer,
    Health,
    InferRequest,
    ModelConfigRequest,
    ModelIndex,
    ModelIndexEntry,
    ModelIndexRequest,
    ModelMetadata,
    ModelMetadataRequest,
    ModelOperation,
    ModelReadyRequest,
    Operation,
    RawInferRequest,
    ServerLiveRequest,
    ServerMetadata,
    ServerMetadataRequest,
    ServerReadyRequest,
)
from infergate.gateway.raw import resolve_raw
from infergate.gateway.readiness import Readiness
from infergate.gateway.rename import to_backend, to_client
from infergate.routing.table import Route, RouteTable

EXTENSIONS: Final = ("binary_tensor_data", "classification", "parameters", "sequence")
"""Extensions of V2 that the gateway carries. What a model does with them is its backend's."""
_HEALTH_TIME: Final = 2.0  # seconds one backend has to say that it is ready, or what it serves
_READY: Final = Health(ok=True)


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """A route and the backend it leads to; equal only to itself, so that it can be a key."""

    route: Route
    backend: Backend

    def note(self, call: Call) -> None:
        """Tell log and metrics, and bring the deadline forward to the route's."""
        call.route = self.route.label
        call.backend = self.backend.name
        call.backend_protocol = self.backend.protocol
        call.timeout = self.route.timeout
        if self.route.timeout is not None:
            call.tighten(time.monotonic() + self.route.timeout)


class Gateway:
    """Routes operations to backends.

    ``declared`` is metadata that the operator wrote down, by the client's model name; it stands
    for what the backend would say. ``combine`` makes one readiness of all backends': ``all``
    (strict) or ``any`` (lenient).
    """

    def __init__(
        self,
        table: RouteTable,
        backends: Mapping[str, Backend],
        declared: Mapping[str, ModelMetadata],
        combine: Callable[[Sequence[bool]], bool] = all,
    ) -> None:
        self.backends: Final = tuple(backends.values())
        self.declared: Final = declared
        self.bound: Final = tuple(Bound(r, backends[r.backend]) for r in table.routes)
        self._table: Final = table
        self._of: Final = {id(bound.route): bound for bound in self.bound}
        self._combine: Final = combine
        self.readiness: Final = Readiness(self._is_ready)

    def bind(self, model: str, version: str, call: Call) -> Bound:
        """The route of ``model`` and its backend, noted on ``call``. Raises NOT_FOUND."""
        route = self._table.find(model, version)
        if route is None:
            if self._table.candidates(model):
                raise GatewayError(
                    Kind.NOT_FOUND, f"model '{model}' has no route for version '{version}'"
                )
            raise GatewayError(Kind.NOT_FOUND, f"no route for model '{model}'")
        bound = self._of[id(route)]
        bound.note(call)
        return bound

    async def perform(self, operation: Operation, call: Call) -> Answer:
        """Carry out ``operation``. Raises GatewayError."""
        match operation:
            case ServerLiveRequest():
                return Health(ok=True)
            case ServerReadyRequest():
                return Health(ok=await self.readiness.ready())
            case ServerMetadataRequest():
                return ServerMetadata("infergate", __version__, EXTENSIONS)
            case ModelIndexRequest():
                return await self._index(operation, call)
            case RawInferRequest():
                described = await self.perform(
                    ModelMetadataRequest(operation.model, operation.version), call
                )
                assert isinstance(described, ModelMetadata)
                return await self._on_model(resolve_raw(operation, described), call)
            case ModelMetadataRequest():
                return await self._metadata(operation, call)
            case ModelReadyRequest() | ModelConfigRequest() | InferRequest():
                return await self._on_model(operation, call)
            case _:
                raise GatewayError(Kind.UNSUPPORTED, f"{OPERATIONS[type(operation)]} is not served")

    async def _on_model(self, operation: ModelOperation, call: Call) -> Answer:
        bound = self.bind(operation.model, operation.version, call)
        answer = await bound.backend.perform(to_backend(operation, bound.route), call)
        return to_client(answer, operation, bound.route)

    async def _metadata(self, operation: ModelMetadataRequest, call: Call) -> Answer:
        declared = self.declared.get(operation.model)
        if declared is None:
            return await self._on_model(operation, call)
        self.bind(operation.model, operation.version, call)
        return replace(declared, name=operation.model)

    async def _is_ready(self, call: Call) -> bool:
        """Whether the backends, taken together, can serve."""
        asked = [self._ask(each, ServerReadyRequest(), call) for each in self.backends]
        return self._combine([answer == _READY for answer in await asyncio.gather(*asked)])

    async def _ask(self, backend: Backend, question: Operation, call: Call) -> Answer | None:
        """What ``backend`` answers in a short time; None where it fails or does not."""
        own = replace(call, deadline=time.monotonic() + _HEALTH_TIME, returned={})
        try:
            return await backend.perform(question, own)
        except GatewayError:
            return None

    async def _index(self, operation: ModelIndexRequest, call: Call) -> ModelIndex:
        """The models clients can name: routes to one model, and what backends list behind
        patterns (a server without an index serves models all the same)."""
        exact = [bound for bound in self.bound if bound.route.is_exact]
        open_to = {
            bound.backend.name: bound.backend
            for bound in self.bound
            if not (bound.route.is_exact or bound.route.rewrite.model)
        }
        served, listed = await asyncio.gather(
            asyncio.gather(*(self._serves(bound, operation, call) for bound in exact)),
            asyncio.gather(*(self._ask(each, operation, call) for each in open_to.values())),
        )
        entries = {
            (bound.route.pattern, bound.route.version): ModelIndexEntry(
                bound.route.pattern, bound.route.version
            )
            for bound, serves in zip(exact, served, strict=True)
            if serves
        }
        for name, answer in zip(open_to, listed, strict=True):
            for entry in answer.models if isinstance(answer, ModelIndex) else ():
                route = self._table.find(entry.name, entry.version)
                if route is not None and route.backend == name and not route.is_exact:
                    entries.setdefault((entry.name, entry.version), entry)
        return ModelIndex(tuple(entries.values()))

    async def _serves(self, bound: Bound, operation: ModelIndexRequest, call: Call) -> bool:
        """Whether a route to one model belongs in the index."""
        if not operation.ready_only:
            return True
        route = bound.route
        question = to_backend(ModelReadyRequest(route.pattern, route.version), route)
        return await self._ask(bound.backend, question, call) == _READY
