"""The HTTP application of the admin listener: metrics, health, the active configuration and the
console. It is never served on data ports."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Protocol

import orjson

from infergate import __version__
from infergate.core.errors import GatewayError, Kind, retry_after_headers
from infergate.core.log_events import AUDIT, with_fields
from infergate.core.records import EMPTY_MAPPING
from infergate.core.request_context import RequestContext
from infergate.core.wire import HttpRequest, HttpResponse
from infergate.observe.exposition import Exposition
from infergate.runtime.config_history import ConfigHistory
from infergate.runtime.console import browser_checks

_TEXT: Final = {"content-type": "text/plain; charset=utf-8"}
_JSON: Final = {"content-type": "application/json"}
_RELOAD: Final = "/reload"
_STATUSES: Final = {
    Kind.METHOD_NOT_ALLOWED: 405,
    Kind.TOO_LARGE: 413,
    Kind.INTERNAL: 500,
    Kind.OVERLOADED: 503,
}
_CONSOLE: Final = "/console"
_RECORDING: Final = "/recording"
_PATHS: Final = ("/metrics", "/healthz", "/readyz", "/config")
_HOST_CHECKED_PATHS: Final = frozenset({"/", "/config"})
"""Paths that expose the configuration. Requests for these paths must have a trusted name in the
Host header. Requests for other paths, such as those from scrapers and probes, may have any name."""
_audit = logging.getLogger("infergate.audit")


class SubtreeApp(Protocol):
    """An application that serves a path, or all paths below a prefix."""

    async def respond(self, wire: HttpRequest, context: RequestContext) -> HttpResponse: ...


NO_APPS: Final[Mapping[str, SubtreeApp]] = EMPTY_MAPPING


class AdminApp:
    """Serves ``/metrics``, ``/healthz`` (liveness), ``/readyz`` (readiness), ``/config`` (the
    active configuration), ``/console`` and, if enabled, POST ``/reload``."""

    def __init__(  # noqa: PLR0913 - dependency injection
        self,
        scrape: Callable[[str], Awaitable[Exposition]],
        check_ready: Callable[[], Awaitable[bool]],
        history: ConfigHistory,
        *,
        allows_reload: bool = False,
        count_limit: Callable[[str], None] = lambda _: None,
        make_console: Callable[[], SubtreeApp] | None = None,
        recording: SubtreeApp | None = None,
        hosts: Collection[str] = (),
        apps: Mapping[str, SubtreeApp] = NO_APPS,
    ) -> None:
        """``count_limit`` is called with the name of the limit that a request exceeded.
        ``make_console`` builds the console on its first request, to save memory. ``recording``
        serves the paths from ``/recording``, or is None. ``hosts`` are the trusted names in the
        Host header, in addition to IP addresses and local names. ``apps`` serve further paths."""
        self._scrape: Final = scrape
        self._check_ready: Final = check_ready
        self._history: Final = history
        self._allows_reload: Final = allows_reload
        self._count_limit: Final = count_limit
        self._make_console: Final = make_console
        self._console: SubtreeApp | None = None
        self._recording: Final = recording
        self._hosts: Final = hosts
        self._apps: Final = apps
        console_path = (_CONSOLE,) if make_console else ()
        recording_path = (_RECORDING,) if recording else ()
        self._paths: Final = (*_PATHS, *apps, *recording_path, *console_path)

    async def respond(self, wire: HttpRequest, context: RequestContext) -> HttpResponse:
        if wire.path == _RELOAD:
            return await self._respond_reload(wire, context)
        if (app := self._apps.get(wire.path)) is not None:
            return await app.respond(wire, context)
        if self._make_console is not None and _is_below(_CONSOLE, wire.path):
            if self._console is None:
                self._console = self._make_console()
            return await self._console.respond(wire, context)
        if self._recording is not None and _is_below(_RECORDING, wire.path):
            return await self._recording.respond(wire, context)
        if wire.method not in {"GET", "HEAD"}:
            return _not_allowed("GET, HEAD")
        return await self._respond_read(wire)

    async def _respond_read(self, wire: HttpRequest) -> HttpResponse:
        if wire.path in _HOST_CHECKED_PATHS and (
            rejected := browser_checks.reject_untrusted_host(wire, self._hosts, _TEXT)
        ):
            return rejected
        match wire.path:
            case "/metrics":
                exposition = await self._scrape(wire.headers.get("accept", ""))
                return await _exposition_response(exposition, whole=wire.method == "HEAD")
            case "/healthz":
                return HttpResponse(200, _TEXT, [b"ok\n"])
            case "/readyz":
                if await self._check_ready():
                    return HttpResponse(200, _TEXT, [b"ready\n"])
                return HttpResponse(503, _TEXT, [b"not ready\n"])
            case "/config":
                return _json_response(200, self._history.as_json())
            case "/" if self._make_console is not None and _accepts_html(wire.headers):
                return HttpResponse(303, {"location": f"{_CONSOLE[1:]}/"})
            case "/":
                return _json_response(200, self._index())
            case _:
                *leading, last = self._paths
                not_found = f"not found; the paths are {', '.join(leading)} and {last}\n"
                return HttpResponse(404, _TEXT, [not_found.encode()])

    def _index(self) -> dict[str, Any]:
        return {
            "name": "infergate",
            "version": __version__,
            "paths": self._paths,
            "config": self._history.as_json(),
        }

    async def _respond_reload(self, wire: HttpRequest, context: RequestContext) -> HttpResponse:
        """Reload the configuration. Like Prometheus, respond with 403 if reloads are disabled, and
        with 500 if the configuration was rejected."""
        if wire.method != "POST":
            return _not_allowed("POST")
        reload = self._history.reload
        if not self._allows_reload or reload is None:
            disabled = b"POST /reload is disabled; 'reload: {post: true}' enables it\n"
            return HttpResponse(403, _TEXT, [disabled])
        if browser_checks.is_from_browser(wire.headers) and (
            problem := browser_checks.rejection_reason(wire.headers)
            or browser_checks.untrusted_host(wire.headers, self._hosts)
        ):
            return HttpResponse(403, _TEXT, [f"refused: {problem}\n".encode()])
        reload_result = None
        try:
            reload_result = await reload(f"POST {_RELOAD}")
        finally:
            outcome = (
                "cancelled" if reload_result is None else "failed" if reload_result.error else "ok"
            )
            fields = with_fields(AUDIT, operation="reload", peer=context.peer, outcome=outcome)
            _audit.info("reload peer=%s outcome=%s", context.peer, outcome, extra=fields)
        return _json_response(500 if reload_result.error else 200, self._history.as_json())

    def refuse(
        self, error: GatewayError, wire: HttpRequest, context: RequestContext
    ) -> HttpResponse:
        """Respond to a request that the transport rejected, and count the exceeded limit."""
        del wire, context
        if error.limit:
            self._count_limit(error.limit)
        headers = {**_TEXT, **retry_after_headers(error)}
        status = _STATUSES.get(error.kind, 400)
        return HttpResponse(status, headers, [error.public.encode(), b"\n"])


async def _exposition_response(exposition: Exposition, *, whole: bool) -> HttpResponse:
    """Send an exposition in one piece if it is short or if ``whole`` is set. Otherwise, stream
    it."""
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
        """Do nothing, because nothing has to be released."""


def _is_below(prefix: str, path: str) -> bool:
    return path == prefix or path.startswith(f"{prefix}/")


def _accepts_html(headers: Mapping[str, str]) -> bool:
    return "text/html" in headers.get("accept", "")


def _json_response(status: int, fields: Mapping[str, Any]) -> HttpResponse:
    return HttpResponse(status, _JSON, [orjson.dumps(fields)])


def _not_allowed(allowed: str) -> HttpResponse:
    only = f"this path supports only {allowed.partition(',')[0]}\n"
    return HttpResponse(405, {**_TEXT, "allow": allowed}, [only.encode()])
