"""The admin listener: metrics, health, the configuration and the console, never reachable from the
data ports."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Protocol

import orjson

from infergate import __version__
from infergate.core.call import Call
from infergate.core.errors import GatewayError, Kind, retry_headers
from infergate.core.vocabulary import AUDIT, telling
from infergate.core.wire import HttpRequest, HttpResponse
from infergate.observe.exposition import Exposition
from infergate.runtime.console import visitors
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
_CONSOLE: Final = "/console"
_PATHS: Final = ("/metrics", "/healthz", "/readyz", "/config")
_SHOWING: Final = frozenset({"/", "/config"})
"""What tells of the configuration. A scrape or a probe comes by whatever name its caller has."""
_audit = logging.getLogger("infergate.audit")


class Below(Protocol):
    """What answers all below a path."""

    async def respond(self, wire: HttpRequest, call: Call) -> HttpResponse:
        """Answer one request."""
        ...


class Admin:
    """``/metrics`` for Prometheus, ``/healthz`` (the process lives), ``/readyz`` (it can serve),
    ``/config`` (which configuration serves), ``/console`` for people, and POST ``/reload`` where
    that is on."""

    def __init__(  # noqa: PLR0913 - what it tells, and what is on
        self,
        scrape: Callable[[str], Awaitable[Exposition]],
        ready: Callable[[], Awaitable[bool]],
        history: History,
        *,
        reload: bool = False,
        over: Callable[[str], None] = lambda _: None,
        console: Callable[[], Below] | None = None,
        hosts: Collection[str] = (),
    ) -> None:
        """``over`` is told which limit a request met. ``console`` makes what answers below
        ``/console``, when it is first asked for: an idle process has no use for it. ``hosts`` are
        names that may be asked for besides those that are nobody's in public."""
        self._scrape: Final = scrape
        self._ready: Final = ready
        self._history: Final = history
        self._reload: Final = reload
        self._over: Final = over
        self._make_console: Final = console
        self._console: Below | None = None
        self._hosts: Final = hosts
        self._paths: Final = (*_PATHS, _CONSOLE) if console else _PATHS

    async def respond(self, wire: HttpRequest, call: Call) -> HttpResponse:
        """Answer one admin request."""
        if wire.path == _RELOAD:
            return await self._reloaded(wire, call)
        if self._make_console is not None and _is_console(wire.path):
            if self._console is None:
                self._console = self._make_console()
            return await self._console.respond(wire, call)
        if wire.method not in {"GET", "HEAD"}:
            return _not_allowed("GET, HEAD")
        return await self._read(wire)

    async def _read(self, wire: HttpRequest) -> HttpResponse:
        if wire.path in _SHOWING and (name := visitors.unknown_host(wire.headers, self._hosts)):
            wrong = (
                f"'{name}' is no name of this listener: see listeners.admin.hosts, or ask by IP\n"
            )
            return HttpResponse(403, _TEXT, [wrong.encode("utf-8", "backslashreplace")])
        match wire.path:
            case "/metrics":
                told = await self._scrape(wire.headers.get("accept", ""))
                return await _told(told, whole=wire.method == "HEAD")
            case "/healthz":
                return HttpResponse(200, _TEXT, [b"ok\n"])
            case "/readyz":
                if await self._ready():
                    return HttpResponse(200, _TEXT, [b"ready\n"])
                return HttpResponse(503, _TEXT, [b"not ready\n"])
            case "/config":
                return _json(200, self._history.page())
            case "/" if self._make_console is not None and _is_person(wire.headers):
                return HttpResponse(303, {"location": f"{_CONSOLE[1:]}/"})
            case "/":
                return _json(200, self._about())
            case _:
                *others, last = self._paths
                there = f"there are {', '.join(others)} and {last}\n"
                return HttpResponse(404, _TEXT, [there.encode()])

    def _about(self) -> dict[str, Any]:
        return {
            "name": "infergate",
            "version": __version__,
            "paths": self._paths,
            "config": self._history.page(),
        }

    async def _reloaded(self, wire: HttpRequest, call: Call) -> HttpResponse:
        """Prometheus' statuses: 403 where it is off, 500 where the configuration is not taken."""
        if wire.method != "POST":
            return _not_allowed("POST")
        again = self._history.again
        if not self._reload or again is None:
            off = b"POST /reload is off; it is switched on by 'reload: {post: true}'\n"
            return HttpResponse(403, _TEXT, [off])
        if visitors.is_browser(wire.headers) and (
            wrong := visitors.foreign(wire.headers)
            or visitors.unknown_host(wire.headers, self._hosts)
        ):
            return HttpResponse(403, _TEXT, [f"refused: {wrong}\n".encode()])
        outcome = None
        try:
            outcome = await again(f"POST {_RELOAD}")
        finally:
            result = "cancelled" if outcome is None else "failed" if outcome.wrong else "ok"
            told = telling(AUDIT, operation="reload", peer=call.peer, outcome=result)
            _audit.info("reload peer=%s outcome=%s", call.peer, result, extra=told)
        return _json(500 if outcome.wrong else 200, self._history.page())

    def refuse(self, error: GatewayError, wire: HttpRequest, call: Call) -> HttpResponse:
        """A request the transport turned away. Its limit is counted."""
        del wire, call
        if error.limit:
            self._over(error.limit)
        headers = {**_TEXT, **retry_headers(error)}
        status = _STATUSES.get(error.kind, 400)
        return HttpResponse(status, headers, [error.public.encode(), b"\n"])


async def _told(told: Exposition, *, whole: bool) -> HttpResponse:
    """What is short is told whole, and what must be ``whole``."""
    headers = {"content-type": told.content_type}
    body, rest = list(islice(told.pieces, 2)), _Pieces(told.pieces)
    if len(body) < 2:
        return HttpResponse(200, headers, body)
    while whole and (piece := await rest.next()):
        body += piece
    return HttpResponse(200, headers, body, rest=None if whole else rest)


class _Pieces:
    """A Rest. Whoever else waits has a turn between two of them."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces: Final = pieces

    async def next(self) -> Sequence[bytes] | None:
        """See Rest."""
        await asyncio.sleep(0)
        piece = next(self._pieces, None)
        return None if piece is None else (piece,)

    async def close(self) -> None:
        """See Rest."""


def _is_console(path: str) -> bool:
    return path == _CONSOLE or path.startswith(f"{_CONSOLE}/")


def _is_person(headers: Mapping[str, str]) -> bool:
    """Whether a browser asks for something to look at."""
    return "text/html" in headers.get("accept", "")


def _json(status: int, told: Mapping[str, Any]) -> HttpResponse:
    return HttpResponse(status, _JSON, [orjson.dumps(told)])


def _not_allowed(allowed: str) -> HttpResponse:
    only = f"only {allowed.partition(',')[0]} is served here\n"
    return HttpResponse(405, {**_TEXT, "allow": allowed}, [only.encode()])
