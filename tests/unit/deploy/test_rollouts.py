"""The manifests for Argo Rollouts and Flagger have the fields of their CRDs, and fit together."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from infergate.config import compile as compiled
from infergate.config import load

ROLLOUTS = Path(__file__).parents[3] / "deploy" / "rollouts"
Manifest = dict[str, Any]

# The fields that the manifests use, from the types of Argo Rollouts 1.8
# (pkg/apis/rollouts/v1alpha1) and the CRDs of Flagger 1.41 (artifacts/flagger/crd.yaml). Kubernetes
# drops unknown fields silently. A type stands for a value; a list has one entry for all items.
TEMPLATES = [{"templateName": str}]
ANALYSIS_ARGUMENT = {"name": str, "value": str, "valueFrom": {"podTemplateHashValue": str}}
FIELDS: dict[str, Any] = {
    "AnalysisTemplate": {
        "args": [{"name": str, "value": str}],
        "metrics": [
            {
                "name": str,
                "initialDelay": str,
                "interval": str,
                "count": int,
                "failureLimit": int,
                "inconclusiveLimit": int,
                "successCondition": str,
                "failureCondition": str,
                "provider": {"prometheus": {"address": str, "query": str}},
            }
        ],
    },
    "Rollout": {
        "replicas": int,
        "rollbackWindow": {"revisions": int},
        "workloadRef": {"apiVersion": str, "kind": str, "name": str, "scaleDown": str},
        "selector": {"matchLabels": dict},
        "strategy": {
            "canary": {
                "maxUnavailable": int,
                "maxSurge": int,
                "steps": [
                    {
                        "setWeight": int,
                        "analysis": {"templates": TEMPLATES, "args": [ANALYSIS_ARGUMENT]},
                    }
                ],
            }
        },
    },
    "MetricTemplate": {"provider": {"type": str, "address": str}, "query": str},
    "Canary": {
        "provider": str,
        "targetRef": {"apiVersion": str, "kind": str, "name": str},
        "progressDeadlineSeconds": int,
        "service": {
            "port": int,
            "targetPort": str,
            "hosts": [str],
            "gatewayRefs": [{"group": str, "kind": str, "name": str, "namespace": str}],
        },
        "analysis": {
            "interval": str,
            "threshold": int,
            "stepWeights": [int],
            "metrics": [
                {
                    "name": str,
                    "interval": str,
                    "thresholdRange": {"min": (int, float), "max": (int, float)},
                    "templateRef": {"name": str},
                    "templateVariables": dict,
                }
            ],
        },
    },
}
VERSIONS = {
    "AnalysisTemplate": "argoproj.io/v1alpha1",
    "Rollout": "argoproj.io/v1alpha1",
    "MetricTemplate": "flagger.app/v1beta1",
    "Canary": "flagger.app/v1beta1",
}


@cache
def manifests(tool: str = "*") -> tuple[Manifest, ...]:
    files = ROLLOUTS.glob(f"{tool}/*.yaml")
    documents = [each for file in files for each in yaml.safe_load_all(file.read_text("utf-8"))]
    return tuple(each for each in documents if each.get("kind") in FIELDS)


def specs_of(kind: str) -> dict[str, Manifest]:
    selected = [each for each in manifests() if each["kind"] == kind]
    return {each["metadata"]["name"]: each["spec"] for each in selected}


def mistakes(value: Any, fields: Any, path: str) -> list[str]:
    """Return the paths of unknown fields, and of values of another type."""
    match fields, value:
        case dict(), dict():
            items = [(item, fields.get(key), f"{path}.{key}") for key, item in value.items()]
        case list(), list():
            items = [(item, fields[0], f"{path}[{i}]") for i, item in enumerate(value)]
        case type() | tuple(), _ if isinstance(value, fields) and not isinstance(value, bool):
            return []
        case _:
            return [path]
    return [mistake for each in items for mistake in mistakes(*each)]


def test_every_field_is_in_the_crd() -> None:
    assert {each["kind"] for each in manifests()} == FIELDS.keys()
    for each in manifests():
        assert each["apiVersion"] == VERSIONS[each["kind"]]
        assert mistakes(each["spec"], FIELDS[each["kind"]], each["kind"]) == []


def test_unknown_fields_and_wrong_types_are_found() -> None:
    assert mistakes({"a": 1, "b": [{"c": "x"}]}, {"b": [{"c": int}]}, "x") == ["x.a", "x.b[0].c"]


def test_argos_analyses_get_their_arguments() -> None:
    (rollout,) = specs_of("Rollout").values()
    templates = specs_of("AnalysisTemplate")
    steps = rollout["strategy"]["canary"]["steps"]
    analyses = [step["analysis"] for step in steps if "analysis" in step]
    assert len(analyses) == 3
    for analysis in analyses:
        arguments = {argument["name"] for argument in analysis["args"]}
        for reference in analysis["templates"]:
            declared = templates[reference["templateName"]]["args"]
            required = {each["name"] for each in declared if "value" not in each}
            assert required == arguments


def test_argos_queries_use_declared_arguments_and_conditions_that_allow_no_data() -> None:
    for template in specs_of("AnalysisTemplate").values():
        declared = {each["name"] for each in template["args"]}
        for metric in template["metrics"]:
            used = set(re.findall(r"{{args\.([\w-]+)}}", yaml.safe_dump(metric)))
            assert {"route", "hash", "prometheus"} <= used <= declared
            for condition in (metric["successCondition"], metric["failureCondition"]):
                assert condition == "false" or condition.startswith("len(result) > 0 && ")


def test_flaggers_checks_exist_and_get_their_variables() -> None:
    (canary,) = specs_of("Canary").values()
    templates = specs_of("MetricTemplate")
    referenced = {each["templateRef"]["name"]: each for each in canary["analysis"]["metrics"]}
    assert referenced.keys() == templates.keys()
    for name, metric in referenced.items():
        used = set(re.findall(r"{{ ([\w.]+) }}", templates[name]["query"]))
        assert used == {"namespace", "target", "interval", "variables.route"}
        assert metric["templateVariables"].keys() == {"route"}
        assert len(metric["thresholdRange"]) == 1
    # Pods of the promoted version, infergate-primary-…, must not match.
    queries = "".join(template["query"] for template in templates.values())
    (pattern,) = set(re.findall(r'pod=~"([^"]*)"', queries))
    pods = re.compile(pattern.replace("{{ target }}", canary["targetRef"]["name"]))
    assert pods.fullmatch("infergate-6d4cf56db6-x2x9k")
    assert not pods.fullmatch("infergate-primary-6d4cf56db6-x2x9k")


def test_the_analyzed_route_is_split_and_compared() -> None:
    config = load(ROLLOUTS / "argo" / "routes.yaml", {})
    routes = {route.label: route for route in compiled.routing_table(config).routes}
    (rollout,) = specs_of("Rollout").values()
    (name,) = {
        argument["value"]
        for step in rollout["strategy"]["canary"]["steps"]
        for argument in step.get("analysis", {}).get("args", ())
        if argument["name"] == "route"
    }
    route = routes[name]
    assert route.split
    assert route.mirror
    assert route.mirror.backend == route.split[0].backend != route.backend


@pytest.mark.parametrize("tool", ["argo", "flagger"])
def test_kustomize_renders_the_manifests(tool: str) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl with kustomize")
    argv = ["kubectl", "kustomize", str(ROLLOUTS / tool)]
    result = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    rendered = {
        (each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(result.stdout)
    }
    expected = {(each["kind"], each["metadata"]["name"]) for each in manifests(tool)}
    assert expected <= rendered.keys()
    if tool == "argo":
        autoscaler = rendered["HorizontalPodAutoscaler", "infergate"]["spec"]
        assert autoscaler["scaleTargetRef"]["kind"] == "Rollout"
        monitor = rendered["ServiceMonitor", "infergate"]["spec"]
        assert monitor["podTargetLabels"] == ["rollouts-pod-template-hash"]
        assert monitor["endpoints"]
        volumes = rendered["Deployment", "infergate"]["spec"]["template"]["spec"]["volumes"]
        (config,) = (each["configMap"]["name"] for each in volumes if "configMap" in each)
        assert re.fullmatch("infergate-[a-z0-9]{10}", config)
        routes = yaml.safe_load(rendered["ConfigMap", config]["data"]["routes.yaml"])
        assert routes["routes"][0]["split"]
