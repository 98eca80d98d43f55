"""Tests that the tools that read the files in deploy/ accept them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from peers.support.deploy_tools import promtool
from peers.support.installed import PROJECT, Installed

DEPLOY = PROJECT / "deploy"
OVERLAYS = ("base", "sidecar", "fleet")
RELEASES = ("1.27", "1.32", "1.37")
"""The oldest supported Kubernetes version, a version in between, and the newest version known to
the tool."""
CUSTOM = {"ServiceMonitor", "PrometheusRule"}
"""Custom resource kinds. Kubernetes does not define them."""


def said(*argv: str, cwd: Path | None = None) -> str:
    done = subprocess.run(
        argv, cwd=cwd, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture
def checks_rules(deploy_tools: Installed) -> str:
    found = promtool(deploy_tools)
    if found is None:
        pytest.skip("needs promtool (Debian: prometheus)")
    return found


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_manifests_match_kubernetes_schemas(
    overlay: str, release: str, deploy_tools: Installed, tmp_path: Path
) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl, which has kustomize in it")
    text = said("kubectl", "kustomize", str(DEPLOY / "kubernetes" / overlay))
    known = [each for each in yaml.safe_load_all(text) if each["kind"] not in CUSTOM]
    assert known
    built = tmp_path / "built.yaml"
    built.write_text(yaml.safe_dump_all(known))
    validate = str(deploy_tools.python.with_name("kubernetes-validate"))
    output = said(validate, "--strict", "-k", release, str(built))
    assert output.count("passed for resource") == len(known)


def test_the_dockerfile_is_clean(deploy_tools: Installed) -> None:
    lint = str(deploy_tools.python.with_name("hadolint"))
    said(lint, "--failure-threshold", "info", str(DEPLOY / "docker" / "Dockerfile"))


def test_alert_rules_fire(checks_rules: str) -> None:
    folder = DEPLOY / "prometheus"
    said(checks_rules, "check", "rules", "alerts.yaml", cwd=folder)
    said(checks_rules, "test", "rules", "alerts.test.yaml", cwd=folder)


def test_promtool_accepts_the_compose_scrape_configuration(
    checks_rules: str, tmp_path: Path
) -> None:
    shutil.copy(DEPLOY / "docker" / "prometheus.yaml", tmp_path)
    shutil.copy(DEPLOY / "prometheus" / "alerts.yaml", tmp_path)
    said(checks_rules, "check", "config", "prometheus.yaml", cwd=tmp_path)


def test_dashboard_queries_are_valid_promql(checks_rules: str, tmp_path: Path) -> None:
    panels = json.loads((DEPLOY / "grafana" / "infergate.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    records = [
        {"record": f"query{index}", "expr": query.replace("$__rate_interval", "5m")}
        for index, query in enumerate(queries)
    ]
    rules = tmp_path / "rules.yaml"
    rules.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": records}]}))
    assert f"{len(queries)} rules found" in said(checks_rules, "check", "rules", str(rules))


@pytest.mark.peers
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    text = (DEPLOY / "systemd" / "infergate.service").read_text()
    there = (
        tmp_path / "infergate.service"
    )  # the program must exist, because the tool reports missing programs
    there.write_text(text.replace("/opt/infergate/bin/infergate", "/bin/true"))
    assert not said("systemd-analyze", "verify", "--man=no", "--generators=no", str(there)).strip()
    output = said("systemd-analyze", "security", "--offline=true", "--threshold=20", str(there))
    assert "Overall exposure level" in output  # a score below 2.0 of 10 passes
