"""Which models there are and how they fare, as clients know them.

*Rule.* One slow backend does not keep the others from being told: each question has a short time,
all of a status have one together, and no more than so many are under way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from infergate.backends.base import Backend
from infergate.core.call import Call
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import (
    Answer,
    Health,
    ModelConfig,
    ModelConfigRequest,
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
from infergate.core.names import NameRule, is_accepted
from infergate.core.tensor import Parameters
from infergate.gateway.bound import Bound
from infergate.gateway.rename import to_backend
from infergate.routing.table import Route, RouteTable

ANSWER_TIME: Final = 2.0
"""Seconds a backend has to say that it is ready, or what it serves."""
_STATUS_TIME: Final = 5.0
"""Seconds for all models of a status."""
_AT_ONCE: Final = 16
"""Models of one status that are asked about at once."""
_AWAY: Final = frozenset({Kind.CONNECT, Kind.TIMEOUT})
"""What a backend fails with that is not there to be asked anything."""
READY: Final = Health(ok=True)


def _brief(call: Call) -> Call:
    """``call`` for one short question of the gateway's own."""
    own = replace(call, returned={})
    own.tighten(time.monotonic() + ANSWER_TIME)
    return own


def _together(call: Call) -> tuple[Call, asyncio.Semaphore]:
    """``call`` for many questions, and what lets some of them through at once."""
    all_told = replace(call, returned={})
    all_told.tighten(time.monotonic() + _STATUS_TIME)
    return all_told, asyncio.Semaphore(_AT_ONCE)


async def asked(backend: Backend, question: Operation, call: Call) -> Answer | None:
    """What ``backend`` answers in a short time; None where it fails or does not."""
    try:
        return await backend.perform(question, _brief(call))
    except GatewayError:
        return None


@dataclass(frozen=True, slots=True)
class _Listed:
    """What a backend lists, and what is to be said of a model that is not there."""

    models: tuple[ModelIndexEntry, ...]
    absent: ModelIndexEntry


async def _index_of(
    backend: Backend, operation: ModelIndexRequest, names: NameRule, call: Call
) -> _Listed:
    """Entries whose names no client could use are left out: a backend is not trusted with them."""
    try:
        answer = await backend.perform(operation, _brief(call))
    except GatewayError as error:
        away = "UNAVAILABLE" if error.kind in _AWAY else ""
        return _Listed((), ModelIndexEntry("", "", away, error.public if away else ""))
    if not isinstance(answer, ModelIndex):
        return _Listed((), ModelIndexEntry(""))
    missing = f"not in the repository of backend '{backend.name}'"
    usable = (each for each in answer.models if is_accepted(names, each.name, each.version))
    return _Listed(tuple(usable), ModelIndexEntry("", reason=missing))


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

    async def configuration(self, operation: ModelConfigRequest, call: Call) -> ModelConfig:
        """The configuration of one model. Raises GatewayError."""
        ...


