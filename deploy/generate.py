"""Generate files from other files: ``python deploy/generate.py``. A test checks the results.

- ``grafana/infergate.json``, the dashboard, from ``grafana/panels.yaml``;
- ``kubernetes/prometheus-operator/rules.yaml`` from ``prometheus/alerts.yaml``;
- the files of the Helm chart, which cannot include files outside its folder.
"""
# ruff: noqa: INP001 - a script, not part of a package

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

_HERE: Final = Path(__file__).parent
_PANELS: Final = _HERE / "grafana" / "panels.yaml"
_ALERTS: Final = _HERE / "prometheus" / "alerts.yaml"
DASHBOARD: Final = _HERE / "grafana" / "infergate.json"
RULES: Final = _HERE / "kubernetes" / "prometheus-operator" / "rules.yaml"

_CHART_FILES: Final = _HERE / "helm" / "infergate" / "files"
_SHIPPED: Final = {
    "argo-analysis.yaml": _HERE / "rollouts" / "argo" / "analysis.yaml",
    "flagger-metrics.yaml": _HERE / "rollouts" / "flagger" / "metrics.yaml",
}

_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS: Final = 24
_GATEWAY: Final = 'job=~"$job", instance=~"$instance"'
_PLACEHOLDERS: Final = {
    "{GATEWAY": f"{{{_GATEWAY}",
    "{ROUTE": f'{{{_GATEWAY}, route=~"$route"',
    "{BACKEND": f'{{{_GATEWAY}, backend=~"$backend"',
    "[.]": "[$__rate_interval]",
}


def dashboard() -> str:
    """Return the dashboard as the JSON that Grafana imports."""
    document = {
        "uid": "infergate",
        "title": "infergate",
        "tags": ["infergate", "inference"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                _variable("job", "infergate_build_info"),
                _variable("instance", 'infergate_build_info{job=~"$job"}'),
                _variable("route", 'infergate_requests_total{job=~"$job"}'),
                _variable("backend", 'infergate_endpoint_addresses{job=~"$job"}'),
            ]
        },
        "panels": list(_panels(yaml.safe_load(_PANELS.read_text(encoding="utf-8")))),
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _variable(label: str, metric: str) -> dict[str, Any]:
    query = f"label_values({metric}, {label})"
    return {
        "name": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": label},
        "definition": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
        "sort": 1,
    }


def _panels(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the rows and their panels, laid out from left to right and top to bottom."""
    number = y = 0
    for row in rows:
        width, height = row.get("width", 8), row.get("height", 8)
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": row["row"],
            "gridPos": {"x": 0, "y": y, "w": _COLUMNS, "h": 1},
            "panels": [],
        }
        x, y = 0, y + 1
        for panel in row["panels"]:
            if x + width > _COLUMNS:
                x, y = 0, y + height
            number += 1
            position = {"x": x, "y": y, "w": width, "h": height}
            yield _panel(panel, number, row.get("kind", "timeseries"), position)
            x += width
        y += height


def _panel(
    panel: Mapping[str, Any], number: int, kind: str, position: Mapping[str, int]
) -> dict[str, Any]:
    """Return one panel; ``kind`` is the type of panel in Grafana."""
    is_graph = kind == "timeseries"
    legend = {"displayMode": "list", "placement": "bottom"}
    return {
        "id": number,
        "type": kind,
        "title": panel["title"],
        "description": panel.get("about", ""),
        "datasource": _SOURCE,
        "gridPos": position,
        "fieldConfig": {
            "defaults": {
                "unit": panel.get("unit", "none"),
                **({"min": 0, "custom": {"showPoints": "never"}} if is_graph else {}),
            },
            "overrides": [],
        },
        "options": {"tooltip": {"mode": "multi", "sort": "desc"}, "legend": legend}
        if is_graph
        else {},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": _expanded(query),
                "legendFormat": legend_format,
            }
            for index, (legend_format, query) in enumerate(panel["queries"].items())
        ],
    }


def _expanded(query: str) -> str:
    for placeholder, text in _PLACEHOLDERS.items():
        query = query.replace(placeholder, text)
    return query


def _alert_groups() -> list[str]:
    lines = _ALERTS.read_text(encoding="utf-8").splitlines()
    return lines[lines.index("groups:") :]


def chart_files() -> dict[Path, str]:
    """Return the files that the Helm chart includes, by their paths."""
    shipped = {name: path.read_text(encoding="utf-8") for name, path in _SHIPPED.items()}
    shipped["alerts.yaml"] = "\n".join(_alert_groups()) + "\n"
    return {_CHART_FILES / name: text for name, text in shipped.items()}


def rules() -> str:
    """Return the alerts as a PrometheusRule resource."""
    indented = "\n".join(f"  {line}".rstrip() for line in _alert_groups())
    return (
        "# Generated from deploy/prometheus/alerts.yaml by `python deploy/generate.py`.\n"
        "apiVersion: monitoring.coreos.com/v1\n"
        "kind: PrometheusRule\n"
        "metadata:\n"
        "  name: infergate\n"
        "  labels: {app.kubernetes.io/name: infergate}\n"
        f"spec:\n{indented}\n"
    )


if __name__ == "__main__":
    DASHBOARD.write_text(dashboard(), encoding="utf-8")
    RULES.write_text(rules(), encoding="utf-8")
    for path, text in chart_files().items():
        path.write_text(text, encoding="utf-8")
