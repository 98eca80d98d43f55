"""The admin listener: metrics, health and the configuration, never reachable from the data
ports."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import orjson

from infergate import __version__
from infergate.core.call import Call
from infergate.core.errors import GatewayError, Kind, retry_headers
from infergate.core.wire import HttpRequest, HttpResponse
from infergate.observe.exposition import Exposition
from infergate.runtime.history import History

_TEXT: Final = {"content-type": "text/plain; charset=utf-8"}
_JSON: Final = {"content-type": "application/json"}
_RELOAD: Final = "/reload"
_STATUSES: Final = {
    Kind.METHOD_NOT_ALLOWED: 405,
    Kind.TOO_LARGE: 413,
    Kind.INTERNAL: 500,
    Kind.OVERLOADED: 503,
}
_audit = logging.getLogger("infergate.audit")


class Admin:
    """``/metrics`` for Prometheus, ``/healthz`` (the process lives), ``/readyz`` (it can serve),
    ``/config`` (which configuration serves), and POST ``/reload`` where that is on."""

    def __init__(
        self,
        scrape: Callable[[str], Awaitable[Exposition]],
        ready: Callable[[], Awaitable[bool]],
        history: History,
        *,
        reload: bool = False,
        over: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``over`` is told which limit a request met."""
        self._scrape: Final = scrape
        self._ready: Final = ready
        self._history: Final = history
        self._reload: Final = reload
        self._over: Final = over

    async def respond(self, wire: HttpRequest, call: Call) -> HttpResponse:
        """Answer one admin request."""
        if wire.path == _RELOAD:
            return await self._reloaded(wire, call)
        if wire.method not in {"GET", "HEAD"}:
            return _not_allowed("GET, HEAD")
        match wire.path:
            case "/metrics":
                told = await self._scrape(wire.headers.get("accept", ""))
                return HttpResponse(200, {"content-type": told.content_type}, [told.body])
            case "/healthz":
                return HttpResponse(200, _TEXT, [b"ok\n"])
            case "/readyz":
                if await self._ready():
                    return HttpResponse(200, _TEXT, [b"ready\n"])
                return HttpResponse(503, _TEXT, [b"not ready\n"])
            case "/config":
                return _json(200, self._history.page())
            case "/":
                about = {
                    "name": "infergate",
                    "version": __version__,
                    "paths": ["/metrics", "/healthz", "/readyz", "/config"],
                    "config": self._history.page(),
                }
                return _json(200, about)
            case _:
                return HttpResponse(
                    404, _TEXT, [b"there are /metrics, /healthz, /readyz and /config\n"]
                )

    async def _reloaded(self, wire: HttpRequest, call: Call) -> HttpResponse:
        """Prometheus' statuses: 403 where it is off, 500 where the configuration is not taken."""
        if wire.method != "POST":
            return _not_allowed("POST")
        again = self._history.again
        if not self._reload or again is None:
            off = b"POST /reload is off; it is switched on by 'reload: {post: true}'\n"
            return HttpResponse(403, _TEXT, [off])
        if "origin" in wire.headers:
            # Any web page may have its reader's browser send a POST; only browsers tell where from.
            return HttpResponse(403, _TEXT, [b"not from a web page\n"])
        outcome = None
        try:
            outcome = await again(f"POST {_RELOAD}")
        finally:
            result = "cancelled" if outcome is None else "failed" if outcome.wrong else "ok"
            _audit.info("reload peer=%s outcome=%s", call.peer, result)
        return _json(500 if outcome.wrong else 200, self._history.page())

    def refuse(self, error: GatewayError, wire: HttpRequest, call: Call) -> HttpResponse:
        """A request the transport turned away. Its limit is counted."""
        del wire, call
        if error.limit:
            self._over(error.limit)
        headers = {**_TEXT, **retry_headers(error)}
        status = _STATUSES.get(error.kind, 400)
        return HttpResponse(status, headers, [error.public.encode(), b"\n"])


def _json(status: int, told: Mapping[str, Any]) -> HttpResponse:
    return HttpResponse(status, _JSON, [orjson.dumps(told)])


def _not_allowed(allowed: str) -> HttpResponse:
    only = f"only {allowed.partition(',')[0]} is served here\n"
    return HttpResponse(405, {**_TEXT, "allow": allowed}, [only.encode()])
