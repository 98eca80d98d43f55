"""Answers what is asked below ``/console``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import orjson

from infergate import __version__
from infergate.config import shown
from infergate.config.listeners import AdminListener
from infergate.config.mistakes import ConfigError
from infergate.core.call import Call
from infergate.core.wire import HttpRequest, HttpResponse
from infergate.runtime.console import plan, state
from infergate.runtime.console.view import View
from infergate.runtime.console.visitors import unknown_host
from infergate.runtime.history import History

PATH: Final = "/console"
_SAFE: Final = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
}
_JSON: Final = {"content-type": "application/json", **_SAFE}
_TEXT: Final = {"content-type": "text/plain; charset=utf-8", **_SAFE}
Json = dict[str, Any]


class Console:
    """What is below ``/console``. ``view`` is who serves, ``history`` what became of
    configurations, ``listener`` what the operator says of it."""

    def __init__(
        self,
        view: View,
        ready: Callable[[], Awaitable[bool]],
        history: History,
        listener: AdminListener,
        *,
        reloads: bool,
    ) -> None:
        """``reloads``: POST /reload is on."""
        self._view: Final = view
        self._ready: Final = ready
        self._history: Final = history
        self._listener: Final = listener
        self._reloads: Final = reloads

    async def respond(self, wire: HttpRequest, call: Call) -> HttpResponse:
        """Answer a request whose path is PATH, or below it."""
        del call
        if name := unknown_host(wire.headers, self._listener.hosts):
            return _text(
                403, f"'{name}' is no name of the console: see listeners.admin.hosts, or ask by IP"
            )
        if wire.method not in {"GET", "HEAD"}:
            return _text(405, "only GET is served here", {"allow": "GET, HEAD"})
        match wire.path.removeprefix(PATH):
            case "/state":
                return _json(await self._state())
            case "/plan":
                return _json(plan.plan(self._view.config, self._view.addresses))
            case "/config":
                return _json(await self._config())
        return _text(404, "there are /console/state, /console/plan and /console/config")

    async def _state(self) -> Json:
        view = self._view
        families, recent, ready = await asyncio.gather(
            view.families(), view.recent(), self._ready()
        )
        workers = view.workers
        told: Json = {
            "version": __version__,
            "time": time.time(),
            "ready": ready,
            "workers": {**workers._asdict(), "told": len(recent)},
            "actions": {
                "reload": self._reloads and self._history.again is not None,
                "try": self._listener.actions,
                "key": bool(self._listener.keys),
            },
            "config": self._history.page(),
        }
        return (
            told
            | state.figures(families)
            | {"ways": state.ways(recent), "failures": state.failures(recent)}
        )

    async def _config(self) -> Json:
        """By a thread: a long configuration would keep requests waiting."""
        return await asyncio.to_thread(self._compared)

    def _compared(self) -> Json:
        config, read = self._view.config, self._history.read
        told: Json = {
            "loaded": shown.shown(config),
            "whole": shown.shown(config, defaults=True),
            "source": self._history.page()["source"],
            "mistakes": [],
            "diff": "",
        }
        if read is not None:
            try:
                told["diff"] = shown.difference(config, read())
            except ConfigError as error:
                told["mistakes"] = [str(each) for each in error.mistakes]
        return told


def _json(told: Mapping[str, Any], status: int = 200) -> HttpResponse:
    # a lone surrogate of a client's is no JSON
    try:
        body = orjson.dumps(told)
    except TypeError:
        body = orjson.dumps(_printable(told))
    return HttpResponse(status, _JSON, [body])


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {_printable(key): _printable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(each) for each in value]
    return value


def _text(status: int, text: str, headers: Mapping[str, str] | None = None) -> HttpResponse:
    return HttpResponse(status, {**_TEXT, **(headers or {})}, [f"{text}\n".encode()])
