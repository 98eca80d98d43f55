"""The HTTP application below ``/console``, which serves the page and its JSON, and performs the
actions of the page: test requests and the demo."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, Final

import orjson

from infergate import __version__
from infergate.config import redacted
from infergate.config.listeners import AdminListener
from infergate.config.mistakes import ConfigError
from infergate.config.schema import Config
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.limits import MIB
from infergate.core.log_events import AUDIT, with_fields
from infergate.core.name_rules import escape_unsafe
from infergate.core.request_context import RequestContext
from infergate.core.wire import HttpRequest, HttpResponse, join_parts, total_size
from infergate.observe.access_log import printable
from infergate.runtime.config_history import ConfigHistory
from infergate.runtime.console import plan, state
from infergate.runtime.console.browser_checks import reject_untrusted_host, rejection_reason
from infergate.runtime.console.demo import DEMO, ConsoleDemo
from infergate.runtime.console.history_query import HistoryQuery
from infergate.runtime.console.history_sampler import HistorySampler
from infergate.runtime.console.page import HEADERS, INDEX, static_file
from infergate.runtime.console.shared_reading import SharedReading
from infergate.runtime.console.sources import ConsoleSource

PATH: Final = "/console"
_ACTIONS: Final = {"/try": "try", "/try/example": "example", "/try/code": "code", "/demo": DEMO}
_MAX_BODY_BYTES: Final = MIB
_MAX_CONCURRENT_ACTIONS: Final = 8
"""Maximum number of concurrent actions. Test requests are exempt from the limits of clients, and
each may hold a whole body."""
_MAX_LOGGED_CHARS: Final = 128
_audit = logging.getLogger("infergate.audit")
_JSON_HEADERS: Final = {"content-type": "application/json", **HEADERS}
_TEXT_HEADERS: Final = {"content-type": "text/plain; charset=utf-8", **HEADERS}
Json = dict[str, Any]


@dataclass(slots=True, eq=False)
class Console:
    """Responds to requests below ``/console``. ``source`` provides the data and performs actions.
    ``listener`` is the admin listener's configuration."""

    source: ConsoleSource
    is_ready: Callable[[], Awaitable[bool]]
    history: ConfigHistory
    sampler: HistorySampler
    listener: AdminListener
    _: KW_ONLY
    can_reload: bool
    demo: ConsoleDemo | None = None
    _active_actions: int = 0
    _comparisons: defaultdict[bool, SharedReading[bytes]] = field(
        default_factory=partial(defaultdict, SharedReading)
    )
    _config_texts: dict[bool, tuple[Config, str]] = field(default_factory=dict)

    async def respond(self, wire: HttpRequest, context: RequestContext) -> HttpResponse:
        """Respond to a request at ``PATH`` or below."""
        if rejected := reject_untrusted_host(wire, self.listener.hosts, _TEXT_HEADERS):
            return rejected
        action = _ACTIONS.get(wire.path.removeprefix(PATH))
        if action is not None:
            return await self._respond_to_action(action, wire, context)
        if wire.method not in {"GET", "HEAD"}:
            return _text_response(405, "method not allowed; use GET", {"allow": "GET, HEAD"})
        match wire.path.removeprefix(PATH):
            case "":  # a relative redirect works behind proxies that add a path prefix
                return HttpResponse(303, {"location": f"{PATH[1:]}/", **HEADERS})
            case "/state":
                return await self._state()
            case "/plan":
                source = self.source
                return _json_response(
                    await asyncio.to_thread(plan.plan, source.config, source.addresses)
                )
            case "/history":
                return await self._traffic_history(wire.query)
            case "/config":
                return await self._config(defaults="defaults" in wire.query)
        file = static_file(wire.path.removeprefix(f"{PATH}/") or INDEX)
        return file or _text_response(
            404,
            "not found; the paths are /console/state, /console/plan, /console/history and "
            "/console/config",
        )

    async def _respond_to_action(
        self, action: str, wire: HttpRequest, context: RequestContext
    ) -> HttpResponse:
        """Perform an action of the console, and record it in the audit log."""
        if wire.method != "POST":
            return _text_response(405, "method not allowed; use POST", {"allow": "POST"})
        if not self.listener.actions:
            return _text_response(
                403, "actions are disabled: set listeners.admin.actions to enable them"
            )
        if problem := rejection_reason(wire.headers):
            return _text_response(403, f"rejected: {problem}")
        if total_size(wire.body) > _MAX_BODY_BYTES:
            return _text_response(413, f"the body exceeds the limit of {_MAX_BODY_BYTES} bytes")
        outcome = "cancelled"
        request: Any = {}
        try:
            request = orjson.loads(join_parts(wire.body))
            if not isinstance(request, dict):
                raise bad_request("the body is not a JSON object")
            result = await self._run_action(action, request)
            outcome = result.get("outcome", "ok")
        except orjson.JSONDecodeError as error:
            outcome = "refused"
            return _json_response({"error": f"the body is not valid JSON: {error}"}, 400)
        except GatewayError as error:
            outcome = "refused"
            status = 503 if error.kind is Kind.OVERLOADED else 400
            return _json_response({"error": error.public, "kind": error.kind.value}, status)
        else:
            return _json_response(result)
        finally:
            self._log_action(action, request if isinstance(request, dict) else {}, context, outcome)

    @staticmethod
    def _log_action(action: str, request: Json, context: RequestContext, outcome: str) -> None:
        protocol, model, name = (
            str(request.get(key, ""))[:_MAX_LOGGED_CHARS] for key in ("protocol", "model", "action")
        )
        subject = f"action={name!r}" if action == DEMO else f"model={model!r}"
        _audit.info(
            "console %s %s peer=%s outcome=%s",
            action,
            subject if action == DEMO else f"protocol={protocol!r} {subject}",
            context.peer,
            outcome,
            extra=with_fields(
                AUDIT,
                operation=f"console {action}",
                protocol=protocol,
                subject=subject,
                peer=context.peer,
                outcome=outcome,
            ),
        )

    async def _run_action(self, action: str, request: Json) -> Json:
        if self._active_actions >= _MAX_CONCURRENT_ACTIONS:
            raise GatewayError(
                Kind.OVERLOADED,
                f"{_MAX_CONCURRENT_ACTIONS} console actions are already in progress",
            )
        self._active_actions += 1
        try:
            if action == DEMO:
                if self.demo is None:
                    raise bad_request(
                        "this action needs the configuration of the demo, which is not active"
                    )
                return await self.demo.perform(request)
            return await self.source.run_action(action, request)
        finally:
            self._active_actions -= 1

    async def _state(self) -> HttpResponse:
        processes, ready = await asyncio.gather(self.source.recent(), self.is_ready())
        workers = self.source.workers
        reporting = (
            len(processes)
            if workers.wanted == 1
            else sum(each.worker is not None and each.process != 0 for each in processes)
        )
        summary: Json = {
            "version": __version__,
            "time": time.time(),
            "ready": ready,
            "workers": {**workers._asdict(), "reporting": reporting},
            "actions": {
                "reload": self.can_reload and self.history.reload is not None,
                "try": self.listener.actions,
                "key": bool(self.listener.keys),
            },
            "config": self.history.as_json(),
            "demo": None if self.demo is None else self.demo.as_json(),
        }
        return await asyncio.to_thread(
            lambda: _json_response(
                summary
                | state.statistics(processes)
                | {
                    "pipelines": state.pipeline_counts(processes),
                    "failures": state.recent_failures(processes),
                }
            )
        )

    async def _traffic_history(self, text: str) -> HttpResponse:
        """Return the history of the subject in the query ``text``."""
        try:
            query = HistoryQuery.parse(text)
        except ValueError as error:
            return _json_response({"error": str(error)}, 400)
        history, processes = self.sampler.history, await self.sampler.refresh()
        return await asyncio.to_thread(
            lambda: _json_response(query.to_json(history, processes, time.time()))
        )

    async def _config(self, *, defaults: bool) -> HttpResponse:
        """Compare the configuration with the file in a thread, because the file system may hang.
        Concurrent requests share a comparison, so that threads remain for reloads."""
        compare = partial(asyncio.to_thread, self._compare, defaults=defaults)
        comparison = await self._comparisons[defaults].get(compare)
        return HttpResponse(200, _JSON_HEADERS, [comparison])

    def _compare(self, *, defaults: bool) -> bytes:
        config, read = self.source.config, self.history.read_config
        comparison: Json = {
            "loaded": self._config_text(config, defaults=defaults),
            "source": self.history.as_json()["source"],
            "mistakes": [],
            "diff": "",
        }
        if read is not None and not self.history.matches_file():
            try:
                comparison["diff"] = redacted.redacted_diff(config, read())
            except ConfigError as error:
                comparison["mistakes"] = [str(mistake) for mistake in error.mistakes]
        return _encode(comparison)

    def _config_text(self, config: Config, *, defaults: bool) -> str:
        """Return the configuration as text. The text is cached, because writing thousands of routes
        takes seconds."""
        cached = self._config_texts.get(defaults)
        if cached is None or cached[0] is not config:
            cached = self._config_texts[defaults] = (
                config,
                redacted.redacted_yaml(config, defaults=defaults),
            )
        return cached[1]


def _json_response(content: Mapping[str, Any], status: int = 200) -> HttpResponse:
    return HttpResponse(status, _JSON_HEADERS, [_encode(content)])


def _encode(content: Mapping[str, Any]) -> bytes:
    # Text from clients may have lone surrogates, which JSON cannot express. It may also have
    # invisible or bidirectional characters, which would mislead the reader.
    try:
        encoded = orjson.dumps(content)
    except TypeError:
        return orjson.dumps(_printable(content))
    if encoded.isascii() and b"\x7f" not in encoded:
        return encoded
    text = encoded.decode()
    return encoded if escape_unsafe(text) is text else orjson.dumps(_printable(content))


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return escape_unsafe(printable(value))
    if isinstance(value, Mapping):
        return {_printable(key): _printable(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(element) for element in value]
    return value


def _text_response(
    status: int, text: str, headers: Mapping[str, str] | None = None
) -> HttpResponse:
    return HttpResponse(status, {**_TEXT_HEADERS, **(headers or {})}, [f"{text}\n".encode()])
