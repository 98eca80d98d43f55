"""The endpoint metrics of a scrape."""

from __future__ import annotations

from infergate.core.stats import EndpointStats
from infergate.observe.metrics import Metrics

STATS = EndpointStats(
    "b", "http://pods:8000", 1, 2, 3, 4, ok=5, failed=6, ejections=7, checks_ok=8, checks_failed=9,
    lookups_failed=10,
)  # fmt: skip


def test_each_counter_is_a_metric() -> None:
    metrics = Metrics()
    metrics.endpoints.source = lambda: [STATS]
    text = metrics.text().decode()
    fields = {
        line.split(" ")[0].removeprefix("infergate_endpoint_"): float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith("infergate_endpoint_")
    }
    at = 'backend="b",endpoint="http://pods:8000"'
    assert fields == {
        f'addresses{{{at},state="available"}}': 1,
        f'addresses{{{at},state="down"}}': 2,
        f'addresses{{{at},state="ejected"}}': 3,
        f"active_requests{{{at}}}": 4,
        f'requests_total{{{at},outcome="ok"}}': 5,
        f'requests_total{{{at},outcome="failed"}}': 6,
        f"ejections_total{{{at}}}": 7,
        f'checks_total{{{at},outcome="ok"}}': 8,
        f'checks_total{{{at},outcome="failed"}}': 9,
        f"lookup_failures_total{{{at}}}": 10,
    }


def test_without_remote_backends_there_are_no_endpoint_metrics() -> None:
    assert "infergate_endpoint_addresses{" not in Metrics().text().decode()


def test_the_state_of_a_watch_is_a_metric() -> None:
    metrics = Metrics()
    watched = STATS._replace(watches_failing=1, watch_failures=11)
    metrics.endpoints.source = lambda: [STATS._replace(endpoint="http://other"), watched]
    lines = [line for line in metrics.text().decode().splitlines() if "_watch" in line]
    at = 'backend="b",endpoint="http://pods:8000"'
    assert [line for line in lines if not line.startswith("#")] == [
        f'infergate_endpoint_watches{{{at},state="current"}} 0.0',
        f'infergate_endpoint_watches{{{at},state="failing"}} 1.0',
        f"infergate_endpoint_watch_failures_total{{{at}}} 11.0",
    ]
