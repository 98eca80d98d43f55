"""Lists models and their states, under the names that clients use.

A slow backend must not delay the results of other backends. Each query has a short timeout. The
queries about all models of one response share a longer timeout, and the number of models that are
queried concurrently is limited."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from infergate.backends.base import Backend
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import (
    HealthStatus,
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
    Response,
)
from infergate.core.name_rules import NameRule, are_accepted
from infergate.core.request_context import RequestContext
from infergate.core.tensor import Parameters
from infergate.gateway.inference_gateway import InferenceGateway
from infergate.gateway.rename import to_backend
from infergate.gateway.route_binding import RouteBinding
from infergate.routing.table import Route, RouteTable

S = TypeVar("S")
T = TypeVar("T")

QUERY_TIMEOUT_SECONDS: Final = 2.0
"""Seconds within which a backend must respond to one query."""
_TOTAL_TIMEOUT_SECONDS: Final = 5.0
"""Seconds within which the queries about all models of one response must finish."""
_MAX_CONCURRENT_QUERIES: Final = 16
"""Maximum number of models that are queried concurrently for one response."""
_UNREACHABLE_KINDS: Final = frozenset({Kind.CONNECT, Kind.TIMEOUT})
"""The kinds of errors of a backend that cannot be reached."""
READY: Final = HealthStatus(ok=True)


def _query_context(context: RequestContext) -> RequestContext:
    child = context.child()
    child.shorten_deadline(time.monotonic() + QUERY_TIMEOUT_SECONDS)
    return child


async def _query_all(
    query: Callable[[S, RequestContext], Awaitable[T]], items: Iterable[S], context: RequestContext
) -> list[T]:
    """Return the results of ``query`` for ``items``, within the limits for one response."""
    shared = context.child()
    shared.shorten_deadline(time.monotonic() + _TOTAL_TIMEOUT_SECONDS)
    semaphore = asyncio.Semaphore(_MAX_CONCURRENT_QUERIES)

    async def run(item: S) -> T:
        async with semaphore:
            return await query(item, _query_context(shared))

    return await asyncio.gather(*map(run, items))


async def query_backend(
    backend: Backend, operation: Operation, context: RequestContext
) -> Response | None:
    """Return the response of ``backend`` to ``operation``, or None if the query fails or times
    out."""
    try:
        return await backend.perform(operation, _query_context(context))
    except GatewayError:
        return None


@dataclass(frozen=True, slots=True)
class _BackendIndex:
    """The models in a backend's index, and the entry for a model that is not in the index."""

    models: tuple[ModelIndexEntry, ...]
    missing_entry: ModelIndexEntry


async def _query_index(
    backend: Backend, operation: ModelIndexRequest, names: NameRule, context: RequestContext
) -> _BackendIndex:
    """Return the index of ``backend`` without entries that have invalid names."""
    try:
        response = await backend.perform(operation, _query_context(context))
    except GatewayError as error:
        state = "UNAVAILABLE" if error.kind in _UNREACHABLE_KINDS else ""
        return _BackendIndex((), ModelIndexEntry("", "", state, error.public if state else ""))
    assert isinstance(response, ModelIndex)
    missing = f"not in the repository of backend '{backend.name}'"
    usable = (entry for entry in response.models if are_accepted(names, entry.name, entry.version))
    return _BackendIndex(tuple(usable), ModelIndexEntry("", reason=missing))


