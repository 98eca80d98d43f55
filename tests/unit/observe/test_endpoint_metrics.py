"""The endpoint metrics of a scrape."""

from __future__ import annotations

from infergate.core.stats import EndpointStats
from infergate.observe.metrics import Metrics

STATS = EndpointStats(
    "b", "http://pods:8000", 1, 2, 3, 4, ok=5, failed=6, ejections=7, checks_ok=8, checks_failed=9,
    lookups_failed=10,
)  # fmt: skip


def samples(*stats: EndpointStats) -> list[str]:
    """Return the samples of endpoint metrics, with ``*`` for the labels of ``STATS``."""
    metrics = Metrics()
    metrics.endpoints.source = lambda: stats
    prefix, labels = "infergate_endpoint_", 'backend="b",endpoint="http://pods:8000"'
    lines = metrics.text().decode().splitlines()
    return [
        line.removeprefix(prefix).replace(labels, "*") for line in lines if line.startswith(prefix)
    ]


def test_each_counter_is_a_metric() -> None:
    assert samples(STATS) == [
        'addresses{*,state="available"} 1.0',
        'addresses{*,state="down"} 2.0',
        'addresses{*,state="ejected"} 3.0',
        "active_requests{*} 4.0",
        'requests_total{*,outcome="ok"} 5.0',
        'requests_total{*,outcome="failed"} 6.0',
        "ejections_total{*} 7.0",
        'checks_total{*,outcome="ok"} 8.0',
        'checks_total{*,outcome="failed"} 9.0',
        "lookup_failures_total{*} 10.0",
    ]
    assert samples() == [], "there are no samples without remote backends"


def test_the_state_of_a_watch_is_a_metric() -> None:
    watched = STATS._replace(watches_failing=1, watch_failures=11)
    lines = samples(STATS._replace(endpoint="http://other"), watched)
    assert [line for line in lines if "watch" in line] == [
        'watches{*,state="current"} 0.0',
        'watches{*,state="failing"} 1.0',
        "watch_failures_total{*} 11.0",
    ]
