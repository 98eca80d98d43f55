"""Probes addresses: detects protocols, groups the protocols by server, and describes the models.

*Rule 1.* Every attempt has a timeout, at most ``MAX_CONCURRENT`` attempts run at a time, and at
most ``MAX_MODELS`` models of a server are described. The codecs and ``LIMITS`` limit the size of
every response.
*Rule 2.* Connections are closed after each attempt to detect a protocol, and after the models of a
server have been described over a protocol, because some servers (graphpipe-py) serve only one
connection at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from infergate.assembly.backends import make_remote_backend
from infergate.backends.remote import RemoteBackend
from infergate.config.fields import FILES, FOLDER
from infergate.config.schema import Config
from infergate.config.tracked_files import TrackedFiles
from infergate.config.values import Url
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import MIB, Limits
from infergate.core.messages import ModelIndex
from infergate.core.request_context import RequestContext
from infergate.core.tls_settings import ClientTls
from infergate.migration.probe.findings import (
    DetectedProtocol,
    ProbedModel,
    ProbedServer,
    ProbeFindings,
    TargetFindings,
    group_servers,
    preference,
)
from infergate.migration.probe.identification import identification_of
from infergate.migration.probe.options import ProbeOptions
from infergate.migration.probe.targets import (
    PortProblem,
    ProbeTarget,
    port_problem,
    tls_problem,
)
from infergate.terminal import Progress
from infergate.transport.base import Address

MAX_CONCURRENT: Final = 16
MAX_MODELS: Final = 1000
MAX_TIMEOUTS: Final = 3
"""Number of timeouts after which no further models of a server are described over the same
protocol."""
LIMITS: Final = Limits(body=16 * MIB, json=16 * MIB)
_BACKEND: Final = "server"
_READY: Final = frozenset({"", "READY", "UNKNOWN"})
"""The states of models whose metadata is requested."""
_CREDENTIAL_PROBLEMS: Final = {
    Kind.UNAUTHENTICATED: "the server requires credentials",
    Kind.FORBIDDEN: "the server rejects these credentials",
}
_T = TypeVar("_T")


class Prober:
    """Probes addresses with ``options``, and shows progress on a terminal."""

    def __init__(self, options: ProbeOptions) -> None:
        self._options: Final = options
        self._slots: Final = asyncio.Semaphore(MAX_CONCURRENT)

    async def probe(self, targets: Sequence[ProbeTarget]) -> ProbeFindings:
        """Detect the protocols of ``targets`` concurrently, then describe each server."""
        if not targets:
            return ProbeFindings((), ())
        with Progress("detecting protocols", len(targets)) as progress:
            work = (_with_progress(self._probe_target(item), progress) for item in targets)
            results = await asyncio.gather(*work)
        groups = group_servers([item for findings in results for item in findings.detected])
        servers = [await self._describe_server(group) for group in groups]
        return ProbeFindings(results, _without_wrong_guesses(servers))

    # ---- protocols

    async def _probe_target(self, target: ProbeTarget) -> TargetFindings:
        timeout = self._options.timeout
        problem = await port_problem(target, timeout)
        if problem is None and target.is_tls:
            problem = await tls_problem(target, self._options.tls, timeout)
        if problem is not None:
            return TargetFindings(target, problem=problem)
        findings = await self._try_candidates(target, tls=target.is_tls)
        if findings.detected or target.is_tls or not target.url.host:
            return findings
        if await tls_problem(target, ClientTls(verify=False), timeout) is not None:
            return findings
        if target.url.scheme:
            address = str(Address(target.url.host, target.port))
            advice = f"use https://{address} or grpcs://{address}"
            return replace(findings, problem=PortProblem("the port expects TLS", advice))
        problem = await tls_problem(target, self._options.tls, timeout)
        if problem is not None:
            return replace(findings, problem=problem)
        return await self._try_candidates(target, tls=True)

    async def _try_candidates(self, target: ProbeTarget, *, tls: bool) -> TargetFindings:
        attempts: dict[str, str] = {}
        rejected: Kind | None = None
        for candidates in target.candidates(tls=tls):
            results = await asyncio.gather(*(self._identify(*each) for each in candidates))
            if detected := [item for item in results if isinstance(item, DetectedProtocol)]:
                detected.sort(key=lambda item: preference(item.protocol))
                return TargetFindings(target, detected)
            for (name, _), error in zip(candidates, results, strict=True):
                assert isinstance(error, GatewayError)
                attempts[name] = f"{error.public}: {error.detail}" if error.detail else error.public
                rejected = error.kind if error.kind in _CREDENTIAL_PROBLEMS else rejected
        if rejected is not None:
            problem = PortProblem(
                _CREDENTIAL_PROBLEMS[rejected],
                "pass credentials, for example with --header 'authorization: Bearer …'",
            )
        else:
            problem = PortProblem(
                "the port is open, but speaks no protocol that infergate knows",
                "check that this is not a metrics port or the port of another program; a GraphPipe "
                "server without metadata cannot be detected: declare its model under 'models'",
            )
        return TargetFindings(target, (), problem, attempts)

    async def _identify(self, protocol: str, url: Url) -> DetectedProtocol | GatewayError:
        try:
            async with self._slots, self._backend(protocol, url) as backend:
                server = await identification_of(protocol)(backend, self._context())
        except GatewayError as error:
            return error
        models = None if server.index is None else states_of(server.index)
        return DetectedProtocol(protocol, url, server.name, server.version, models)

    # ---- models

    async def _describe_server(self, group: Sequence[DetectedProtocol]) -> ProbedServer:
        states: dict[str, str] = {}
        for item in group:
            for name, state in (item.models or {}).items():
                states[name] = states.get(name) or state
        if all(item.models is None for item in group):
            states = dict.fromkeys(self._options.models, "")
        names = list(states)[:MAX_MODELS]
        models = [ProbedModel(name, states[name], problem=_unready(states[name])) for name in names]
        with Progress(f"describing the models of {group[0].server}", len(names)) as progress:
            for item in group:
                missing = [m for m in models if m.metadata is None and m.state in _READY]
                if missing:
                    described = await self._describe_models(item, missing, progress)
                    models = [described.get(model.name, model) for model in models]
        first = group[0]
        return ProbedServer(first.server, first.version, group, models, len(states) - len(names))

    async def _describe_models(
        self, item: DetectedProtocol, models: Sequence[ProbedModel], progress: Progress
    ) -> dict[str, ProbedModel]:
        timeouts = 0

        async def describe(backend: RemoteBackend[Any, Any], model: ProbedModel) -> ProbedModel:
            nonlocal timeouts
            async with self._slots:
                if timeouts >= MAX_TIMEOUTS:
                    return replace(model, problem="not requested: the server does not respond")
                try:
                    metadata = await backend.describe(model.name, "", self._context())
                except GatewayError as error:
                    timeouts += error.kind is Kind.TIMEOUT
                    return replace(model, problem=_metadata_problem(error))
            if not (metadata.inputs or metadata.outputs):
                return replace(model, problem="the server reports neither inputs nor outputs")
            return replace(model, metadata=metadata, source=item.protocol, problem="")

        async with self._backend(item.protocol, item.url) as backend:
            work = (_with_progress(describe(backend, model), progress) for model in models)
            return {model.name: model for model in await asyncio.gather(*work)}

    # ---- backends

    def _context(self) -> RequestContext:
        deadline = time.monotonic() + self._options.timeout
        return RequestContext("probe", deadline, headers=self._options.headers)

    @asynccontextmanager
    async def _backend(
        self, protocol: str, url: Url
    ) -> AsyncGenerator[RemoteBackend[Any, Any], None]:
        """Yield a backend that sends requests to ``url``, and close its connections afterwards."""
        section = self._options.backend_section(protocol, url) | {
            "timeout": f"{self._options.timeout * 1000:.0f}ms",
            "dns_refresh": 0,
            "outliers": {"consecutive_errors": 0},
            "forward_headers": tuple(self._options.headers),
        }
        document = {
            "backends": {_BACKEND: section},
            "routes": ({"model": "*", "backend": _BACKEND},),
        }
        config = Config.model_validate(document, context={FOLDER: Path(), FILES: TrackedFiles()})
        backend = make_remote_backend(_BACKEND, config, LIMITS)
        try:
            yield backend
        finally:
            await backend.close()


def states_of(index: ModelIndex) -> dict[str, str]:
    """Return the state of each model. A ready version makes the model ready."""
    states: dict[str, str] = {}
    for entry in index.models:
        if entry.name not in states or states[entry.name] not in _READY:
            states[entry.name] = entry.state
    return states


def _without_wrong_guesses(servers: Sequence[ProbedServer]) -> list[ProbedServer]:
    """If a server has a model named by the operator, remove the model from the servers that do not
    have it."""
    described = {m.name for server in servers for m in server.models if m.metadata is not None}

    def is_own(server: ProbedServer, model: ProbedModel) -> bool:
        listed = any(model.name in (item.models or ()) for item in server.protocols)
        return listed or model.metadata is not None or model.name not in described

    return [
        replace(server, models=[model for model in server.models if is_own(server, model)])
        for server in servers
    ]


def _unready(state: str) -> str:
    return "" if state in _READY else f"the model is {state}"


def _metadata_problem(error: GatewayError) -> str:
    if error.kind is Kind.UNSUPPORTED:  # the error's text is for clients of a gateway
        return "the server does not provide the model's metadata"
    return error.public.removeprefix(f"backend '{_BACKEND}': ")


async def _with_progress(work: Awaitable[_T], progress: Progress) -> _T:
    try:
        return await work
    finally:
        progress.step()
