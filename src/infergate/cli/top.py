"""``infergate top``: rates, errors and latencies of a running gateway by route and backend."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from infergate.cli.admin_client import Json, get_json
from infergate.cli.command import Arguments
from infergate.cli.output import (
    CommandResult,
    backend_endpoints,
    duration,
    follow,
    grouped,
    totals,
    worst_health,
)
from infergate.terminal import Table

_FLOW_LABELS: Final = ("route", "protocol", "backend", "backend_protocol", "operation")
_HEADINGS: Final = ("REQ/S", "FAILED/S", "CLIENT ERR/S", "P50", "P99")
_NUMBERS: Final = frozenset(range(2, 7))
_UP: Final = "up"
_FlowKey = tuple[str, ...]


def run(arguments: Arguments) -> int:
    """Show the traffic until Ctrl-C, and return the exit code. Raises AdminQueryError."""
    return follow(TrafficQuery(arguments.admin, arguments.interval), arguments)


class TrafficQuery:
    """A query for the traffic since the previous query. The first query takes ``interval``
    seconds."""

    def __init__(self, admin: str, interval: float) -> None:
        self._admin: Final = admin
        self._interval: Final = interval
        self._state: Json | None = None
        self._time = 0.0

    def __call__(self) -> CommandResult:
        """Query the gateway. Raises AdminQueryError."""
        if self._state is None:
            self._read_state()
            time.sleep(self._interval)
        previous, previous_time = self._state, self._time
        plan = get_json(self._admin, "/console/plan")
        state = self._read_state()
        assert previous is not None
        all_flows, previous_flows = _flows(state), _flows(previous)
        if _has_restarted(previous["config"], state["config"]):
            previous_flows = {}
        elif _responds_again(previous["workers"], state["workers"]):
            previous_flows = all_flows
        seconds = self._time - previous_time
        flows = list(changes(all_flows, previous_flows))
        by_route, by_backend = grouped(flows, "route"), grouped(flows, "backend")
        routes = [
            {"label": route["label"], "backend": route["backend"]}
            | _rates(by_route.get(route["label"], ()), seconds)
            for route in plan["routes"]
        ]
        backends = [
            {"name": backend["name"], "endpoints": endpoints}
            | _rates(by_backend.get(backend["name"], ()), seconds)
            for backend, endpoints in backend_endpoints(state, plan)
        ]
        health = {each["name"]: worst_health(each["endpoints"]) for each in backends}

        def urgency(traffic: Json, backend: str) -> tuple[float, ...]:
            return -traffic["failures"], health.get(backend, 0), -traffic["requests"]

        routes.sort(key=lambda route: urgency(route["traffic"], route["backend"]))
        backends.sort(key=lambda backend: urgency(backend["traffic"], backend["name"]))
        data = {
            "seconds": seconds,
            "ready": state["ready"],
            "in_flight": state["totals"]["in_flight"],
            "routes": routes,
            "backends": backends,
        }
        return CommandResult(_tables(state, data), data)

    def _read_state(self) -> Json:
        state = self._state = get_json(self._admin, "/console/state")
        self._time = time.monotonic()
        return state


def _has_restarted(before: Json, after: Json) -> bool:
    """Return whether the gateway has restarted between two queries. A reload increases the number
    of the configuration, and a restart resets the number."""
    return bool(before.get("since") != after.get("since") and after["number"] <= before["number"])


def _responds_again(before: Json, after: Json) -> bool:
    """Return whether a worker that did not respond to the first query may have responded to the
    second query. All requests since the start of that worker would look like new requests."""
    names = "serving", "reporting"
    return bool(
        before["reporting"] < before["serving"]
        and any(before[name] != after[name] for name in names)
    )


def _flows(state: Json) -> dict[_FlowKey, Json]:
    return {tuple(flow[name] for name in _FLOW_LABELS): flow for flow in state["flows"]}


def changes(after: Mapping[_FlowKey, Json], before: Mapping[_FlowKey, Json]) -> Iterator[Json]:
    """Yield the flows in ``after`` with only the requests since ``before``.

    A flow is omitted if its counters have decreased, which means that a worker has ended or did not
    respond. A flow is also omitted if a process did not list it before, because the flow then
    contains all requests since the process started."""
    for key, flow in after.items():
        old = before.get(key)
        if flow.get("listed_since", 0) != (old or {}).get("listed_since", 0):
            continue
        if old is None:
            yield flow
            continue
        outcomes, old_outcomes = flow["outcomes"], old["outcomes"]
        if any(outcomes.get(name, 0) < count for name, count in old_outcomes.items()):
            continue
        buckets = dict(map(tuple, old["seconds"]["buckets"]))
        yield flow | {
            "outcomes": {
                name: count - old_outcomes.get(name, 0) for name, count in outcomes.items()
            },
            "client_errors": flow["client_errors"] - old["client_errors"],
            "seconds": {
                "sum": flow["seconds"]["sum"] - old["seconds"]["sum"],
                "buckets": [
                    (bound, count - buckets.get(bound, 0))
                    for bound, count in flow["seconds"]["buckets"]
                ],
            },
        }


def _rates(flows: Iterable[Json], seconds: float) -> Json:
    traffic = totals(flows)
    per_second = {
        f"{name}_per_second": traffic[name] / seconds if seconds > 0 else 0.0
        for name in ("requests", "failures", "client_errors")
    }
    return {"traffic": traffic | per_second}


def _tables(state: Json, data: Json) -> list[Table]:
    workers = state["workers"]
    title = (
        f"infergate {state['version']}: {'ready' if data['ready'] else 'not ready'}, "
        f"{workers['serving']} of {workers['wanted']} workers, {data['in_flight']:.0f} in flight, "
        f"last {data['seconds']:.1f} s\n\nroutes, failures first"
    )
    routes = [(each["label"], each["backend"], *_cells(each["traffic"])) for each in data["routes"]]
    backends = [
        (each["name"], _endpoints_text(each["endpoints"]), *_cells(each["traffic"]))
        for each in data["backends"]
    ]
    return [
        Table(title, ("ROUTE", "BACKEND", *_HEADINGS), routes, _NUMBERS),
        Table("backends, failures first", ("BACKEND", "ENDPOINTS", *_HEADINGS), backends, _NUMBERS),
    ]


def _endpoints_text(endpoints: list[Json]) -> str:
    counts = Counter[str](endpoint.get("health", "unknown") for endpoint in endpoints)
    if len(endpoints) == 1:
        return next(iter(counts))
    healthy_last = sorted(counts.items(), key=lambda pair: pair[0] == _UP)
    return ", ".join(f"{count} {health}" for health, count in healthy_last) or "-"


def _cells(traffic: Json) -> tuple[str, ...]:
    return (
        *(
            f"{traffic[f'{name}_per_second']:.1f}"
            for name in ("requests", "failures", "client_errors")
        ),
        duration(traffic["p50_seconds"]),
        duration(traffic["p99_seconds"]),
    )