class Catalogue:
    """The models behind ``table``, whose routes are ``bound``."""

    def __init__(self, table: RouteTable, bound: Sequence[Bound], gateway: Describing) -> None:
        self._table: Final = table
        self._bound: Final = bound
        self._gateway: Final = gateway

    async def index(self, operation: ModelIndexRequest, call: Call) -> ModelIndex:
        """The models clients can name: each of the routes to one model, whether its server lists it
        or not, and what servers list behind patterns.

        A server's word stands. Where there is none on the state of a model with a route of its own,
        or on that of any with ``ready_only``, the model is asked whether it is ready: servers have
        no index, or list names alone, or not all that they serve.
        """
        entries, _ = await self._entries(operation, call)
        all_told, gate = _together(call)
        found = await asyncio.gather(
            *(
                self._stated(entry, bound, all_told, gate)
                for entry, bound in entries
                if not entry.state and (bound.route.is_exact or operation.ready_only)
            )
        )
        stated = {(each.name, each.version): each for each in found}
        told = (stated.get((each.name, each.version), each) for each, _ in entries)
        return ModelIndex(
            tuple(each for each in told if each.state == "READY" or not operation.ready_only)
        )

    async def _entries(
        self, operation: ModelIndexRequest, call: Call
    ) -> tuple[list[tuple[ModelIndexEntry, Bound]], list[str]]:
        """What servers list in the client's names, with the route of each; routes to one model come
        first. Each backend is asked once. And what is wrong with those that cannot be reached."""
        backends = {bound.backend.name: bound.backend for bound in self._bound}
        names = self._table.names
        answers = await asyncio.gather(
            *(_index_of(each, operation, names, call) for each in backends.values())
        )
        of_backend = dict(zip(backends, answers, strict=True))
        by_name: dict[tuple[str, str], list[ModelIndexEntry]] = {}
        for name, listed in of_backend.items():
            for entry in listed.models:
                by_name.setdefault((name, entry.name), []).append(entry)
        entries: dict[tuple[str, str], tuple[ModelIndexEntry, Bound]] = {}
        for bound in sorted(self._bound, key=lambda bound: not bound.route.is_exact):
            route, backend = bound.route, bound.backend.name
            there: Sequence[ModelIndexEntry] = of_backend[backend].models
            if route.is_exact:
                there = by_name.get((backend, route.backend_model(route.pattern)), ())
            listed_here = list(self._in_clients_names(there, route))
            if route.is_exact and not listed_here:
                listed_here = [
                    replace(of_backend[backend].absent, name=route.pattern, version=route.version)
                ]
            for entry in listed_here:
                if self._table.find(entry.name, entry.version) is route:
                    entries.setdefault((entry.name, entry.version), (entry, bound))
        away = [each.absent.reason for each in answers if each.absent.state]
        return list(entries.values()), away

    def _in_clients_names(
        self, entries: Iterable[ModelIndexEntry], route: Route
    ) -> Iterator[ModelIndexEntry]:
        """Those of ``entries`` that clients may reach along ``route``."""
        client_model = route.client_models()
        wanted = route.backend_version(route.version)
        for entry in entries:
            name = client_model(entry.name)
            if name is None or (wanted and entry.version not in ("", wanted)):
                continue
            version = route.client_version(route.version, entry.version) or route.version
            yield replace(entry, name=name, version=version)

    async def _stated(
        self, entry: ModelIndexEntry, bound: Bound, call: Call, gate: asyncio.Semaphore
    ) -> ModelIndexEntry:
        """``entry`` with the state that the model itself tells."""
        question = to_backend(ModelReadyRequest(entry.name, entry.version), bound.route)
        async with gate:
            try:
                ready = await bound.backend.perform(question, _brief(call)) == READY
            except GatewayError as error:
                return replace(entry, state="UNAVAILABLE", reason=entry.reason or error.public)
        if ready:
            return replace(entry, state="READY", reason="")
        return replace(entry, state="UNAVAILABLE")

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
        config = await self._configured(model, any_version, call)
        states, counted = await asyncio.gather(
            asyncio.gather(*(self._state(model, each, call) for each in dict.fromkeys(versions))),
            # no version first: what a version's own route leads to is that version's
            asyncio.gather(*(self._counted(model, each, call) for each in sorted(set(routed)))),
        )
        statistics = {str(each.get("version")): each for of in counted for each in of}
        return ModelStatus(metadata, tuple(states), tuple(statistics.values()), config)

    async def _configured(self, model: str, version: str, call: Call) -> Parameters:
        """Nothing where it cannot be had, as :meth:`_counted`."""
        try:
            question = ModelConfigRequest(model, version)
            return (await self._gateway.configuration(question, _brief(call))).settings
        except GatewayError:
            return {}

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
        lets some of them through at once. Raises NO_BACKEND where there is none, and a backend
        cannot be reached: an empty list would say that it has no models."""
        listed: dict[str, list[ModelIndexEntry]] = {}
        entries, away = await self._entries(ModelIndexRequest(), call)
        if away and not entries:
            raise GatewayError(Kind.NO_BACKEND, away[0])
        for entry, _ in entries:
            listed.setdefault(entry.name, []).append(entry)
        return listed, *_together(call)

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
