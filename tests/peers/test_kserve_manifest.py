"""Tests that the InferenceService in deploy/kserve is valid for KServe's types, and that its
gateway accepts its configuration and arguments."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from infergate import __version__
from infergate.config import compile as compiled
from infergate.config.load import parse
from peers import kserve_manifest
from peers.support.installed import PROJECT, Installed
from peers.support.process import client_environment

pytestmark = pytest.mark.peers

MANIFESTS = {
    each["kind"]: each
    for each in yaml.safe_load_all(
        (PROJECT / "deploy" / "kserve" / "inference-service.yaml").read_text(encoding="utf-8")
    )
}
SERVICE = MANIFESTS["InferenceService"]
TRANSFORMER = SERVICE["spec"]["transformer"]
CONFIG = MANIFESTS["ConfigMap"]["data"]["routes.yaml"]
APPENDED = ["--model_name", "resnet50", "--predictor_host", "resnet50-predictor.models",
            "--http_port", "8080"]  # fmt: skip
"""The arguments that KServe appends (pkg/apis/serving/v1beta1/transformer_custom.go)."""


def faults(kserve_sdk: Installed, manifest: dict[str, Any]) -> list[str]:
    script = Path(kserve_manifest.__file__).with_name("check.py")
    done = subprocess.run(
        [kserve_sdk.python, script],
        check=True, capture_output=True, text=True, timeout=100, input=json.dumps(manifest),
        env=client_environment(),
    )  # fmt: skip
    return done.stdout.splitlines()


def test_the_manifest_has_no_faults(kserve_sdk: Installed) -> None:
    assert faults(kserve_sdk, SERVICE) == []


def test_faults_in_a_manifest_are_reported(kserve_sdk: Installed) -> None:
    broken = json.loads(json.dumps(SERVICE))
    broken["spec"]["transformer"]["container"] = []
    broken["spec"]["transformer"]["minReplicas"] = "2"
    broken["spec"]["predictor"]["model"]["modelFormat"] = "triton"
    del broken["spec"]["transformer"]["containers"][0]["volumeMounts"][0]["mountPath"]
    assert len(faults(kserve_sdk, broken)) == 4


def test_the_gateway_ignores_the_arguments_that_kserve_appends(tmp_path: Path) -> None:
    (container,) = TRANSFORMER["containers"]
    (mount,) = container["volumeMounts"]
    (tmp_path / "routes.yaml").write_text(CONFIG)
    program = f"{sys.executable} -m infergate"
    shell, option, script = container["command"]
    script = script.replace("infergate", program, 1).replace(mount["mountPath"], str(tmp_path))
    done = subprocess.run(
        [shell, option, f"{script} --check", *container["args"], *APPENDED],
        check=False, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "predictor" in done.stdout


def test_the_transformer_matches_its_configuration() -> None:
    config = parse(CONFIG, "routes.yaml", {})
    (container,) = TRANSFORMER["containers"]
    ports = {each["containerPort"] for each in container["ports"]}
    assert ports == {each.port for each in compiled.addresses(config).values()}
    assert container["ports"][0]["containerPort"] == 8080
    assert container["image"] == f"registry.example/infergate:{__version__}"
    drain_seconds = config.drain.delay + config.drain.timeout
    assert TRANSFORMER["terminationGracePeriodSeconds"] >= drain_seconds + 10
    (volume,) = TRANSFORMER["volumes"]
    assert volume["configMap"]["name"] == MANIFESTS["ConfigMap"]["metadata"]["name"]
    (endpoint,) = compiled.endpoints(config.backends["predictor"])
    assert endpoint.host == f"{SERVICE['metadata']['name']}-predictor"
    account = MANIFESTS["ServiceAccount"]["metadata"]["name"]
    assert TRANSFORMER["serviceAccountName"] == account
    (subject,) = MANIFESTS["RoleBinding"]["subjects"]
    assert subject["name"] == account
    assert MANIFESTS["RoleBinding"]["roleRef"]["name"] == MANIFESTS["Role"]["metadata"]["name"]
