"""The dashboard, the alerts and the rollouts use exported metrics; generated files are current."""

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
SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
    "info": ("_info",),
}
PROMETHEUS_LABELS = {"job", "instance", "namespace", "pod", "rollouts_pod_template_hash", "le"}
SAMPLE = re.compile(r"\b((?:infergate|process)_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"[^"]*"')
GROUPING = re.compile(r"\b(?:by|without|ignoring|on)\s*\(([^)]*)\)")
TEMPLATED = re.compile(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}")


def families_with_labels(registry: CollectorRegistry) -> Iterator[tuple[Metric, set[str]]]:
    for collector in list(registry._collector_to_names):
        for family in collector.collect():
            declared = getattr(collector, "_labelnames", getattr(family, "labels", ()))
            fields = {name for sample in family.samples for name in sample.labels}
            yield family, {*declared, *fields}


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Return the names and labels of all samples that gateways export, with and without workers."""

    async def collect() -> dict[str, set[str]]:
        config = Config.default().model_copy(update={"workers": 2})
        supervisor = Supervisor(config, ConfigHistory())
        names = {
            f"{family.name}{suffix}": labels
            for family, labels in families_with_labels(supervisor._metrics.registry)
            for suffix in SUFFIXES[family.type]
        }
        await supervisor.stop(0)
        return names

    return asyncio.run(collect())


def dashboard() -> dict[str, Any]:
    document = json.loads((DEPLOY / "grafana" / "infergate.json").read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def queries() -> Iterator[tuple[str, str, str]]:
    """Yield the name of each query, the query, and a text that uses labels of the result."""
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
    errors = []
    for source, query, text in queries():
        allowed = set(PROMETHEUS_LABELS)
        for name, matchers in SAMPLE.findall(query):
            if name not in exported:
                errors.append(f"{source}: no metric {name}")
                continue
            matched = set(MATCHER.findall(matchers))
            errors += [
                f"{source}: {name} has no {label}"
                for label in matched - exported[name] - PROMETHEUS_LABELS
            ]
            allowed |= exported[name]
        templated = set(TEMPLATED.findall(text))
        grouped = {each.strip() for group in GROUPING.findall(query) for each in group.split(",")}
        errors += [f"{source}: no label {label}" for label in (grouped | templated) - allowed]
    assert not errors
    assert exported["infergate_requests_total"] >= {"route", "outcome"}  # the fixture is not empty
    assert exported["infergate_worker_restarts_total"] == set()


def test_a_legend_has_the_labels_of_its_query() -> None:
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            labels = set(TEMPLATED.findall(target["legendFormat"]))
            groups = [
                {each.strip() for each in group.split(",")}
                for group in re.findall(r"\bby\s*\(([^)]*)\)", target["expr"])
            ]
            assert all(labels == group - {"le"} for group in groups), target


def test_each_alert_has_a_test() -> None:
    tests = yaml.safe_load((DEPLOY / "prometheus" / "alerts.test.yaml").read_text())["tests"]
    tested = re.findall(r'alertname="(\w+)"', json.dumps(tests).replace("\\", ""))
    assert sorted(tested) == sorted(rule["alert"] for rule in alerts())


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DEPLOY / "generate.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_files_are_up_to_date() -> None:
    module = generator()
    assert module.DASHBOARD.read_text(encoding="utf-8") == module.dashboard()
    assert module.RULES.read_text(encoding="utf-8") == module.rules()
    for path, text in module.chart_files().items():
        assert path.read_text(encoding="utf-8") == text
    prometheus_rule = yaml.safe_load(module.RULES.read_text(encoding="utf-8"))
    assert prometheus_rule["spec"] == yaml.safe_load(ALERTS.read_text(encoding="utf-8"))
