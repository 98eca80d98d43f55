"""The recorder of a configuration, and its control through the admin listener."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from infergate.config.recording import RecordingConfig
from infergate.core.log_events import AUDIT, with_fields
from infergate.core.request_context import RequestContext
from infergate.core.wire import HttpRequest, HttpResponse
from infergate.recording.directory import DirectorySettings
from infergate.recording.recorder import Recorder
from infergate.recording.redaction import Redaction
from infergate.runtime.admin import TEXT, json_response, not_allowed, text_response
from infergate.runtime.console import browser_checks
from infergate.runtime.recording_actions import ControlRecording, RecordingAction
from infergate.runtime.worker_group import WorkerGroup

PATHS: Final = {
    "/recording": RecordingAction.GET_STATUS,
    "/recording/start": RecordingAction.START,
    "/recording/stop": RecordingAction.STOP,
}
"""The action of each path."""
_NO_RECORDER: Final = "no process records: no route has 'record', or no worker serves yet"
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


@dataclass(frozen=True, slots=True, eq=False)
class RecordingAdmin:
    """Serves ``PATHS`` on the admin listener. ``allows_actions`` enables POST, and ``hosts`` are
    the trusted names in the Host header."""

    control: ControlRecording
    allows_actions: bool
    hosts: Collection[str]

    async def respond(self, wire: HttpRequest, context: RequestContext) -> HttpResponse:
        """Perform the action of the path, and respond with the status of every process."""
        action = PATHS.get(wire.path)
        if action is None:
            return text_response(404, f"not found; the paths are {', '.join(PATHS)}")
        is_change = action is not RecordingAction.GET_STATUS
        methods = ("POST",) if is_change else ("GET", "HEAD")
        if wire.method not in methods:
            return not_allowed(*methods)
        if rejected := browser_checks.reject_untrusted_host(wire, self.hosts, TEXT):
            return rejected
        if is_change:
            if not self.allows_actions:
                disabled = f"POST {wire.path} is disabled; 'recording: {{post: true}}' enables it"
                return text_response(403, disabled)
            if problem := browser_checks.browser_problem(wire.headers):
                return text_response(403, problem)
        processes = await self.control(action)
        if is_change:
            name = action.name.lower()
            fields = with_fields(AUDIT, operation=f"recording_{name}", peer=context.peer)
            _audit.info("recording %s peer=%s", name, context.peer, extra=fields)
        if not processes:
            return text_response(409, _NO_RECORDER)
        return json_response({"processes": processes})
