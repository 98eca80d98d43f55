"""Which models there are and how they fare, as clients know them.

*Rule.* One slow backend does not keep the others from being told: each question has a short time,
all of a status have one together, and no more than so many are under way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Protocol

from infergate.backends.base import Backend
from infergate.core.call import Call
from infergate.core.errors import GatewayError
from infergate.core.messages import (
    Answer,
    Health,
    ModelIndex,
    ModelIndexEntry,
    ModelIndexRequest,
    ModelMetadata,
    ModelReadyRequest,
    ModelStatistics,
    ModelStatisticsRequest,
    ModelStatus,
    Operation,
)
from infergate.core.tensor import Parameters
from infergate.gateway.bound import Bound
from infergate.gateway.rename import to_backend
from infergate.routing.table import RouteTable

_ANSWER_TIME: Final = 2.0
"""Seconds a backend has to say that it is ready, or what it serves."""
_STATUS_TIME: Final = 5.0
"""Seconds for all models of a status."""
_AT_ONCE: Final = 16
"""Models of one status that are asked about at once."""
READY: Final = Health(ok=True)


def _brief(call: Call) -> Call:
    """``call`` for one short question of the gateway's own."""
    own = replace(call, returned={})
    own.tighten(time.monotonic() + _ANSWER_TIME)
    return own


async def asked(backend: Backend, question: Operation, call: Call) -> Answer | None:
    """What ``backend`` answers in a short time; None where it fails or does not."""
    try:
        return await backend.perform(question, _brief(call))
    except GatewayError:
        return None


class Describing(Protocol):
    """The gateway, as far as it is needed here."""

    def bind(self, model: str, version: str, call: Call) -> Bound:
        """The route of a model, noted on ``call``. Raises NOT_FOUND."""
        ...

    async def describe(self, model: str, version: str, call: Call) -> ModelMetadata:
        """The metadata of a model in the client's names. Raises GatewayError."""
        ...

    async def statistics(self, operation: ModelStatisticsRequest, call: Call) -> ModelStatistics:
        """What has been counted of one model. Raises GatewayError."""
        ...


class Catalogue:
    """The models behind ``table``, whose routes are ``bound``."""

    def __init__(self, table: RouteTable, bound: Sequence[Bound], gateway: Describing) -> None:
        self._table: Final = table
        self._bound: Final = bound
        self._gateway: Final = gateway

    async def index(self, operation: ModelIndexRequest, call: Call) -> ModelIndex:
        """The models clients can name: routes to one model, and what backends list behind
        patterns (a server without an index serves models all the same)."""
        exact = [bound for bound in self._bound if bound.route.is_exact]
        open_to = {
            bound.backend.name: bound.backend
            for bound in self._bound
            if not (bound.route.is_exact or bound.route.rewrite.model)
        }
        served, listed = await asyncio.gather(
            asyncio.gather(*(self._serves(bound, operation, call) for bound in exact)),
            asyncio.gather(*(asked(each, operation, call) for each in open_to.values())),
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
        return await asked(bound.backend, question, call) == READY

    async def status(self, model: str, call: Call) -> ModelStatus:
        """What ``model`` is, whether each of its versions is ready (those that routes name, and
        those that its metadata does), and what has been counted of them, as far as it can be had.
        Raises what keeps the metadata away."""
        routed = [route.version for route in self._table.candidates(model)]
        any_version = "" if "" in routed or not routed else routed[0]
        metadata = await self._gateway.describe(model, any_version, call)
        versions = [version for version in routed if version]
        if not any_version:
            versions += metadata.versions or [""]
        states, counted = await asyncio.gather(
            asyncio.gather(*(self._state(model, each, call) for each in dict.fromkeys(versions))),
            # no version first: what a version's own route leads to is that version's
            asyncio.gather(*(self._counted(model, each, call) for each in sorted(set(routed)))),
        )
        statistics = {str(each.get("version")): each for of in counted for each in of}
        return ModelStatus(metadata, tuple(states), tuple(statistics.values()))

    async def _state(self, model: str, version: str, call: Call) -> ModelIndexEntry:
        own = _brief(call)
        bound = self._gateway.bind(model, version, own)
        question = to_backend(ModelReadyRequest(model, version), bound.route)
        ready = await asked(bound.backend, question, own) == READY
        return ModelIndexEntry(model, version, "READY" if ready else "UNAVAILABLE")

    async def _counted(self, model: str, version: str, call: Call) -> tuple[Parameters, ...]:
        """None where they cannot be had: a client needs the rest of a status to begin at all."""
        try:
            question = ModelStatisticsRequest(model, version)
            return (await self._gateway.statistics(question, _brief(call))).models
        except GatewayError:
            return ()

    async def statuses(self, call: Call) -> tuple[ModelStatus, ...]:
        """The status of every model of the index."""
        listed, all_told, gate = await self._listed(call)
        told = (self._status_of(name, each, all_told, gate) for name, each in listed.items())
        return tuple(await asyncio.gather(*told))

    async def statistics(self, call: Call) -> ModelStatistics:
        """What has been counted of every model of the index, as far as it can be had."""
        listed, all_told, gate = await self._listed(call)
        questions = (
            ModelStatisticsRequest(name, version)
            for name, entries in listed.items()
            for version in self._versions(name, entries)
        )
        told = await asyncio.gather(
            *(self._statistics_of(question, all_told, gate) for question in questions)
        )
        return ModelStatistics(tuple(each for models in told for each in models))

    def _versions(self, model: str, listed: Sequence[ModelIndexEntry]) -> list[str]:
        """Those to ask for: none, which means all, where there is a route for that."""
        if self._table.find(model, "") is not None:
            return [""]
        return list(dict.fromkeys(entry.version for entry in listed))

    async def _statistics_of(
        self, question: ModelStatisticsRequest, call: Call, gate: asyncio.Semaphore
    ) -> tuple[Parameters, ...]:
        async with gate:
            return await self._counted(question.model, question.version, call)

    async def _listed(
        self, call: Call
    ) -> tuple[dict[str, list[ModelIndexEntry]], Call, asyncio.Semaphore]:
        """The entries of the index by name; the call that all questions about them share, and what
        lets some of them through at once."""
        index = await self.index(ModelIndexRequest(), call)
        listed: dict[str, list[ModelIndexEntry]] = {}
        for entry in index.models:
            listed.setdefault(entry.name, []).append(entry)
        all_told = replace(call, returned={})
        all_told.tighten(time.monotonic() + _STATUS_TIME)
        return listed, all_told, asyncio.Semaphore(_AT_ONCE)

    async def _status_of(
        self, model: str, listed: Sequence[ModelIndexEntry], call: Call, gate: asyncio.Semaphore
    ) -> ModelStatus:
        """:meth:`status`, or that the model is not to be had."""
        async with gate:
            try:
                return await self.status(model, _brief(call))
            except GatewayError as error:
                down = (
                    replace(entry, state="UNAVAILABLE", reason=error.public) for entry in listed
                )
                return ModelStatus(ModelMetadata(model), tuple(down))
