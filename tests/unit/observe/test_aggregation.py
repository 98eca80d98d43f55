"""Metrics of several processes, combined."""

from __future__ import annotations

import pickle
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client import Histogram as LibraryHistogram
from prometheus_client.core import Exemplar, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics

from infergate.core.request_record import RequestRecord
from infergate.observe.aggregation import AggregatedMetrics
from infergate.observe.family import HistogramValue, MetricFamily, in_batches
from infergate.observe.label_names import MetricNames
from infergate.observe.metrics import Metrics
from request_records import make_record


def aggregate(*processes: Iterable[Metric], has_exited: bool = False) -> AggregatedMetrics:
    aggregated = AggregatedMetrics()
    for families in processes:
        aggregated.add(families, has_exited=has_exited)
    return aggregated


def text(aggregated: AggregatedMetrics) -> list[str]:
    return generate_latest(aggregated).decode().splitlines()


def process(*, requests: int, depth: int) -> list[Metric]:
    """Return a snapshot of one process's metrics, as received over a pipe."""
    registry = CollectorRegistry()
    counter = Counter("done", "Done.", ["way"], registry=registry)
    Gauge("depth", "Now.", registry=registry).set(depth)
    times = LibraryHistogram("took_seconds", "Took.", buckets=(1, 2), registry=registry)
    for _ in range(requests):
        counter.labels("in").inc()
        times.observe(1.5)
    return list(pickle.loads(pickle.dumps(list(registry.collect()))))


def test_counters_histograms_and_gauges_are_added() -> None:
    lines = text(aggregate(process(requests=2, depth=3), process(requests=5, depth=4)))
    assert lines.count("# TYPE took_seconds histogram") == 1
    assert [line for line in lines if not line.startswith("#") and "_created" not in line] == [
        'done_total{way="in"} 7.0',
        "depth 7.0",
        'took_seconds_bucket{le="1.0"} 0.0',
        'took_seconds_bucket{le="2.0"} 7.0',
        'took_seconds_bucket{le="+Inf"} 7.0',
        "took_seconds_count 7.0",
        "took_seconds_sum 10.5",
    ]


def test_labels_of_only_one_process_are_exported() -> None:
    aggregated = aggregate(process(requests=0, depth=0), process(requests=1, depth=0))
    assert 'done_total{way="in"} 1.0' in text(aggregated)


def test_a_counter_was_created_when_the_first_process_created_it() -> None:
    def created_at(at: float) -> Iterable[Metric]:
        family = Metric("done", "Done.", "counter")
        family.add_sample("done_created", {}, at)
        return [family]

    assert "done_created 10.0" in text(aggregate(created_at(20.0), created_at(10.0)))


def test_counters_but_not_gauges_of_exited_processes_are_kept() -> None:
    exited = process(requests=2, depth=9), process(requests=3, depth=9)
    exited_metrics = aggregate(*exited, has_exited=True)
    lines = text(aggregate(process(requests=1, depth=1), exited_metrics.collect()))
    assert 'done_total{way="in"} 6.0' in lines
    assert "took_seconds_count 6.0" in lines
    assert "depth 1.0" in lines


def test_metrics_that_must_not_be_added_are_exported_once() -> None:
    first, second = Metrics(), Metrics()
    first.loaded_at.set(100)
    first.config.info({"sha256": "a", "number": "2"})
    first.last_reload_succeeded.set(0)
    second.config.info({"sha256": "", "number": "1"})
    second.last_reload_succeeded.set(1)
    for metrics, generations in ((first, 1), (second, 3)):
        metrics.generations.set(generations)
        metrics.record(RequestRecord(), 0.1)
    lines = text(aggregate(first.registry.collect(), second.registry.collect()))
    assert [line for line in lines if line.startswith("infergate_config_info")] == [
        'infergate_config_info{number="2",sha256="a"} 1.0'
    ]
    assert "infergate_config_loaded_timestamp_seconds 100.0" in lines
    assert "infergate_config_last_reload_successful 0.0" in lines
    assert "infergate_config_generations 3.0" in lines
    assert sum(line.startswith("infergate_build_info") for line in lines) == 1
    assert any(line.startswith("infergate_requests_total") and line.endswith(" 2.0")
               for line in lines)  # fmt: skip


def test_the_earliest_certificate_expiry_is_exported() -> None:
    aggregated = AggregatedMetrics()
    for at in (300.0, 100.0, 200.0):
        family = Metric("infergate_certificate_expiry_seconds", "When.", "gauge")
        family.add_sample(family.name, {"listener": "http"}, at)
        aggregated.add([family])
    assert 'infergate_certificate_expiry_seconds{listener="http"} 100.0' in text(aggregated)


def test_the_latest_exemplar_is_exported() -> None:
    aggregated = AggregatedMetrics()
    for at, trace in ((5.0, "a"), (9.0, "b"), (7.0, "c")):
        histogram = HistogramValue((1, 0), 0.1, {0: Exemplar({"trace_id": trace}, 0.1, at)})
        rows = (each for each in [((), histogram)])
        family = MetricFamily("histogram", "took_seconds", "Took.", (), rows, bounds=(1.0,))
        for piece in in_batches([family]):
            aggregated.add(pickle.loads(pickle.dumps(piece)))
    lines = openmetrics(aggregated).decode().splitlines()
    (bucket,) = [line for line in lines if 'le="1.0"' in line]
    assert bucket == 'took_seconds_bucket{le="1.0"} 3.0 # {trace_id="b"} 0.1 9.0'


def test_metrics_of_removed_names_are_dropped() -> None:
    metrics = Metrics()
    for backend in ("old", "new"):
        metrics.record(make_record(route=f"{backend}*", backend=backend), 0.1)
    aggregated = aggregate(metrics.registry.collect(), has_exited=True)
    aggregated.keep(MetricNames({"", "new*"}, {"", "new"}))
    exported = "\n".join(text(aggregated))
    assert '"old' not in exported
    assert 'backend="new"' in exported
