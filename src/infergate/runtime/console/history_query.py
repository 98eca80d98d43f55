"""The JSON of ``/console/history``: counters, events, failed requests and slow requests of the last
hour, for a route, a backend, an endpoint or all traffic. This module has no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Self
from urllib.parse import parse_qs

from infergate.observe.recent_requests import ProcessSnapshot, RequestSample, newest
from infergate.runtime.console.explanations import as_json
from infergate.runtime.console.history import TrafficHistory
from infergate.runtime.console.history_totals import ALL, BACKEND, ENDPOINT, ROUTE

Json = dict[str, Any]
MAX_REQUESTS: Final = 20
"""Maximum number of failures, of client errors, and of slow requests in the JSON."""
_MAX_MINUTES: Final = 60
_MAX_FIELDS: Final = 8
_KINDS: Final = {
    frozenset[str](): ALL,
    frozenset({ROUTE}): ROUTE,
    frozenset({BACKEND}): BACKEND,
    frozenset({ENDPOINT, BACKEND}): ENDPOINT,
}
"""The kind of subject that a query with these parameters selects."""


class HistoryQuery(NamedTuple):
    """A query for the last ``minutes`` of a subject's history. ``kind`` is ``all``, ``route``,
    ``backend`` or ``endpoint``; ``backend`` is the backend of an endpoint."""

    kind: str = ALL
    name: str = ""
    backend: str = ""
    minutes: int = _MAX_MINUTES

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the query in ``text``, for example ``route=m&minutes=15``. Raises ValueError."""
        fields = parse_qs(text, keep_blank_values=True, max_num_fields=_MAX_FIELDS)
        values = {name: found[0] for name, found in fields.items()}
        digits = values.pop("minutes", str(_MAX_MINUTES))
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= 2):
            raise ValueError(f"minutes must be a number from 1 to {_MAX_MINUTES}")
        minutes = min(max(int(digits), 1), _MAX_MINUTES)
        kind = _KINDS.get(frozenset(values))
        if kind is None:
            raise ValueError("expected the parameter route or backend, or endpoint with backend")
        backend = values[BACKEND] if kind == ENDPOINT else ""
        return cls(kind, values.get(kind, ""), backend, minutes)

    def to_json(
        self, history: TrafficHistory, processes: Sequence[ProcessSnapshot], now: float
    ) -> Json:
        """Return the JSON. ``now`` is the wall-clock time in seconds since 1970."""
        since = now - self.minutes * 60
        failures = ((sample, p.worker) for p in processes for sample in p.failures)
        slowest = [(sample, p.worker) for p in processes for sample in p.slowest]
        slowest.sort(key=lambda pair: pair[0].seconds, reverse=True)
        failed = newest(filter(self._matches, failures), MAX_REQUESTS)
        events = history.events.as_json(since)
        return {
            "time": now,
            "minutes": self.minutes,
            "subject": {"kind": self.kind, "name": self.name, "backend": self.backend},
            "missing": history.missing,
            "events": [event for event in events if self._concerns(event)],
            "failed": [*map(as_json, failed)],
            "slowest": [*map(as_json, [*filter(self._matches, slowest)][:MAX_REQUESTS])],
            **history.series(self.kind, self.name, self.backend, self.minutes),
        }

    def _matches(self, pair: tuple[RequestSample, int | None]) -> bool:
        """Return whether the request belongs to this subject. A sample does not name endpoints, so
        all requests of an endpoint's backend belong to the endpoint."""
        sample, _ = pair
        match self.kind:
            case "route":
                return sample.route == self.name
            case "backend":
                return sample.backend == self.name
            case "endpoint":
                return sample.backend == self.backend
        return True

    def _concerns(self, event: Json) -> bool:
        """Return whether ``event`` belongs to this subject or to no backend. The backends of a
        route are not known here, so all events belong to each route."""
        if not event["backend"] or self.kind in {ALL, ROUTE}:
            return True
        if self.kind == BACKEND:
            return bool(event["backend"] == self.name)
        return bool((event["backend"], event["endpoint"]) == (self.backend, self.name))
