"""The HTTP application below ``/console``: the page, its JSON, and test requests."""

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
"""Test requests are not subject to the limits of clients, and each may hold a whole body."""
_SHOWN: Final = 128
_audit = logging.getLogger("infergate.audit")
_JSON: Final = {"content-type": "application/json", **HEADERS}
_TEXT: Final = {"content-type": "text/plain; charset=utf-8", **HEADERS}
Json = dict[str, Any]


class Console:
    """Responds to requests below ``/console``. ``source`` provides the data and performs actions,
    ``history`` knows the active configuration and the last reload, and ``listener`` is the admin
    listener's configuration."""

    def __init__(
        self,
        view: View,
        ready: Callable[[], Awaitable[bool]],
        history: History,
        listener: AdminListener,
        *,
        reloads: bool,
    ) -> None:
        """``can_reload``: ``POST /reload`` is enabled."""
        self._view: Final = view
        self._ready: Final = ready
        self._history: Final = history
        self._listener: Final = listener
        self._reloads: Final = reloads
        self._acting = 0
        self._comparing: Final[dict[bool, asyncio.Task[bytes]]] = {}
        self._texts: Final[dict[bool, tuple[Config, str]]] = {}

    async def respond(self, wire: HttpRequest, call: Call) -> HttpResponse:
        """Respond to a request whose path is ``PATH`` or below it."""
        if name := unknown_host(wire.headers, self._listener.hosts):
            return _text(
                403,
                f"host '{name}' is not allowed: add it to listeners.admin.hosts, or use the "
                "listener's IP address",
            )
        action = _ACTIONS.get(wire.path.removeprefix(PATH))
        if action is not None:
            return await self._act(action, wire, call)
        if wire.method not in {"GET", "HEAD"}:
            return _text(405, "method not allowed; use GET", {"allow": "GET, HEAD"})
        match wire.path.removeprefix(PATH):
            case "":  # relative, so that the page also works behind a proxy that adds a path prefix
                return HttpResponse(303, {"location": f"{PATH[1:]}/", **HEADERS})
            case "/state":
                return await self._state()
            case "/plan":
                view = self._view
                return _json(await asyncio.to_thread(plan.plan, view.config, view.addresses))
            case "/config":
                return await self._config(defaults="defaults" in wire.query)
        file = page(wire.path.removeprefix(f"{PATH}/") or INDEX)
        return file or _text(
            404, "not found; the paths are /console/state, /console/plan and /console/config"
        )

    async def _act(self, action: str, wire: HttpRequest, call: Call) -> HttpResponse:
        """Perform an action of the console, and write it to the audit log."""
        if wire.method != "POST":
            return _text(405, "method not allowed; use POST", {"allow": "POST"})
        if not self._listener.actions:
            return _text(403, "actions are disabled: set listeners.admin.actions to enable them")
        if problem := foreign(wire.headers):
            return _text(403, f"rejected: {problem}")
        if size(wire.body) > _LONGEST:
            return _text(413, f"the body has more than {_LONGEST} bytes")
        outcome = "cancelled"
        request: Any = {}
        try:
            request = orjson.loads(joined(wire.body))
            if not isinstance(request, dict):
                raise bad_request("expected a JSON object")
            result = await self._carry_out(action, request)
            outcome = result.get("outcome", "ok")
        except orjson.JSONDecodeError as error:
            outcome = "refused"
            return _json({"error": f"the body is not valid JSON: {error}"}, 400)
        except GatewayError as error:
            outcome = "refused"
            status = 503 if error.kind is Kind.OVERLOADED else 400
            return _json({"error": error.public, "kind": error.kind.value}, status)
        else:
            return _json(result)
        finally:
            request = request if isinstance(request, dict) else {}
            protocol, model = (str(request.get(k, ""))[:_SHOWN] for k in ("protocol", "model"))
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
            raise GatewayError(Kind.OVERLOADED, f"{_AT_ONCE} test requests are in flight already")
        self._acting += 1
        try:
            return await self._view.carry_out(action, asked)
        finally:
            self._acting -= 1

    async def _state(self) -> HttpResponse:
        """Build the JSON in a thread, because it may be long."""
        processes, ready = await asyncio.gather(self._view.recent(), self._ready())
        workers = self._view.workers
        reported = (
            len(processes)
            if workers.wanted == 1
            else sum(process.worker is not None for process in processes)
        )
        summary: Json = {
            "version": __version__,
            "time": time.time(),
            "ready": ready,
            "workers": {**workers._asdict(), "told": reported},
            "actions": {
                "reload": self._reloads and self._history.again is not None,
                "try": self._listener.actions,
                "key": bool(self._listener.keys),
            },
            "config": self._history.page(),
        }
        return await asyncio.to_thread(
            lambda: _json(
                summary
                | state.figures(processes)
                | {"ways": state.ways(processes), "failures": state.failures(processes)}
            )
        )

    async def _config(self, *, defaults: bool) -> HttpResponse:
        """Compare with the file in a thread, because a long configuration takes long. There is one
        comparison at a time, even if clients disconnect and retry: the file system may hang, and a
        reload needs a thread, too."""
        task = self._comparing.get(defaults)
        if task is None:
            comparing = asyncio.to_thread(lambda: _dumped(self._compared(defaults=defaults)))
            task = self._comparing[defaults] = asyncio.create_task(comparing)
            task.add_done_callback(lambda done: self._was_compared(defaults, done))
        return HttpResponse(200, _JSON, [await asyncio.shield(task)])

    def _was_compared(self, defaults: bool, task: asyncio.Task[bytes]) -> None:  # noqa: FBT001
        del self._comparing[defaults]
        if not task.cancelled():
            task.exception()  # those that still wait for the task get it

    def _compared(self, *, defaults: bool) -> Json:
        config, read = self._view.config, self._history.read
        comparison: Json = {
            "loaded": self._shown(config, defaults=defaults),
            "source": self._history.page()["source"],
            "mistakes": [],
            "diff": "",
        }
        if read is not None and not self._history.is_of_file():
            try:
                comparison["diff"] = shown.difference(config, read())
            except ConfigError as error:
                comparison["mistakes"] = [str(mistake) for mistake in error.mistakes]
        return comparison

    def _shown(self, config: Config, *, defaults: bool) -> str:
        """Cached, because it takes seconds for thousands of routes."""
        cached = self._texts.get(defaults)
        if cached is None or cached[0] is not config:
            cached = self._texts[defaults] = config, shown.shown(config, defaults=defaults)
        return cached[1]


def _json(told: Mapping[str, Any], status: int = 200) -> HttpResponse:
    return HttpResponse(status, _JSON, [_dumped(told)])


def _dumped(told: Mapping[str, Any]) -> bytes:
    # Text from clients may have lone surrogates, which JSON cannot express, and invisible or
    # bidirectional characters, which would mislead the reader.
    try:
        encoded = orjson.dumps(told)
    except TypeError:
        return orjson.dumps(_printable(told))
    if encoded.isascii() and b"\x7f" not in encoded:
        return encoded
    text = encoded.decode()
    return encoded if escaped(text) is text else orjson.dumps(_printable(told))


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return escaped(printable(value))
    if isinstance(value, Mapping):
        return {_printable(key): _printable(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(element) for element in value]
    return value


def _text(status: int, text: str, headers: Mapping[str, str] | None = None) -> HttpResponse:
    return HttpResponse(status, {**_TEXT, **(headers or {})}, [f"{text}\n".encode()])
