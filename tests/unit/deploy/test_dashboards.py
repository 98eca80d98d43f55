"""The metrics in the dashboard, the alerts and the rollouts are exported by a gateway."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from infergate.config.schema import Config
from infergate.runtime.config_history import ConfigHistory
from infergate.runtime.workers.supervisor import Supervisor
from rollout_queries import rollout_queries

DEPLOY = Path(__file__).parents[3] / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yaml"
ENDINGS = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
    "info": ("_info",),
}
OF_PROMETHEUS = {"job", "instance", "namespace", "pod", "rollouts_pod_template_hash", "le"}
SAMPLE = re.compile(r"\b((?:infergate|process)_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"[^"]*"')
GROUPED = re.compile(r"\b(?:by|without|ignoring|on)\s*\(([^)]*)\)")
NAMED = re.compile(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}")


def labels_of(registry: CollectorRegistry) -> Iterator[tuple[Metric, set[str]]]:
    for collector in list(registry._collector_to_names):
        for family in collector.collect():
            declared = getattr(collector, "_labelnames", getattr(family, "labels", ()))
            fields = {name for sample in family.samples for name in sample.labels}
            yield family, {*declared, *fields}


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Return the names and labels of all samples that gateways export, with and without workers."""

    async def found() -> dict[str, set[str]]:
        config = Config.default().model_copy(update={"workers": 2})
        supervisor = Supervisor(config, ConfigHistory())
        names = {
            f"{family.name}{ending}": labels
            for family, labels in labels_of(supervisor._metrics.registry)
            for ending in ENDINGS[family.type]
        }
        await supervisor.stop(0)
        return names

    return asyncio.run(found())


def dashboard() -> dict[str, Any]:
    created = json.loads((DEPLOY / "grafana" / "infergate.json").read_text(encoding="utf-8"))
    assert isinstance(created, dict)
    return created


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def queries() -> Iterator[tuple[str, str, str]]:
    """Yield the position of a query, the query, and the text that uses labels of its result."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"], target["legendFormat"]
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            metric, _, label = variable["definition"][len("label_values(") : -1].rpartition(",")
            yield variable["name"], metric, f"{{{{{label.strip()}}}}}"
    for rule in alerts():
        yield rule["alert"], rule["expr"], " ".join(rule["annotations"].values())
    for name, query in rollout_queries():
        yield name, query, ""


def test_every_metric_and_label_is_exported(exported: dict[str, set[str]]) -> None:
    wrong = []
    for where, query, text in queries():
        known = set(OF_PROMETHEUS)
        for name, matching in SAMPLE.findall(query):
            if name not in exported:
                wrong.append(f"{where}: no metric {name}")
                continue
            matched = set(MATCHER.findall(matching))
            wrong += [
                f"{where}: {name} has no {label}"
                for label in matched - exported[name] - OF_PROMETHEUS
            ]
            known |= exported[name]
        grouped = {each.strip() for group in GROUPED.findall(query) for each in group.split(",")}
        wrong += [f"{where}: no label {label}" for label in grouped - known]
        wrong += [f"{where}: no label {label}" for label in set(NAMED.findall(text)) - known]
    assert not wrong
    assert exported["infergate_requests_total"] >= {"route", "outcome"}  # the file was not empty
    assert exported["infergate_worker_restarts_total"] == set()


def test_a_legend_has_the_labels_of_its_query() -> None:
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            named = set(NAMED.findall(target["legendFormat"]))
            groups = [
                {each.strip() for each in group.split(",")}
                for group in re.findall(r"\bby\s*\(([^)]*)\)", target["expr"])
            ]
            assert all(named == group - {"le"} for group in groups), target


def test_each_alert_has_a_test() -> None:
    tests = yaml.safe_load((DEPLOY / "prometheus" / "alerts.test.yaml").read_text())["tests"]
    fired = re.findall(r'alertname="(\w+)"', json.dumps(tests).replace("\\", ""))
    assert sorted(fired) == sorted(rule["alert"] for rule in alerts())


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DEPLOY / "generate.py")
    assert spec
    assert spec.loader
    created = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(created)
    return created


def test_generated_files_are_up_to_date() -> None:
    created = generator()
    assert created.DASHBOARD.read_text(encoding="utf-8") == created.dashboard()
    assert created.RULES.read_text(encoding="utf-8") == created.rules()
    for path, text in created.chart_files().items():
        assert path.read_text(encoding="utf-8") == text
    operators = yaml.safe_load(created.RULES.read_text(encoding="utf-8"))
    assert operators["spec"] == yaml.safe_load(ALERTS.read_text(encoding="utf-8"))
