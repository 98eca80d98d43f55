"""What is going on, from metrics to JSON. Pure.

*Strategy.* Whatever is a metric is read from the metrics' families, by their names and labels: so
the numbers are those of a scrape, and of several processes the sum is made in one place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from prometheus_client.core import Metric
from prometheus_client.samples import Sample

from infergate.observe.recent import Recalled
from infergate.runtime.console.explanations import EXPLANATIONS, UNKNOWN

Json = dict[str, Any]
TOLD: Final = 100
"""Failures that are told."""
_FLOW: Final = ("route", "protocol", "backend", "backend_protocol", "operation")
_AT: Final = ("backend", "endpoint")
_TIMES: Final = {"request": "seconds", "backend": "backend_seconds", "gateway": "own_seconds"}
_GAUGES: Final = {
    "in_flight": "infergate_in_flight_requests",
    "in_flight_bytes": "infergate_in_flight_bytes",
    "streams": "infergate_open_streams",
    "generations": "infergate_config_generations",
}


def figures(families: Iterable[Metric]) -> Json:
    """What the metrics tell: ``totals``, ``flows``, ``listeners``, ``endpoints``, ``backends``.
    Counters are of all time, bytes are bytes, times are in seconds."""
    by_name = {family.name: family.samples for family in families}

    def of(name: str) -> Iterable[Sample]:
        return by_name.get(name, ())

    return {
        "totals": {key: sum(s.value for s in of(name)) for key, name in _GAUGES.items()},
        "flows": _flows(by_name),
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


def _flows(families: Families) -> list[Json]:
    rows = _Rows(_FLOW)
    for sample in _named(families, "infergate_requests", "_total"):
        outcomes = rows.of(sample.labels).setdefault("outcomes", {})
        outcome = sample.labels.get("outcome", "")
        outcomes[outcome] = outcomes.get(outcome, 0) + sample.value
    for name, key in _TIMES.items():
        for sample in families.get(f"infergate_{name}_seconds", ()):
            times = rows.of(sample.labels).setdefault(key, {"sum": 0.0, "count": 0, "buckets": []})
            if sample.name.endswith("_bucket"):
                # JSON has no infinity: null is the last bound
                bound = float(sample.labels["le"])
                told = None if bound == float("inf") else bound
                times["buckets"].append([told, sample.value])
            elif sample.name.endswith("_sum"):
                times["sum"] = sample.value
            elif sample.name.endswith("_count"):
                times["count"] = sample.value
    for family, key in (("request", "bytes_in"), ("response", "bytes_out")):
        for sample in _named(families, f"infergate_{family}_bytes", "_total"):
            rows.of(sample.labels)[key] = sample.value
    return rows.all()


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
        each._asdict() | {"worker": worker} | EXPLANATIONS.get(each.kind, UNKNOWN)._asdict()
        for each, worker in found[:TOLD]
    ]
