"""The queries of the manifests for Argo Rollouts and Flagger, with their variables replaced."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from peers.support.installed import PROJECT

ROLLOUTS = PROJECT / "deploy" / "rollouts"
VARIABLES = {
    "args.route": "resnet50",
    "args.hash": "6d4cf56db6",
    "namespace": "models",
    "target": "infergate",
    "interval": "5m",
    "variables.route": "resnet50",
}
_VARIABLE = re.compile(r"{{\s*([\w.-]+)\s*}}")


def rollout_queries() -> Iterator[tuple[str, str]]:
    """Yield the name and the PromQL of each query."""
    for file in sorted(ROLLOUTS.glob("*/*.yaml")):
        for manifest in yaml.safe_load_all(file.read_text(encoding="utf-8")):
            for name, query in _queries(manifest):
                yield name, _VARIABLE.sub(lambda match: VARIABLES[match[1]], query)


def _queries(manifest: dict[str, Any]) -> Iterator[tuple[str, str]]:
    match manifest:
        case {"kind": "AnalysisTemplate", "spec": {"metrics": metrics}}:
            for metric in metrics:
                yield f"argo {metric['name']}", metric["provider"]["prometheus"]["query"]
        case {"kind": "MetricTemplate", "metadata": {"name": name}, "spec": {"query": query}}:
            yield f"flagger {name.removeprefix('infergate-')}", query
