"""Recent events that may explain a change of the traffic: reloads, drains, restarts of workers, and
endpoints that were ejected or failed their health checks. The console shows these events."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any, Final

MAX_EVENTS: Final = 300
"""Maximum number of gateway events, and of endpoint events. The two kinds are stored separately, so
that many failing endpoints do not displace the reload that may be the cause."""
MAX_DIFF_CHARS: Final = 16 * 1024
_MAX_TEXT_CHARS: Final = 1024


@dataclass(slots=True)
class GatewayEvent:
    """An event. ``monotonic_time`` and ``time`` are its times on the monotonic clock and the wall
    clock. Only the events of endpoints have a ``backend`` and an ``endpoint``."""

    monotonic_time: float
    time: float
    kind: str
    """``start``, ``reload``, ``reload_failed``, ``drain``, ``worker_ended``, ``worker_started``,
    ``worker_hung``, ``worker_responds``, ``ejected``, ``down`` or ``up``."""
    text: str
    backend: str = ""
    endpoint: str = ""
    diff: str = ""
    """The change of the configuration without secrets, as a unified diff."""


class GatewayEvents:
    """The last ``MAX_EVENTS`` events of the gateway and the last ``MAX_EVENTS`` events of its
    endpoints, with at most about 5 MB of text."""

    def __init__(self) -> None:
        self._gateway: Final[deque[GatewayEvent]] = deque(maxlen=MAX_EVENTS)
        self._endpoints: Final[deque[GatewayEvent]] = deque(maxlen=MAX_EVENTS)
        self.add("start", "infergate started")

    def add(
        self, kind: str, text: str, backend: str = "", endpoint: str = "", diff: str = ""
    ) -> GatewayEvent:
        """Add an event that happens now, and return it."""
        text = text if len(text) <= _MAX_TEXT_CHARS else f"{text[:_MAX_TEXT_CHARS]}…"
        now = time.monotonic(), time.time()
        event = GatewayEvent(*now, kind, text, backend, endpoint, _shorten(diff))
        (self._endpoints if backend else self._gateway).append(event)
        return event

    def set_clock(self, now: float, monotonic_time: float) -> None:
        """Correct the times of all events after the wall clock was set. At ``monotonic_time``, the
        wall clock shows ``now``."""
        for event in [*self._gateway, *self._endpoints]:
            event.time = now - monotonic_time + event.monotonic_time

    def as_json(self, since: float) -> list[dict[str, Any]]:
        """Return the events since the wall-clock time ``since``. The newest event comes first."""
        events = [*self._gateway, *self._endpoints]
        events.sort(key=lambda event: event.monotonic_time)
        recent = [asdict(event) for event in reversed(events) if event.time >= since]
        for fields in recent:
            del fields["monotonic_time"]
        return recent


def _shorten(diff: str) -> str:
    if len(diff) <= MAX_DIFF_CHARS:
        return diff
    return f"{diff[:MAX_DIFF_CHARS]}\n… the rest of the difference was dropped"
