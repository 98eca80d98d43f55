"""docs/metrics.md lists every exported metric with its type, unit and labels."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from infergate import pytest_plugin
from infergate.config.schema import Config
from infergate.core.duration_histogram import GATEWAY_BUCKETS, REQUEST_BUCKETS
from infergate.observe.metrics import Metrics
from infergate.runtime.config_history import ConfigHistory
from infergate.runtime.workers.supervisor import Supervisor

DOCS = Path(__file__).parents[3] / "docs"
ROW = re.compile(r"^\| `((?:infergate|process)_\w+)` \| (\w+)(?:, (\w+))? \| ([\w, ]*?) ?\| ")
METRIC_NAME = re.compile(r"`(infergate_\w+?)(?:_bucket|_sum|_count)?[`{\[ ]")
_ENDS = {"counter": "_total", "info": "_info"}


class MetricDescription(NamedTuple):
    kind: str
    unit: str
    labels: frozenset[str]


def documented_metrics() -> dict[str, MetricDescription]:
    lines = (DOCS / "metrics.md").read_text(encoding="utf-8").splitlines()
    rows = [match for line in lines if (match := ROW.match(line))]
    fields = {
        name: MetricDescription(kind, unit or "", frozenset(filter(None, labels.split(", "))))
        for name, kind, unit, labels in (row.groups() for row in rows)
    }
    assert len(fields) == len(rows), "a metric is listed twice"
    return fields


def labels_of(collector: Collector, family: Metric) -> frozenset[str]:
    declared = getattr(family, "labels", ()) or getattr(collector, "_labelnames", ())
    used = {name for sample in family.samples for name in sample.labels} - {"le"}
    assert not declared or used <= set(declared)
    return frozenset(declared or used)


def unit_of(family: Metric) -> str:
    """Return a family's unit; the library's process metrics have a unit only in their names."""
    if family.unit:
        return family.unit
    end = family.name.rpartition("_")[2]
    return end if family.name.startswith("process_") and end in {"seconds", "bytes"} else ""


def exported_metrics(metrics: Metrics) -> dict[str, MetricDescription]:
    collectors = metrics.registry._collector_to_names
    return {
        family.name + _ENDS.get(family.type, ""): MetricDescription(
            family.type, unit_of(family), labels_of(collector, family)
        )
        for collector in collectors
        for family in collector.collect()
    }


async def all_exported_metrics() -> dict[str, MetricDescription]:
    """Return the metrics of a supervisor, which include those of one process."""
    supervisor = Supervisor(Config.default().model_copy(update={"workers": 2}), ConfigHistory())
    try:
        return exported_metrics(supervisor._metrics)
    finally:
        await supervisor.stop(0)


async def test_the_page_lists_the_exported_metrics() -> None:
    listed, metrics = documented_metrics(), await all_exported_metrics()
    assert sorted(listed) == sorted(metrics)
    assert listed == metrics


async def test_other_pages_name_existing_metrics() -> None:
    fixtures = {name for name in vars(pytest_plugin) if name.startswith("infergate_")}
    existing = {*await all_exported_metrics(), *fixtures}
    pages = [page for page in DOCS.rglob("*.md") if page.parent.name != "benchmarks"]
    mentioned = {
        (page.name, name)
        for page in pages
        for name in METRIC_NAME.findall(page.read_text(encoding="utf-8"))
    }
    assert len(mentioned) > 40
    assert [each for each in sorted(mentioned) if each[1] not in existing] == []


def test_the_page_lists_the_buckets() -> None:
    page = (DOCS / "metrics.md").read_text(encoding="utf-8")
    section = page.partition("## Buckets")[2].partition("##")[0]
    listed = re.findall(r"((?:[\d.]+,\s+)*[\d.]+) (ms|s)\b", section)
    seconds = [
        float(number) / (1000 if unit == "ms" else 1)
        for numbers, unit in listed
        for number in re.split(r",\s+", numbers)
    ]
    assert seconds == [*REQUEST_BUCKETS, *GATEWAY_BUCKETS]
