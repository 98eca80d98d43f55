"""The HTTP application of the admin listener: metrics, health, the active configuration, reloads,
and further applications such as the console. Other listeners never serve this application."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import islice
from typing import Any, Final, Protocol

import orjson

from infergate import __version__
from infergate.core.errors import GatewayError, Kind, retry_after_headers
from infergate.core.log_events import AUDIT, with_fields
from infergate.core.request_context import RequestContext
from infergate.core.wire import NO_HEADERS, HttpRequest, HttpResponse
from infergate.observe.exposition import Exposition
from infergate.runtime.config_history import ConfigHistory
from infergate.runtime.console import browser_checks

TEXT: Final = {"content-type": "text/plain; charset=utf-8"}
"""The headers of plain-text responses."""
CONSOLE: Final = "/console"
_JSON: Final = {"content-type": "application/json"}
_RELOAD: Final = "/reload"
_STATUSES: Final = {
    Kind.METHOD_NOT_ALLOWED: 405,
    Kind.TOO_LARGE: 413,
    Kind.INTERNAL: 500,
    Kind.OVERLOADED: 503,
}
_PATHS: Final = ("/metrics", "/healthz", "/readyz", "/config")
_HOST_CHECKED_PATHS: Final = frozenset({"/", "/config"})
"""Paths that expose the configuration. Requests for these paths must have a trusted name in the
Host header. Requests for the other ``_PATHS``, for example from scrapers, may have any name."""
_audit = logging.getLogger("infergate.audit")


class SubtreeApp(Protocol):
    """An application that serves a path of the admin listener and the paths below it."""

    async def respond(self, wire: HttpRequest, context: RequestContext) -> HttpResponse: ...


@dataclass(frozen=True, slots=True, eq=False)
class AdminApp:
    """Serves ``/`` (an index), ``/metrics``, ``/healthz`` (liveness), ``/readyz`` (readiness),
    ``/config`` (the active configuration and the last reload), the paths of other applications and,
    if enabled, POST ``/reload``.

    ``count_limit`` is called with the name of the limit that a request exceeded. ``hosts`` are the
    trusted names in the Host header, in addition to IP addresses and local names. ``apps`` maps
    each further path to a function that returns the application of this path and of the paths below
    it."""

    scrape: Callable[[str], Awaitable[Exposition]]
    check_ready: Callable[[], Awaitable[bool]]
    history: ConfigHistory
    _: KW_ONLY
    allows_reload: bool = False
    count_limit: Callable[[str], None] = lambda _: None
    hosts: Collection[str] = ()
    apps: Mapping[str, Callable[[], SubtreeApp]] = field(default_factory=dict)

    @property
    def _paths(self) -> tuple[str, ...]:
        return (*_PATHS, *self.apps)

    async def respond(self, wire: HttpRequest, context: RequestContext) -> HttpResponse:
        if wire.path == _RELOAD:
            return await self._respond_reload(wire, context)
        for path, app in self.apps.items():
            if wire.path == path or wire.path.startswith(f"{path}/"):
                return await app().respond(wire, context)
        if wire.method not in {"GET", "HEAD"}:
            return not_allowed("GET", "HEAD")
        return await self._respond_read(wire)

    async def _respond_read(self, wire: HttpRequest) -> HttpResponse:
        if wire.path in _HOST_CHECKED_PATHS and (
            rejected := browser_checks.reject_untrusted_host(wire, self.hosts, TEXT)
        ):
            return rejected
        match wire.path:
            case "/metrics":
                exposition = await self.scrape(wire.headers.get("accept", ""))
                return await _exposition_response(exposition, whole=wire.method == "HEAD")
            case "/healthz":
                return text_response(200, "ok")
            case "/readyz":
                if await self.check_ready():
                    return text_response(200, "ready")
                return text_response(503, "not ready")
            case "/config":
                return json_response(self.history.as_json())
            case "/" if CONSOLE in self.apps and "text/html" in wire.headers.get("accept", ""):
                return HttpResponse(303, {"location": f"{CONSOLE[1:]}/"})
            case "/":
                index = {"name": "infergate", "version": __version__, "paths": self._paths}
                return json_response(index | {"config": self.history.as_json()})
            case _:
                *leading, last = self._paths
                return text_response(
                    404, f"not found; the paths are {', '.join(leading)} and {last}"
                )

    async def _respond_reload(self, wire: HttpRequest, context: RequestContext) -> HttpResponse:
        """Reload the configuration. Like Prometheus, respond with 403 if reloads are disabled, and
        with 500 if the configuration was rejected."""
        if wire.method != "POST":
            return not_allowed("POST")
        reload = self.history.reload
        if not self.allows_reload or reload is None:
            return text_response(403, "POST /reload is disabled; 'reload: {post: true}' enables it")
        if browser_checks.is_from_browser(wire.headers) and (
            problem := browser_checks.rejection_reason(wire.headers)
            or browser_checks.untrusted_host(wire.headers, self.hosts)
        ):
            return text_response(403, f"rejected: {problem}")
        reload_result = None
        try:
            reload_result = await reload(f"POST {_RELOAD}")
        finally:
            outcome = (
                "cancelled" if reload_result is None else "failed" if reload_result.error else "ok"
            )
            fields = with_fields(AUDIT, operation="reload", peer=context.peer, outcome=outcome)
            _audit.info("reload peer=%s outcome=%s", context.peer, outcome, extra=fields)
        return json_response(self.history.as_json(), 500 if reload_result.error else 200)

    def refuse(
        self, error: GatewayError, wire: HttpRequest, context: RequestContext
    ) -> HttpResponse:
        """Respond to a request that the transport rejected, and count the exceeded limit."""
        del wire, context
        if error.limit:
            self.count_limit(error.limit)
        status = _STATUSES.get(error.kind, 400)
        return text_response(status, error.public, retry_after_headers(error))


async def _exposition_response(exposition: Exposition, *, whole: bool) -> HttpResponse:
    """Return a response that streams ``exposition``, unless it is short or ``whole`` is set."""
    headers = {"content-type": exposition.content_type}
    pieces, remaining = list(islice(exposition.chunks, 2)), _ExpositionStream(exposition.chunks)
    if len(pieces) < 2:
        return HttpResponse(200, headers, pieces)
    while whole and (piece := await remaining.next()):
        pieces += piece
    return HttpResponse(200, headers, pieces, body_stream=None if whole else remaining)


class _ExpositionStream:
    """A BodyStream that yields to other tasks between two pieces."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces: Final = pieces

    async def next(self) -> Sequence[bytes] | None:
        await asyncio.sleep(0)
        piece = next(self._pieces, None)
        return None if piece is None else (piece,)

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""


# ---- responses, shared with the other applications


def text_response(status: int, text: str, headers: Mapping[str, str] = NO_HEADERS) -> HttpResponse:
    """Return a response whose body is the line ``text``."""
    return HttpResponse(status, {**TEXT, **headers}, [f"{text}\n".encode()])


def json_response(fields: Mapping[str, Any], status: int = 200) -> HttpResponse:
    """Return a response whose body is the JSON object ``fields``."""
    return HttpResponse(status, _JSON, [orjson.dumps(fields)])


def not_allowed(*methods: str) -> HttpResponse:
    """Return the response to a request whose method is not one of ``methods``."""
    allowed = {"allow": ", ".join(methods)}
    return text_response(405, f"method not allowed; use {' or '.join(methods)}", allowed)
