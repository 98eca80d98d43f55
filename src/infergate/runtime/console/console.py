"""Answers what is asked below ``/console``."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import orjson

from infergate import __version__
from infergate.config import shown
from infergate.config.listeners import AdminListener
from infergate.config.mistakes import ConfigError
from infergate.config.schema import Config
from infergate.core.call import Call
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.limits import MIB
from infergate.core.names import escaped
from infergate.core.vocabulary import AUDIT, telling
from infergate.core.wire import HttpRequest, HttpResponse, joined, size
from infergate.observe.access_log import printable
from infergate.runtime.console import plan, state
from infergate.runtime.console.page import HEADERS, INDEX, page
from infergate.runtime.console.view import View
from infergate.runtime.console.visitors import foreign, unknown_host
from infergate.runtime.history import History

PATH: Final = "/console"
_ACTIONS: Final = {"/try": "try", "/try/example": "example"}
_LONGEST: Final = MIB
_AT_ONCE: Final = 8
"""Tries: no limit of clients counts them, and each may hold what a body may."""
_SHOWN: Final = 128
_audit = logging.getLogger("infergate.audit")
_JSON: Final = {"content-type": "application/json", **HEADERS}
_TEXT: Final = {"content-type": "text/plain; charset=utf-8", **HEADERS}
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
        self._acting = 0
        self._comparing: Final[dict[bool, asyncio.Task[bytes]]] = {}
        self._texts: Final[dict[bool, tuple[Config, str]]] = {}

    async def respond(self, wire: HttpRequest, call: Call) -> HttpResponse:
        """Answer a request whose path is PATH, or below it."""
        if name := unknown_host(wire.headers, self._listener.hosts):
            return _text(
                403, f"'{name}' is no name of the console: see listeners.admin.hosts, or ask by IP"
            )
        action = _ACTIONS.get(wire.path.removeprefix(PATH))
        if action is not None:
            return await self._act(action, wire, call)
        if wire.method not in {"GET", "HEAD"}:
            return _text(405, "only GET is served here", {"allow": "GET, HEAD"})
        match wire.path.removeprefix(PATH):
            case "":  # so that what the page asks for is found behind a proxy that adds a path
                return HttpResponse(303, {"location": f"{PATH[1:]}/", **HEADERS})
            case "/state":
                return await self._state()
            case "/plan":
                view = self._view
                return _json(await asyncio.to_thread(plan.plan, view.config, view.addresses))
            case "/config":
                return await self._config(defaults="defaults" in wire.query)
        found = page(wire.path.removeprefix(f"{PATH}/") or INDEX)
        return found or _text(404, "there are /console/state, /console/plan and /console/config")

    async def _act(self, action: str, wire: HttpRequest, call: Call) -> HttpResponse:
        """Carry out what the form asks for."""
        if wire.method != "POST":
            return _text(405, "only POST is served here", {"allow": "POST"})
        if not self._listener.actions:
            return _text(403, "it is off; listeners.admin.actions switches it on")
        if wrong := foreign(wire.headers):
            return _text(403, f"refused: {wrong}")
        if size(wire.body) > _LONGEST:
            return _text(413, f"more than {_LONGEST} bytes")
        outcome = "cancelled"
        asked: Any = {}
        try:
            asked = orjson.loads(joined(wire.body))
            if not isinstance(asked, dict):
                raise bad_request("expected a JSON object")
            told = await self._carry_out(action, asked)
            outcome = told.get("outcome", "ok")
        except orjson.JSONDecodeError as error:
            outcome = "refused"
            return _json({"error": f"that is not JSON: {error}"}, 400)
        except GatewayError as error:
            outcome = "refused"
            status = 503 if error.kind is Kind.OVERLOADED else 400
            return _json({"error": error.public, "kind": error.kind.value}, status)
        else:
            return _json(told)
        finally:
            asked = asked if isinstance(asked, dict) else {}
            protocol, model = (str(asked.get(k, ""))[:_SHOWN] for k in ("protocol", "model"))
            _audit.info(
                "console %s protocol=%r model=%r peer=%s outcome=%s",
                action,
                protocol,
                model,
                call.peer,
                outcome,
                extra=telling(
                    AUDIT,
                    operation=f"console {action}",
                    protocol=protocol,
                    subject=f"model={model!r}",
                    peer=call.peer,
                    outcome=outcome,
                ),
            )

    async def _carry_out(self, action: str, asked: Json) -> Json:
        if self._acting >= _AT_ONCE:
            raise GatewayError(Kind.OVERLOADED, f"{_AT_ONCE} are under way already")
        self._acting += 1
        try:
            return await self._view.carry_out(action, asked)
        finally:
            self._acting -= 1

    async def _state(self) -> HttpResponse:
        """By a thread, as far as it may be long."""
        told, ready = await asyncio.gather(self._view.recent(), self._ready())
        workers = self._view.workers
        counted = len(told) if workers.wanted == 1 else sum(r.worker is not None for r in told)
        about: Json = {
            "version": __version__,
            "time": time.time(),
            "ready": ready,
            "workers": {**workers._asdict(), "told": counted},
            "actions": {
                "reload": self._reloads and self._history.again is not None,
                "try": self._listener.actions,
                "key": bool(self._listener.keys),
            },
            "config": self._history.page(),
        }
        return await asyncio.to_thread(
            lambda: _json(
                about
                | state.figures(told)
                | {"ways": state.ways(told), "failures": state.failures(told)}
            )
        )

    async def _config(self, *, defaults: bool) -> HttpResponse:
        """By a thread: a long configuration would keep requests waiting. One at a time, whoever
        asks and goes: a reload, too, needs a thread, and the file's system may hang."""
        task = self._comparing.get(defaults)
        if task is None:
            comparing = asyncio.to_thread(lambda: _dumped(self._compared(defaults=defaults)))
            task = self._comparing[defaults] = asyncio.create_task(comparing)
            task.add_done_callback(lambda done: self._was_compared(defaults, done))
        return HttpResponse(200, _JSON, [await asyncio.shield(task)])

    def _was_compared(self, defaults: bool, task: asyncio.Task[bytes]) -> None:  # noqa: FBT001
        del self._comparing[defaults]
        if not task.cancelled():
            task.exception()  # told to those who still wait for it

    def _compared(self, *, defaults: bool) -> Json:
        config, read = self._view.config, self._history.read
        told: Json = {
            "loaded": self._shown(config, defaults=defaults),
            "source": self._history.page()["source"],
            "mistakes": [],
            "diff": "",
        }
        if read is not None and not self._history.is_of_file():
            try:
                told["diff"] = shown.difference(config, read())
            except ConfigError as error:
                told["mistakes"] = [str(each) for each in error.mistakes]
        return told

    def _shown(self, config: Config, *, defaults: bool) -> str:
        """It is remembered: of thousands of routes it takes seconds."""
        known = self._texts.get(defaults)
        if known is None or known[0] is not config:
            known = self._texts[defaults] = config, shown.shown(config, defaults=defaults)
        return known[1]


def _json(told: Mapping[str, Any], status: int = 200) -> HttpResponse:
    return HttpResponse(status, _JSON, [_dumped(told)])


def _dumped(told: Mapping[str, Any]) -> bytes:
    # a lone surrogate of a client's is no JSON, and others would hide or turn round what is read
    try:
        dumped = orjson.dumps(told)
    except TypeError:
        return orjson.dumps(_printable(told))
    if dumped.isascii() and b"\x7f" not in dumped:
        return dumped
    text = dumped.decode()
    return dumped if escaped(text) is text else orjson.dumps(_printable(told))


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return escaped(printable(value))
    if isinstance(value, Mapping):
        return {_printable(key): _printable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(each) for each in value]
    return value


def _text(status: int, text: str, headers: Mapping[str, str] | None = None) -> HttpResponse:
    return HttpResponse(status, {**_TEXT, **(headers or {})}, [f"{text}\n".encode()])
