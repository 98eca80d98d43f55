"""What is going on, from what processes tell to JSON. Pure.

*Strategy.* The numbers are those of a scrape. What is counted of requests is told by plain tuples,
for as metrics it is dear where there are thousands of routes; all else by the metrics' families,
which are added up as for scrapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any, Final

from prometheus_client.samples import Sample

from infergate.core.times import REQUEST
from infergate.observe.counted import Flow
from infergate.observe.recent import Recalled
from infergate.observe.summed import Summed
from infergate.runtime.console.explanations import explained

Json = dict[str, Any]
TOLD: Final = 100
"""Failures that are told."""
_FLOW: Final = ("route", "protocol", "backend", "backend_protocol", "operation")
_AT: Final = ("backend", "endpoint")
_TIMES: Final = {"request": "seconds", "backend": "backend_seconds", "gateway": "own_seconds"}
_BOUNDS: Final = (*REQUEST, None)
"""JSON has no infinity: null is the last one."""
_PLACES: Final = {bound: place for place, bound in enumerate((*REQUEST, float("inf")))}
_GAUGES: Final = {
    "in_flight": "infergate_in_flight_requests",
    "in_flight_bytes": "infergate_in_flight_bytes",
    "streams": "infergate_open_streams",
    "generations": "infergate_config_generations",
}


def figures(told: Iterable[Recalled]) -> Json:
    """What processes tell, together: ``totals``, ``flows``, ``listeners``, ``endpoints``,
    ``backends``. Counters are of all time, bytes are bytes, times are in seconds."""
    summed = Summed()
    flows: list[Flow] = []
    for each in told:
        summed.add(each.families)
        flows += each.flows
    by_name = {family.name: family.samples for family in summed.collect()}

    def of(name: str) -> Iterable[Sample]:
        return by_name.get(name, ())

    return {
        "totals": {key: sum(s.value for s in of(name)) for key, name in _GAUGES.items()},
        "flows": _flows(flows, by_name),
        "listeners": _listeners(by_name),
        "endpoints": _endpoints(by_name),
        "backends": _backends(by_name),
    }


class _Rows:
    """Rows of JSON, each by the labels that tell it."""

    def __init__(self, labels: tuple[str, ...]) -> None:
        self._labels: Final = labels
        self._rows: Final[dict[tuple[str, ...], Json]] = {}

    def of(self, labels: Mapping[str, str]) -> Json:
        key = tuple(labels.get(name, "") for name in self._labels)
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = dict(zip(self._labels, key, strict=True))
        return row

    def all(self) -> list[Json]:
        return list(self._rows.values())


Families = Mapping[str, Iterable[Sample]]


def _flows(flows: Iterable[Flow], families: Families) -> list[Json]:
    """Those that processes tell, and what metrics tell of processes that are no more."""
    rows = _Rows(_FLOW)
    for flow in flows:
        row = _begun(rows.of(dict(zip(_FLOW, flow.labels, strict=True))))
        for outcome, count in flow.outcomes.items():
            row["outcomes"][outcome] = row["outcomes"].get(outcome, 0) + count
        total = row["seconds"]
        total["sum"] += flow.seconds
        total["count"] += sum(flow.counts)
        for bucket, count in zip(total["buckets"], accumulate(flow.counts), strict=True):
            bucket[1] += count
        for key, (count, seconds) in (("backend_seconds", flow.backend), ("own_seconds", flow.own)):
            row[key]["count"] += count
            row[key]["sum"] += seconds
        row["bytes_in"] += flow.bytes_in
        row["bytes_out"] += flow.bytes_out
    _add_past(rows, families)
    return rows.all()


def _begun(row: Json) -> Json:
    if "outcomes" not in row:
        row["outcomes"] = {}
        row["seconds"] = {"sum": 0.0, "count": 0, "buckets": [[bound, 0] for bound in _BOUNDS]}
        row |= {key: {"sum": 0.0, "count": 0} for key in ("backend_seconds", "own_seconds")}
        row |= {"bytes_in": 0, "bytes_out": 0}
    return row


def _add_past(rows: _Rows, families: Families) -> None:
    for sample in _named(families, "infergate_requests", "_total"):
        outcomes = _begun(rows.of(sample.labels))["outcomes"]
        outcome = sample.labels["outcome"]
        outcomes[outcome] = outcomes.get(outcome, 0) + sample.value
    for name, key in _TIMES.items():
        for sample in families.get(f"infergate_{name}_seconds", ()):
            times = _begun(rows.of(sample.labels))[key]
            kind = sample.name.rpartition("_")[2]
            if kind in times:
                times[kind] += sample.value
            elif kind == "bucket" and "buckets" in times:
                bound = float(sample.labels["le"])
                times["buckets"][_PLACES[bound]][1] += sample.value
    for family, key in (("request", "bytes_in"), ("response", "bytes_out")):
        for sample in _named(families, f"infergate_{family}_bytes", "_total"):
            _begun(rows.of(sample.labels))[key] += sample.value


def _listeners(families: Families) -> list[Json]:
    rows = _Rows(("listener",))
    for sample in families.get("infergate_open_connections", ()):
        rows.of(sample.labels)["connections"] = sample.value
    for sample in families.get("infergate_certificate_expiry_seconds", ()):
        rows.of(sample.labels)["certificate_until"] = sample.value
    return rows.all()


def _endpoints(families: Families) -> list[Json]:
    rows = _Rows(_AT)
    for sample in families.get("infergate_endpoint_addresses", ()):
        rows.of(sample.labels)[sample.labels["state"]] = sample.value
    for family, words in (("requests", ("ok", "failed")), ("checks", ("ok", "failed"))):
        for sample in _named(families, f"infergate_endpoint_{family}", "_total"):
            counts = rows.of(sample.labels).setdefault(family, dict.fromkeys(words, 0.0))
            counts[sample.labels["outcome"]] = sample.value
    for sample in families.get("infergate_endpoint_active_requests", ()):
        rows.of(sample.labels)["active"] = sample.value
    for key in ("ejections", "lookup_failures"):
        for sample in _named(families, f"infergate_endpoint_{key}", "_total"):
            rows.of(sample.labels)[key] = sample.value
    for row in rows.all():
        row["health"] = _health(row)
    return rows.all()


def _health(endpoint: Json) -> str:
    """A word for the addresses of an endpoint, as all processes see them: ``up``; ``partly``: some
    are up, or some processes see it so; ``ejected``, ``down``; ``failing``: nothing looks after
    it, and it never did well; ``unknown``: it was not asked for anything, either."""
    down, ejected = endpoint.get("down", 0), endpoint.get("ejected", 0)
    if down + ejected:
        if endpoint.get("available"):
            return "partly"
        return "down" if down >= ejected else "ejected"
    seen = [endpoint.get(key, {}) for key in ("checks", "requests")]
    if any(each.get("ok") for each in seen):
        return "up"
    return "failing" if any(each.get("failed") for each in seen) else "unknown"


def _backends(families: Families) -> list[Json]:
    rows = _Rows(("backend",))
    for sample in families.get("infergate_queue_requests", ()):
        rows.of(sample.labels)["waiting"] = sample.value
    for family, key, label in (
        ("retries", "retries", "reason"),
        ("hedges", "hedges", "outcome"),
        ("queue_refusals", "refusals", "reason"),
    ):
        for sample in _named(families, f"infergate_{family}", "_total"):
            rows.of(sample.labels).setdefault(key, {})[sample.labels[label]] = sample.value
    return rows.all()


def _named(families: Families, family: str, suffix: str) -> Iterator[Sample]:
    """Samples of a counter, without those that tell when it began."""
    for sample in families.get(family, ()):
        if sample.name == f"{family}{suffix}":
            yield sample


# ---- what is no metric


def ways(told: Iterable[Recalled]) -> list[Json]:
    """Which way inferences went, of all processes together."""
    counts: dict[tuple[str, str, str], int] = {}
    for each in told:
        for key, count in each.ways.items():
            counts[key] = counts.get(key, 0) + count
    return [
        {"protocol": protocol, "backend_protocol": backend, "way": way, "count": count}
        for (protocol, backend, way), count in sorted(counts.items())
    ]


def failures(told: Iterable[Recalled]) -> list[Json]:
    """The last ones of all processes, the newest first, each with what it means."""
    found = [(each, process.worker) for process in told for each in process.failures]
    found.sort(key=lambda pair: pair[0].when, reverse=True)
    return [
        each._asdict() | {"worker": worker} | explained(each.kind) for each, worker in found[:TOLD]
    ]
