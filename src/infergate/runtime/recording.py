"""The recorder of a configuration, and its control through the admin listener."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Final

import orjson

from infergate.config.recording import RecordingConfig
from infergate.config.routes import RouteConfig
from infergate.core.log_events import AUDIT, with_fields
from infergate.core.request_context import RequestContext
from infergate.core.wire import HttpRequest, HttpResponse
from infergate.recording.directory import DirectorySettings
from infergate.recording.recorder import Recorder
from infergate.recording.redaction import Redaction
from infergate.recording.sampling import RouteObserver
from infergate.routing.table import Route
from infergate.runtime.console import browser_checks
from infergate.runtime.recording_actions import ControlRecording, RecordingAction
from infergate.runtime.worker_group import WorkerGroup

PATHS: Final = {
    "/recording": RecordingAction.GET_STATUS,
    "/recording/start": RecordingAction.START,
    "/recording/stop": RecordingAction.STOP,
}
"""The paths of the admin listener, and their actions."""
_TEXT: Final = {"content-type": "text/plain; charset=utf-8"}
_NO_RECORDER: Final = b"no process records: no route has 'record', or no worker serves yet\n"
_audit = logging.getLogger("infergate.audit")


def make_recorder(section: RecordingConfig, workers: int, group: WorkerGroup) -> Recorder:
    """Return a recorder with the settings of ``section``, for one of ``workers`` processes."""
    return Recorder(
        DirectorySettings(
            section.path,
            section.file_bytes,
            section.total_bytes,
            section.when_full == "remove_oldest",
            group.number,
            workers,
        ),
        Redaction(section.headers, section.redact.remove, section.redact.zero),
        group.metrics.recording.counters,
        is_active=section.active,
    )


def route_recorders(
    sections: Sequence[RouteConfig], routes: Sequence[Route], recorder: Recorder
) -> dict[int, RouteObserver]:
    """Return the observers of ``routes``, whose configuration is ``sections``, by position."""
    return {
        position: recorder.observer(route.label, section.record.percent)
        for position, (section, route) in enumerate(zip(sections, routes, strict=True))
        if section.record is not None
    }


class RecordingAdmin:
    """Serves the paths from ``/recording`` on the admin listener. ``allows_actions`` enables POST,
    and ``hosts`` are trusted names in the Host header."""

    def __init__(
        self, control: ControlRecording, *, allows_actions: bool, hosts: Collection[str]
    ) -> None:
        self._control: Final = control
        self._allows_actions: Final = allows_actions
        self._hosts: Final = hosts

    async def respond(self, wire: HttpRequest, context: RequestContext) -> HttpResponse:
        """Respond with the status of every process after the action."""
        action = PATHS.get(wire.path)
        if action is None:
            return HttpResponse(404, _TEXT, [f"the paths are {', '.join(PATHS)}\n".encode()])
        is_change = action is not RecordingAction.GET_STATUS
        methods = ("POST",) if is_change else ("GET", "HEAD")
        if wire.method not in methods:
            text = f"this path supports only {methods[0]}\n".encode()
            return HttpResponse(405, {**_TEXT, "allow": ", ".join(methods)}, [text])
        if rejected := browser_checks.reject_untrusted_host(wire, self._hosts, _TEXT):
            return rejected
        if is_change and (problem := self._problem(wire)):
            return HttpResponse(403, _TEXT, [problem.encode()])
        processes = await self._control(action)
        if is_change:
            name = action.name.lower()
            fields = with_fields(AUDIT, operation=f"recording_{name}", peer=context.peer)
            _audit.info("recording %s peer=%s", name, context.peer, extra=fields)
        if not processes:
            return HttpResponse(409, _TEXT, [_NO_RECORDER])
        body = orjson.dumps({"processes": list(processes)})
        return HttpResponse(200, {"content-type": "application/json"}, [body])

    def _problem(self, wire: HttpRequest) -> str:
        if not self._allows_actions:
            return f"POST {wire.path} is disabled; 'recording: {{post: true}}' enables it\n"
        if browser_checks.is_from_browser(wire.headers) and (
            problem := browser_checks.rejection_reason(wire.headers)
        ):
            return f"refused: {problem}\n"
        return ""