class ModelCatalogue:
    """The models that clients reach through the routes of ``table``. ``bindings`` are these routes
    with their backends. ``configuration`` and ``statistics`` return the configuration and the
    statistics of one model, or raise GatewayError."""

    def __init__(
        self,
        table: RouteTable,
        bindings: Sequence[RouteBinding],
        gateway: InferenceGateway,
        configuration: Callable[[ModelConfigRequest, RequestContext], Awaitable[ModelConfig]],
        statistics: Callable[[ModelStatisticsRequest, RequestContext], Awaitable[ModelStatistics]],
    ) -> None:
        self._table: Final = table
        self._bindings: Final = bindings
        self._gateway: Final = gateway
        self._configuration: Final = configuration
        self._statistics: Final = statistics

    async def index(self, operation: ModelIndexRequest, context: RequestContext) -> ModelIndex:
        """Return every model with an exact route, and every model that a server lists and that
        matches a route with a pattern. With ``ready_only``, omit models that are not ready.

        A state that a server lists is returned unchanged. If a server lists no state, the gateway
        queries the readiness of each model with an exact route or, with ``ready_only``, of every
        model. Some servers have no index, list only names, or omit models that they serve."""
        entries, _ = await self._listed_models(operation, context)
        without_state = [
            entry
            for entry, binding in entries
            if not entry.state and (binding.route.is_exact or operation.ready_only)
        ]
        queried = await _query_all(self._with_state, without_state, context)
        by_key = {(model.name, model.version): model for model in queried}
        listed = (by_key.get((model.name, model.version), model) for model, _ in entries)
        return ModelIndex(
            tuple(model for model in listed if model.state == "READY" or not operation.ready_only)
        )

    async def _listed_models(
        self, operation: ModelIndexRequest, context: RequestContext
    ) -> tuple[list[tuple[ModelIndexEntry, RouteBinding]], list[str]]:
        """Return the listed models, under the names that clients use, with their routes, and the
        errors of backends that cannot be reached. Models with exact routes come first. Each backend
        is queried once."""
        backends = {binding.backend.name: binding.backend for binding in self._bindings}
        names = self._table.name_rule
        indexes = await asyncio.gather(
            *(_query_index(source, operation, names, context) for source in backends.values())
        )
        index_of = dict(zip(backends, indexes, strict=True))
        by_name: dict[tuple[str, str], list[ModelIndexEntry]] = {}
        for name, index in index_of.items():
            for entry in index.models:
                by_name.setdefault((name, entry.name), []).append(entry)
        entries: dict[tuple[str, str], tuple[ModelIndexEntry, RouteBinding]] = {}
        for binding in sorted(self._bindings, key=lambda binding: not binding.route.is_exact):
            route, backend_name = binding.route, binding.backend.name
            listed_entries: Sequence[ModelIndexEntry] = index_of[backend_name].models
            if route.is_exact:
                listed_entries = by_name.get((backend_name, route.backend_model(route.pattern)), ())
            client_entries = list(self._rename_for_clients(listed_entries, route))
            if route.is_exact and not client_entries:
                client_entries = [
                    replace(
                        index_of[backend_name].missing_entry,
                        name=route.pattern,
                        version=route.version,
                    )
                ]
            for entry in client_entries:
                if self._table.find(entry.name, entry.version) is route:
                    entries.setdefault((entry.name, entry.version), (entry, binding))
        errors = [source.missing_entry.reason for source in indexes if source.missing_entry.state]
        return list(entries.values()), errors

    def _rename_for_clients(
        self, entries: Iterable[ModelIndexEntry], route: Route
    ) -> Iterator[ModelIndexEntry]:
        client_model = route.client_model_lookup()
        backend_version = route.backend_version(route.version)
        for entry in entries:
            name = client_model(entry.name)
            if name is None or (backend_version and entry.version not in ("", backend_version)):
                continue
            version = route.client_version(route.version, entry.version) or route.version
            yield replace(entry, name=name, version=version)

    async def _with_state(self, entry: ModelIndexEntry, context: RequestContext) -> ModelIndexEntry:
        """Return ``entry`` with a state. If the state is missing, query the readiness of the
        model."""
        if entry.state:
            return entry
        query = ModelReadyRequest(entry.name, entry.version)
        try:
            ready = await self._gateway.perform(query, context)
        except GatewayError as error:
            return replace(entry, state="UNAVAILABLE", reason=entry.reason or error.public)
        if ready == READY:
            return replace(entry, state="READY", reason="")
        return replace(entry, state="UNAVAILABLE")

    async def versions(self, operation: ModelIndexRequest, context: RequestContext) -> ModelIndex:
        """Return the states of a model's versions. The versions come from the servers' indexes or,
        if a server lists no versions of the model, from the route or the model's metadata. Raises
        GatewayError if the query for a requested version or for the metadata fails."""
        model, version = operation.model, operation.version
        if version:
            listed = await self._listed_versions(model, version, context)
            if listed and listed[0].state:
                return ModelIndex(listed)
            ready = await self._gateway.perform(ModelReadyRequest(model, version), context)
            state = "READY" if ready == READY else "UNAVAILABLE"
            return ModelIndex((ModelIndexEntry(model, version, state),))
        routed_versions = self._routed_versions(model, context) or [""]
        lists = await asyncio.gather(
            *(self._listed_versions(model, routed, context) for routed in routed_versions)
        )
        entries = {entry.version: entry for listed in lists for entry in listed}
        for routed, listed in zip(routed_versions, lists, strict=True):
            if not listed:
                versions: Sequence[str] = (routed,)
                if not routed:
                    versions = (await self._gateway.describe(model, "", context)).versions or ("",)
                entries |= {item: ModelIndexEntry(model, item) for item in versions}
        return ModelIndex(tuple(await _query_all(self._with_state, entries.values(), context)))

    def _routed_versions(self, model: str, context: RequestContext) -> list[str]:
        """Return the versions of the routes that requests for ``model`` can use."""
        return [
            route.version
            for route in self._table.candidates(model)
            if self._table.find(model, route.version, context.headers) is route
        ]

    async def _listed_versions(
        self, model: str, version: str, context: RequestContext
    ) -> tuple[ModelIndexEntry, ...]:
        """Return the entries of ``model`` in the index of its route's server. The result is empty
        if the server lists no versions. Raises NOT_FOUND if no route matches ``version``."""
        child = _query_context(context)
        binding = self._gateway.bind(model, version, child)
        route = binding.route
        query = to_backend(ModelIndexRequest(model=model, version=version), route)
        index = await _query_index(binding.backend, query, self._table.name_rule, child)
        listed = []
        for entry in index.models:
            if entry.name == query.model and query.version in ("", entry.version):
                client_version = route.client_version(version, entry.version) or version
                if self._table.find(model, client_version, context.headers) is route:
                    listed.append(replace(entry, name=model, version=client_version))
        return tuple(listed)

    async def status(self, model: str, context: RequestContext) -> ModelStatus:
        """Return the metadata of ``model``, the state of each version, and the available
        configuration and statistics. If a route of the model accepts any version, the versions in
        the metadata are included. Raises GatewayError if the query for the metadata fails."""
        routed_versions = [route.version for route in self._table.candidates(model)]
        any_version = "" if "" in routed_versions or not routed_versions else routed_versions[0]
        metadata = await self._gateway.describe(model, any_version, context)
        versions = [version for version in routed_versions if version]
        if not any_version:
            versions += metadata.versions or [""]
        config = await self._configuration_or_empty(model, any_version, context)
        states, statistics_lists = await asyncio.gather(
            asyncio.gather(
                *(self._version_state(model, item, context) for item in dict.fromkeys(versions))
            ),
            # The empty version comes first, so that a version's own route takes precedence.
            asyncio.gather(
                *(
                    self._statistics_or_empty(ModelStatisticsRequest(model, item), context)
                    for item in sorted(set(routed_versions))
                )
            ),
        )
        statistics = {
            str(item.get("version")): item for items in statistics_lists for item in items
        }
        return ModelStatus(metadata, tuple(states), tuple(statistics.values()), config)

    async def _configuration_or_empty(
        self, model: str, version: str, context: RequestContext
    ) -> Parameters:
        try:
            query = ModelConfigRequest(model, version)
            return (await self._configuration(query, _query_context(context))).settings
        except GatewayError:
            return {}

    async def _version_state(
        self, model: str, version: str, context: RequestContext
    ) -> ModelIndexEntry:
        entry = await self._with_state(ModelIndexEntry(model, version), _query_context(context))
        return replace(entry, reason="")

    async def _statistics_or_empty(
        self, query: ModelStatisticsRequest, context: RequestContext
    ) -> tuple[Parameters, ...]:
        try:
            return (await self._statistics(query, _query_context(context))).models
        except GatewayError:
            return ()

    async def statuses(self, context: RequestContext) -> tuple[ModelStatus, ...]:
        """Return the status of every model in the index."""
        listed = await self._entries_by_model(context)
        return tuple(await _query_all(self._status_or_unavailable, listed.items(), context))

    async def statistics(self, context: RequestContext) -> ModelStatistics:
        """Return the available statistics of every model in the index."""
        listed = await self._entries_by_model(context)
        queries = (
            ModelStatisticsRequest(name, version)
            for name, entries in listed.items()
            for version in self._versions_to_query(name, entries)
        )
        results = await _query_all(self._statistics_or_empty, queries, context)
        return ModelStatistics(tuple(model for models in results for model in models))

    def _versions_to_query(self, model: str, entries: Sequence[ModelIndexEntry]) -> list[str]:
        """Return the versions to query. If a route accepts the empty version, which means all
        versions, return only the empty version; otherwise return every version in ``entries``."""
        if self._table.find(model, "") is not None:
            return [""]
        return list(dict.fromkeys(entry.version for entry in entries))

    async def _entries_by_model(self, context: RequestContext) -> dict[str, list[ModelIndexEntry]]:
        """Return the index entries by model name. Raises NO_BACKEND if there are no entries and a
        backend cannot be reached, because an empty result would mean that there are no models."""
        listed: dict[str, list[ModelIndexEntry]] = {}
        entries, errors = await self._listed_models(ModelIndexRequest(), context)
        if errors and not entries:
            raise GatewayError(Kind.NO_BACKEND, errors[0])
        for entry, _ in entries:
            listed.setdefault(entry.name, []).append(entry)
        return listed

    async def _status_or_unavailable(
        self, listed: tuple[str, Sequence[ModelIndexEntry]], context: RequestContext
    ) -> ModelStatus:
        model, entries = listed
        try:
            return await self.status(model, context)
        except GatewayError as error:
            unavailable = (
                replace(entry, state="UNAVAILABLE", reason=error.public) for entry in entries
            )
            return ModelStatus(ModelMetadata(model), tuple(unavailable))
