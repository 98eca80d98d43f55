"""Aggregates the reported traffic of all processes into the JSON of ``/console/state``. This module
has no I/O.

Processes send the request counters as plain tuples, because metrics of thousands of routes would be
expensive. They send pipeline counts and recent failures separately, and all other data as metric
families, which are summed as for a scrape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any, Final

from prometheus_client.samples import Sample

from infergate.core.duration_histogram import REQUEST_BUCKETS
from infergate.observe.aggregation import AggregatedMetrics
from infergate.observe.recent_requests import ProcessSnapshot, newest
from infergate.observe.request_counters import RequestFlow, client_errors
from infergate.runtime.console.explanations import as_json

Json = dict[str, Any]
MAX_FAILURES: Final = 100
"""Maximum number of failures, and of client errors, in the JSON."""
_FLOW_LABELS: Final = ("route", "protocol", "backend", "backend_protocol", "operation")
_ENDPOINT_LABELS: Final = ("backend", "endpoint")
_TIME_KEYS: Final = {
    "request": "seconds",
    "backend": "backend_seconds",
    "gateway": "gateway_seconds",
}
_BOUNDS: Final = (*REQUEST_BUCKETS, None)
"""The bucket bounds. The last bound is null, because JSON has no infinity."""
_BUCKET_INDEX: Final = {
    bound: index for index, bound in enumerate((*REQUEST_BUCKETS, float("inf")))
}
_GAUGES: Final = {
    "in_flight": "infergate_in_flight_requests",
    "in_flight_bytes": "infergate_in_flight_bytes",
    "streams": "infergate_open_streams",
    "generations": "infergate_config_generations",
}


def statistics(processes: Iterable[ProcessSnapshot]) -> Json:
    """Return the sums over all processes: ``totals``, ``flows``, ``listeners``, ``endpoints`` and
    ``backends``. Counters are totals since the gateway started. Times are in seconds."""
    total = AggregatedMetrics()
    flows: list[RequestFlow] = []
    for process in processes:
        total.add(process.families)
        flows += process.flows
    by_name = {family.name: family.samples for family in total.collect()}

    def samples(name: str) -> Iterable[Sample]:
        return by_name.get(name, ())

    return {
        "totals": {
            key: sum(sample.value for sample in samples(name)) for key, name in _GAUGES.items()
        },
        "flows": _flows(flows, by_name),
        "listeners": _listeners(by_name),
        "endpoints": _endpoints(by_name),
        "backends": _backends(by_name),
    }


class _Rows:
    """JSON objects, each identified by its labels."""

    def __init__(self, labels: tuple[str, ...]) -> None:
        self._labels: Final = labels
        self._rows: Final[dict[tuple[str, ...], Json]] = {}

    def get_or_add(self, labels: Mapping[str, str]) -> Json:
        key = tuple(labels.get(name, "") for name in self._labels)
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = dict(zip(self._labels, key, strict=True))
        return row

    def to_list(self) -> list[Json]:
        return list(self._rows.values())


Families = Mapping[str, Iterable[Sample]]


def _flows(flows: Iterable[RequestFlow], families: Families) -> list[Json]:
    """Return the flows of running processes and, from the metrics, the flows of exited processes.
    ``client_errors`` counts the errors that clients caused; other errors are failures."""
    rows = _Rows(_FLOW_LABELS)
    for flow in flows:
        row = _with_counters(rows.get_or_add(dict(zip(_FLOW_LABELS, flow.labels, strict=True))))
        for outcome, count in flow.outcomes.items():
            row["outcomes"][outcome] = row["outcomes"].get(outcome, 0) + count
        duration = row["seconds"]
        duration["sum"] += flow.seconds
        duration["count"] += sum(flow.counts)
        for bucket, count in zip(duration["buckets"], accumulate(flow.counts), strict=True):
            bucket[1] += count
        for key, (count, seconds) in (
            ("backend_seconds", flow.backend),
            ("gateway_seconds", flow.own),
        ):
            row[key]["count"] += count
            row[key]["sum"] += seconds
        row["bytes_in"] += flow.bytes_in
        row["bytes_out"] += flow.bytes_out
        row["listed_since"] = max(row["listed_since"], flow.listed_since)
    _add_exited_workers(rows, families)
    for row in rows.to_list():
        counts = _with_counters(row)["outcomes"]
        row["client_errors"] = client_errors(counts)
    return rows.to_list()


def _with_counters(row: Json) -> Json:
    if "outcomes" not in row:
        row["outcomes"] = {}
        row["seconds"] = {"sum": 0.0, "count": 0, "buckets": [[bound, 0] for bound in _BOUNDS]}
        row |= {key: {"sum": 0.0, "count": 0} for key in ("backend_seconds", "gateway_seconds")}
        row |= {"bytes_in": 0, "bytes_out": 0, "listed_since": 0.0}
    return row


def _add_exited_workers(rows: _Rows, families: Families) -> None:
    for sample in _counter_samples(families, "infergate_requests"):
        outcomes = _with_counters(rows.get_or_add(sample.labels))["outcomes"]
        outcome = sample.labels["outcome"]
        outcomes[outcome] = outcomes.get(outcome, 0) + sample.value
    for name, key in _TIME_KEYS.items():
        for sample in families.get(f"infergate_{name}_seconds", ()):
            histogram = _with_counters(rows.get_or_add(sample.labels))[key]
            kind = sample.name.rpartition("_")[2]
            if kind in histogram:
                histogram[kind] += sample.value
            elif kind == "bucket" and "buckets" in histogram:
                bound = float(sample.labels["le"])
                histogram["buckets"][_BUCKET_INDEX[bound]][1] += sample.value
    for family, key in (("request", "bytes_in"), ("response", "bytes_out")):
        for sample in _counter_samples(families, f"infergate_{family}_bytes"):
            _with_counters(rows.get_or_add(sample.labels))[key] += sample.value


def _listeners(families: Families) -> list[Json]:
    rows = _Rows(("listener",))
    for sample in families.get("infergate_open_connections", ()):
        rows.get_or_add(sample.labels)["connections"] = sample.value
    for sample in families.get("infergate_certificate_expiry_seconds", ()):
        rows.get_or_add(sample.labels)["certificate_expiry"] = sample.value
    return rows.to_list()


def _endpoints(families: Families) -> list[Json]:
    rows = _Rows(_ENDPOINT_LABELS)
    for sample in families.get("infergate_endpoint_addresses", ()):
        rows.get_or_add(sample.labels)[sample.labels["state"]] = sample.value
    for family in ("requests", "checks"):
        for sample in _counter_samples(families, f"infergate_endpoint_{family}"):
            counts = rows.get_or_add(sample.labels).setdefault(family, {"ok": 0.0, "failed": 0.0})
            counts[sample.labels["outcome"]] = sample.value
    for sample in families.get("infergate_endpoint_active_requests", ()):
        rows.get_or_add(sample.labels)["active"] = sample.value
    for key in ("ejections", "lookup_failures"):
        for sample in _counter_samples(families, f"infergate_endpoint_{key}"):
            rows.get_or_add(sample.labels)[key] = sample.value
    for row in rows.to_list():
        row["health"] = _health(row)
    return rows.to_list()


def _health(endpoint: Json) -> str:
    """Return the health of an endpoint's addresses over all processes. It is ``up``, ``degraded``
    (up only for some addresses or processes), ``ejected``, ``down``, ``failing`` (some checks or
    requests have failed, and none has succeeded), or ``unknown`` (there was no check or
    request)."""
    down, ejected = endpoint.get("down", 0), endpoint.get("ejected", 0)
    if down + ejected:
        if endpoint.get("available"):
            return "degraded"
        return "down" if down >= ejected else "ejected"
    results = [endpoint.get(key, {}) for key in ("checks", "requests")]
    if any(counts.get("ok") for counts in results):
        return "up"
    return "failing" if any(counts.get("failed") for counts in results) else "unknown"


def _backends(families: Families) -> list[Json]:
    rows = _Rows(("backend",))
    for sample in families.get("infergate_queue_requests", ()):
        rows.get_or_add(sample.labels)["waiting"] = sample.value
    for family, key, label in (
        ("retries", "retries", "reason"),
        ("hedges", "hedges", "outcome"),
        ("queue_refusals", "refusals", "reason"),
    ):
        for sample in _counter_samples(families, f"infergate_{family}"):
            rows.get_or_add(sample.labels).setdefault(key, {})[sample.labels[label]] = sample.value
    return rows.to_list()


def _counter_samples(families: Families, family: str) -> Iterator[Sample]:
    """Yield the samples of a counter, without its ``_created`` samples."""
    for sample in families.get(family, ()):
        if sample.name == f"{family}_total":
            yield sample


# ---- data that is not in the metrics


def pipeline_counts(processes: Iterable[ProcessSnapshot]) -> list[Json]:
    """Return the number of inferences by client protocol, backend protocol and pipeline, over all
    processes."""
    counts: dict[tuple[str, str, str], int] = {}
    for process in processes:
        for key, count in process.pipelines.items():
            counts[key] = counts.get(key, 0) + count
    return [
        {"protocol": protocol, "backend_protocol": backend, "pipeline": pipeline, "count": count}
        for (protocol, backend, pipeline), count in sorted(counts.items())
    ]


def recent_failures(processes: Iterable[ProcessSnapshot]) -> list[Json]:
    """Return the last failures and client errors of all processes with explanations. The newest
    failure comes first."""
    samples = [(failure, process.worker) for process in processes for failure in process.failures]
    return [as_json(request) for request in newest(samples, MAX_FAILURES)]
