"""The admin listener: metrics and health, never reachable from the data ports."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import orjson

from infergate import __version__
from infergate.core.call import Call
from infergate.core.errors import GatewayError
from infergate.core.wire import HttpRequest, HttpResponse
from infergate.observe.metrics import Metrics

_TEXT: Final = {"content-type": "text/plain; charset=utf-8"}


class Admin:
    """``/metrics`` for Prometheus, ``/healthz`` (the process lives), ``/readyz`` (it can serve)."""

    def __init__(self, metrics: Metrics, ready: Callable[[], Awaitable[bool]]) -> None:
        self._metrics: Final = metrics
        self._ready: Final = ready

    async def respond(self, wire: HttpRequest, call: Call) -> HttpResponse:
        """Answer one admin request."""
        del call
        if wire.method not in {"GET", "HEAD"}:
            return HttpResponse(
                405, {**_TEXT, "allow": "GET, HEAD"}, [b"only GET is served here\n"]
            )
        match wire.path:
            case "/metrics":
                return HttpResponse(
                    200, {"content-type": self._metrics.content_type}, [self._metrics.text()]
                )
            case "/healthz":
                return HttpResponse(200, _TEXT, [b"ok\n"])
            case "/readyz":
                if await self._ready():
                    return HttpResponse(200, _TEXT, [b"ready\n"])
                return HttpResponse(503, _TEXT, [b"not ready\n"])
            case "/":
                about = {
                    "name": "infergate",
                    "version": __version__,
                    "paths": ["/metrics", "/healthz", "/readyz"],
                }
                return HttpResponse(
                    200, {"content-type": "application/json"}, [orjson.dumps(about)]
                )
            case _:
                return HttpResponse(404, _TEXT, [b"there are /metrics, /healthz and /readyz\n"])

    def refuse(self, error: GatewayError, wire: HttpRequest, call: Call) -> HttpResponse:
        """A request the transport turned away."""
        del wire, call
        return HttpResponse(400, _TEXT, [error.public.encode(), b"\n"])
