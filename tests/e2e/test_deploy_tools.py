"""Tests the files in deploy/ with the tools that read them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from e2e.running import output_of
from peers.support.deploy_tools import promtool
from peers.support.installed import PROJECT, Installed
from rollout_queries import rollout_queries

DEPLOY = PROJECT / "deploy"
OVERLAYS = ("base", "sidecar", "fleet", "endpoint-slices")
RELEASES = ("1.27", "1.32", "1.37")
"""The oldest supported Kubernetes version, a version in between, and the newest version known to
the tool."""
CUSTOM_KINDS = {"ServiceMonitor", "PrometheusRule"}
"""Custom resources, for which Kubernetes has no schema."""


@pytest.fixture
def promtool_path(deploy_tools: Installed) -> str:
    path = promtool(deploy_tools)
    if path is None:
        pytest.skip("needs promtool (Debian: prometheus)")
    return path


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_manifests_match_kubernetes_schemas(
    overlay: str, release: str, deploy_tools: Installed, tmp_path: Path
) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl, which includes kustomize")
    text = output_of("kubectl", "kustomize", str(DEPLOY / "kubernetes" / overlay))
    resources = [each for each in yaml.safe_load_all(text) if each["kind"] not in CUSTOM_KINDS]
    assert resources
    built = tmp_path / "built.yaml"
    built.write_text(yaml.safe_dump_all(resources))
    validate = str(deploy_tools.python.with_name("kubernetes-validate"))
    output = output_of(validate, "--strict", "-k", release, str(built))
    assert output.count("passed for resource") == len(resources)


def test_the_dockerfile_is_clean(deploy_tools: Installed) -> None:
    lint = str(deploy_tools.python.with_name("hadolint"))
    output_of(lint, "--failure-threshold", "info", str(DEPLOY / "docker" / "Dockerfile"))


def test_alert_rules_fire(promtool_path: str) -> None:
    folder = DEPLOY / "prometheus"
    output_of(promtool_path, "check", "rules", "alerts.yaml", cwd=folder)
    output_of(promtool_path, "test", "rules", "alerts.test.yaml", cwd=folder)


def test_promtool_accepts_the_compose_scrape_configuration(
    promtool_path: str, tmp_path: Path
) -> None:
    shutil.copy(DEPLOY / "docker" / "prometheus.yaml", tmp_path)
    shutil.copy(DEPLOY / "prometheus" / "alerts.yaml", tmp_path)
    output_of(promtool_path, "check", "config", "prometheus.yaml", cwd=tmp_path)


def test_dashboard_queries_are_valid_promql(promtool_path: str, tmp_path: Path) -> None:
    panels = json.loads((DEPLOY / "grafana" / "infergate.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    records = [
        {"record": f"query{index}", "expr": query.replace("$__rate_interval", "5m")}
        for index, query in enumerate(queries)
    ]
    rules = tmp_path / "rules.yaml"
    rules.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": records}]}))
    assert f"{len(queries)} rules found" in output_of(promtool_path, "check", "rules", str(rules))


RATES = {
    ("infergate_comparisons_total", 'result="equal"'): 90,
    ("infergate_comparisons_total", 'result="within_noise"'): 5,
    ("infergate_comparisons_total", 'result="different"'): 5,
    ("infergate_comparisons_total", 'result="dropped"'): 1000,
    ("infergate_requests_total", 'outcome="ok"'): 96,
    ("infergate_requests_total", 'outcome="timeout"'): 1,
    ("infergate_requests_total", 'outcome="bad_request"'): 3,
    ("infergate_request_seconds_bucket", 'operation="infer",le="0.1"'): 98,
    ("infergate_request_seconds_bucket", 'operation="infer",le="0.2"'): 100,
    ("infergate_request_seconds_bucket", 'operation="infer",le="+Inf"'): 100,
}
"""Increases per minute of the canary's series."""
EXPECTED = {
    "argo agreement": 0.95,
    "argo comparisons": 1000,  # in 10 minutes
    "argo success": 0.99,
    "argo p99": 0.15,
    "flagger agreement": 95,
    "flagger comparisons": 500,  # in 5 minutes
    "flagger success": 99,
    "flagger p99": 0.15,
}


def test_the_queries_of_rollouts_measure_the_canary(promtool_path: str, tmp_path: Path) -> None:
    """The queries must ignore the other version's series, and return nothing for a route without
    data."""
    queries = dict(rollout_queries())
    assert queries.keys() == EXPECTED.keys()
    names = {name: f"query:{index}" for index, name in enumerate(queries)}
    other = "other"
    rules = [{"record": names[name], "expr": query} for name, query in queries.items()] + [
        {"record": f"{names[name]}:empty", "expr": query.replace("resnet50", other)}
        for name, query in queries.items()
    ]
    series = [
        {
            "series": f'{metric}{{route="resnet50",namespace="models",{labels},{pod}}}',
            "values": f"0+{rate}x30",
        }
        for (metric, labels), increase in RATES.items()
        for pod, rate in (
            ('pod="infergate-6d4cf56db6-a",rollouts_pod_template_hash="6d4cf56db6"', increase),
            ('pod="infergate-primary-7f-b",rollouts_pod_template_hash="7f"', 7),
        )
    ]
    samples = [
        {
            "expr": f"round({names[name]}, 0.001)",
            "eval_time": "20m",
            "exp_samples": [{"labels": "{}", "value": value}],
        }
        for name, value in EXPECTED.items()
    ] + [
        {"expr": f"{name}:empty", "eval_time": "20m", "exp_samples": []} for name in names.values()
    ]
    test = {"interval": "1m", "input_series": series, "promql_expr_test": samples}
    groups = {"groups": [{"name": "rollouts", "rules": rules}]}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(groups))
    (tmp_path / "test.yaml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": [test]})
    )
    output_of(promtool_path, "test", "rules", "test.yaml", cwd=tmp_path)


@pytest.mark.peers
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    text = (DEPLOY / "systemd" / "infergate.service").read_text()
    unit = tmp_path / "infergate.service"
    # The unit's program must exist, because the tool reports missing programs.
    unit.write_text(text.replace("/opt/infergate/bin/infergate", "/bin/true"))
    assert not output_of(
        "systemd-analyze", "verify", "--man=no", "--generators=no", str(unit)
    ).strip()
    output = output_of("systemd-analyze", "security", "--offline=true", "--threshold=20", str(unit))
    assert "Overall exposure level" in output  # a score below 2.0 of 10 passes
