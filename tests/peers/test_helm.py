"""Tests of the Helm chart and its values with the real helm, and a comparison with kustomize."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from infergate import __version__
from infergate.config import compile as compiled
from infergate.config.load import parse
from peers.support.installed import PROJECT, Installed
from peers.support.kubernetes_tools import render, run_helm, run_kubectl

pytestmark = pytest.mark.peers
Manifest = dict[str, Any]

DEPLOY = PROJECT / "deploy"
CHART = DEPLOY / "helm" / "infergate"
VALUES = {path.stem: path for path in (CHART / "examples").glob("*.yaml")}
FLEET = [VALUES["fleet"]]
EXAMPLES: dict[str, list[Path]] = {
    "defaults": [],
    "fleet": FLEET,
    "sidecar": [VALUES["sidecar"]],
    "endpoint-slices": [VALUES["endpoint-slices"]],
    "fleet-with-endpoint-slices": [VALUES["fleet"], VALUES["endpoint-slices"]],
    "in-flight-autoscaling": [VALUES["in-flight-autoscaling"]],
    "rollouts-argo": [VALUES["fleet"], VALUES["rollouts-argo"]],
}
ONLY_HELM = {
    "app.kubernetes.io/instance",
    "app.kubernetes.io/version",
    "app.kubernetes.io/managed-by",
    "helm.sh/chart",
    "checksum/config",
}
"""Labels and annotations that only the chart sets. The checksum of the configuration restarts the
pods after a change; in kustomize, the ConfigMap gets a new name."""


def kustomized(tools: Installed, overlay: str) -> list[Manifest]:
    done = run_kubectl(tools, "kustomize", str(DEPLOY / overlay))
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def comparable(manifests: list[Manifest]) -> dict[tuple[str, str], Manifest]:
    """Return the manifests by kind and name, without the documented differences
    (docs/kubernetes.md)."""
    config = next((each for each in manifests if each["kind"] == "ConfigMap"), None)
    renamed = {config["metadata"]["name"]: "infergate"} if config else {}
    comparable_manifests = {}
    for manifest in manifests:
        simple = without_helm(manifest, renamed)
        simple["metadata"].pop("labels", None)  # `labels` returns them
        if simple["metadata"].get("namespace") == "models":  # the release's namespace
            del simple["metadata"]["namespace"]
        for subject in simple.get("subjects", ()):
            subject.setdefault("namespace", "models")
        if manifest["kind"] == "Deployment":
            simple["spec"]["template"]["spec"]["volumes"].sort(key=lambda volume: volume["name"])
        if manifest["kind"] == "ConfigMap":
            text = manifest["data"]["routes.yaml"]
            simple = {**simple, "data": yaml.safe_load(text)}
        key = manifest["kind"], simple["metadata"]["name"]
        assert key not in comparable_manifests
        comparable_manifests[key] = simple
    return comparable_manifests


def without_helm(value: Any, renamed: dict[str, str]) -> Any:
    if isinstance(value, dict):
        changed = {k: without_helm(v, renamed) for k, v in value.items() if k not in ONLY_HELM}
        return {k: v for k, v in changed.items() if not (k == "annotations" and not v)}
    if isinstance(value, list):
        return [without_helm(each, renamed) for each in value]
    return renamed.get(value, value) if isinstance(value, str) else value


def labels(manifests: list[Manifest]) -> dict[tuple[str, str], Manifest]:
    return {
        (each["kind"], each["metadata"]["name"]): each["metadata"].get("labels", {})
        for each in manifests
        if each["kind"] != "ConfigMap"
    }


@pytest.mark.parametrize(
    ("overlay", "example"),
    [
        ("kubernetes/base", "defaults"),
        ("kubernetes/sidecar", "sidecar"),
        ("kubernetes/fleet", "fleet"),
        ("kubernetes/endpoint-slices", "endpoint-slices"),
        ("rollouts/argo", "rollouts-argo"),
    ],
)
def test_helm_and_kustomize_render_the_same_manifests(
    overlay: str, example: str, kubernetes_tools: Installed
) -> None:
    by_kustomize = kustomized(kubernetes_tools, overlay)
    by_helm = render(kubernetes_tools, CHART, EXAMPLES[example])
    expected, rendered = comparable(by_kustomize), comparable(by_helm)
    assert expected.keys() == rendered.keys()
    for key, manifest in expected.items():
        assert rendered[key] == manifest, key
    chart_labels = labels(by_helm)
    for key, common in labels(by_kustomize).items():
        assert common.items() <= chart_labels[key].items(), key
        if key[0] != "AnalysisTemplate":
            assert chart_labels[key].keys() >= ONLY_HELM - {"checksum/config"}


def test_helm_renders_the_flagger_manifests_of_kustomize(kubernetes_tools: Installed) -> None:
    expected = comparable(kustomized(kubernetes_tools, "rollouts/flagger"))
    rendered = comparable(render(kubernetes_tools, CHART, [], "rollouts.flagger.enabled=true"))
    assert expected == {key: rendered[key] for key in expected}


@pytest.mark.parametrize("example", EXAMPLES)
def test_helm_lint_reports_nothing(example: str, kubernetes_tools: Installed) -> None:
    files = [argument for path in EXAMPLES[example] for argument in ("--values", str(path))]
    done = run_helm(kubernetes_tools, "lint", "--strict", "--quiet", str(CHART), *files)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_configuration_matches_the_pod(example: str, kubernetes_tools: Installed) -> None:
    manifests = render(kubernetes_tools, CHART, EXAMPLES[example])
    (text,) = (each["data"]["routes.yaml"] for each in manifests if each["kind"] == "ConfigMap")
    (deployment,) = (each for each in manifests if each["kind"] == "Deployment")
    config, spec = parse(text, example, {}), deployment["spec"]["template"]["spec"]
    (gateway,) = (each for each in spec["containers"] if each["name"] == "infergate")
    ports = {each["name"]: each["containerPort"] for each in gateway["ports"]}
    assert ports == {name: each.port for name, each in compiled.addresses(config).items()}
    drain_seconds = config.drain.delay + config.drain.timeout
    assert spec["terminationGracePeriodSeconds"] >= drain_seconds + 10
    assert gateway["image"] == f"registry.example/infergate:{__version__}"


def test_the_endpoint_slice_watch_gets_its_permissions(
    kubernetes_tools: Installed, deploy_tools: Installed, tmp_path: Path
) -> None:
    manifests = render(
        kubernetes_tools,
        CHART,
        [VALUES["endpoint-slices"], VALUES["in-flight-autoscaling"]],
        "endpointSlices.namespaces={models,other}",
        "serviceMonitor.enabled=false",
    )
    by_kind: dict[str, list[Manifest]] = {}
    for each in manifests:
        by_kind.setdefault(each["kind"], []).append(each)
    (account,), roles, bindings = (
        by_kind["ServiceAccount"], by_kind["Role"], by_kind["RoleBinding"],
    )  # fmt: skip
    assert [each["metadata"]["namespace"] for each in roles] == ["models", "other"]
    for role, binding in zip(roles, bindings, strict=True):
        assert role["rules"] == [
            {
                "apiGroups": ["discovery.k8s.io"],
                "resources": ["endpointslices"],
                "verbs": ["list", "watch"],
            }
        ]
        assert binding["roleRef"]["name"] == role["metadata"]["name"]
        assert binding["metadata"]["namespace"] == role["metadata"]["namespace"]
        assert binding["subjects"] == [
            {
                "kind": "ServiceAccount",
                "name": account["metadata"]["name"],
                "namespace": "models",
            }
        ]
    spec = by_kind["Deployment"][0]["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == account["metadata"]["name"]
    assert spec["automountServiceAccountToken"] is True
    egress = by_kind["NetworkPolicy"][0]["spec"]["egress"]
    assert {"ports": [{"port": 443}, {"port": 6443}]} in egress
    metrics = by_kind["HorizontalPodAutoscaler"][0]["spec"]["metrics"]
    assert metrics[1]["pods"]["metric"] == {"name": "infergate_in_flight_requests"}

    file = tmp_path / "manifests.yaml"
    file.write_text(yaml.safe_dump_all(manifests))
    validate = str(deploy_tools.python.with_name("kubernetes-validate"))
    done = subprocess.run(
        [validate, "--strict", "-k", "1.32", str(file)],
        check=False, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("passed for resource") == len(manifests)


def test_without_the_watch_the_pod_has_no_token(kubernetes_tools: Installed) -> None:
    manifests = render(kubernetes_tools, CHART)
    assert not {"ServiceAccount", "Role", "RoleBinding"} & {each["kind"] for each in manifests}
    (deployment,) = (each for each in manifests if each["kind"] == "Deployment")
    assert deployment["spec"]["template"]["spec"]["automountServiceAccountToken"] is False


def test_values_reach_the_manifests(kubernetes_tools: Installed, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(
        yaml.safe_dump(
            {
                "existingConfigMap": "shared",
                "extraVolumes": [{"name": "tls", "secret": {"secretName": "tls"}}],
                "extraVolumeMounts": [{"name": "tls", "mountPath": "/tls", "readOnly": True}],
                "env": [{"name": "TRITON_URL", "value": "grpc://other:8001"}],
                "podLabels": {"team": "a"},
                "podAnnotations": {"note": "b"},
                "imagePullSecrets": [{"name": "pull"}],
                "tolerations": [{"key": "gpu", "operator": "Exists"}],
                "nodeSelector": {"disk": "ssd"},
                "priorityClassName": "high",
                "networkPolicy": {"enabled": False},
                "service": {"type": "LoadBalancer", "annotations": {"c": "d"}},
            }
        )
    )
    manifests = render(
        kubernetes_tools, CHART, [values], "replicas=3", "image.tag=1.2", "image.pullPolicy=Always"
    )
    by_kind = {each["kind"]: each for each in manifests}
    assert by_kind.keys() == {"Deployment", "Service"}
    deployment, service = by_kind["Deployment"]["spec"], by_kind["Service"]
    assert deployment["replicas"] == 3
    template = deployment["template"]
    assert template["metadata"]["labels"]["team"] == "a"
    assert template["metadata"]["annotations"]["note"] == "b"
    spec = template["spec"]
    (gateway,) = spec["containers"]
    assert (gateway["image"], gateway["imagePullPolicy"]) == (
        "registry.example/infergate:1.2",
        "Always",
    )
    assert gateway["env"] == [{"name": "TRITON_URL", "value": "grpc://other:8001"}]
    assert gateway["volumeMounts"][1]["mountPath"] == "/tls"
    assert spec["volumes"][0]["configMap"] == {"name": "shared"}
    assert spec["volumes"][1]["secret"] == {"secretName": "tls"}
    assert spec["imagePullSecrets"] == [{"name": "pull"}]
    assert (spec["nodeSelector"], spec["priorityClassName"]) == ({"disk": "ssd"}, "high")
    assert spec["tolerations"][0]["key"] == "gpu"
    assert service["spec"]["type"] == "LoadBalancer"
    assert service["metadata"]["annotations"] == {"c": "d"}


def test_the_configuration_may_come_from_a_file(kubernetes_tools: Installed) -> None:
    file = DEPLOY / "kubernetes" / "fleet" / "routes.yaml"
    done = run_helm(kubernetes_tools, "template", "x", str(CHART), "--set-file", f"config={file}")
    (config,) = (each for each in yaml.safe_load_all(done.stdout) if each["kind"] == "ConfigMap")
    assert config["data"]["routes.yaml"] == file.read_text(encoding="utf-8")


def test_the_autoscaler_sets_the_number_of_gateways(kubernetes_tools: Installed) -> None:
    manifests = render(kubernetes_tools, CHART, [], "replicas=3", "autoscaling.enabled=true")
    (deployment,) = (each for each in manifests if each["kind"] == "Deployment")
    assert "replicas" not in deployment["spec"]


def test_flagger_scales_the_primary_with_the_autoscaler(kubernetes_tools: Installed) -> None:
    settings = "rollouts.flagger.enabled=true", "autoscaling.enabled=true"
    manifests = render(kubernetes_tools, CHART, [], *settings)
    by_kind = {each["kind"]: each for each in manifests}
    name = by_kind["HorizontalPodAutoscaler"]["metadata"]["name"]
    assert by_kind["Canary"]["spec"]["autoscalerRef"] == {
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "name": name,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("release", "name"),
    [("123", "123-infergate"), ("a.b", "a-b-infergate"), ("a" * 53, "a" * 50)],
)
def test_unusual_release_names_give_valid_names(
    release: str, name: str, kubernetes_tools: Installed
) -> None:
    done = run_helm(
        kubernetes_tools, "template", release, str(CHART), "--set", "podsService.enabled=true"
    )
    for each in yaml.safe_load_all(done.stdout):
        assert each["metadata"]["name"] in {name, f"{name}-pods"}
        assert each["metadata"]["labels"]["app.kubernetes.io/instance"] == release


def test_the_longest_name_that_the_schema_allows_is_not_cut(kubernetes_tools: Installed) -> None:
    name = "a" * 50
    manifests = render(kubernetes_tools, CHART, [], f"fullnameOverride={name}")
    assert {each["metadata"]["name"] for each in manifests} == {name}


def test_releases_have_different_names_and_selectors(kubernetes_tools: Installed) -> None:
    done = run_helm(kubernetes_tools, "template", "other", str(CHART))
    for each in yaml.safe_load_all(done.stdout):
        assert each["metadata"]["name"] == "other-infergate"
        selector = each.get("spec", {}).get("selector")
        if selector is not None:
            matched = selector.get("matchLabels", selector)
            assert matched["app.kubernetes.io/instance"] == "other"


def test_labels_of_the_pods_may_be_empty(kubernetes_tools: Installed) -> None:
    done = run_helm(kubernetes_tools, "template", "x", str(CHART), "--set", "podLabels=null")
    assert done.returncode == 0, done.stderr


INVALID_VALUES = (
    ("replica=3", "replica"),
    ("ports.http=0", "ports.http"),
    ("autoscaling.cpu=much", "autoscaling.cpu"),
    ("networkPolicy.server.ports={1}", "networkPolicy"),
    ("image.pullPolicy=Sometimes", "image.pullPolicy"),
    ("serviceMonitor.enabled=true", "serviceMonitor needs podsService.enabled"),
    ("fullnameOverride=" + "a" * 51, "fullnameOverride"),
    (r"podLabels.app\.kubernetes\.io/name=x", "podLabels: the chart sets app.kubernetes.io.name"),
    ("rollouts.argo.enabled=true,rollouts.flagger.enabled=true", "not both"),
)


@pytest.mark.parametrize(("setting", "message"), INVALID_VALUES)
def test_invalid_values_are_rejected(
    setting: str, message: str, kubernetes_tools: Installed
) -> None:
    done = run_helm(kubernetes_tools, "template", "x", str(CHART), "--set", setting)
    assert done.returncode != 0
    assert message in done.stderr.replace("/", ".")
