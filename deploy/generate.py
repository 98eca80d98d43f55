"""Write what is made of other files: ``python deploy/generate.py``. A test holds that it was done.

- ``grafana/infergate.json``, the dashboard, of ``grafana/panels.yaml``;
- ``kubernetes/prometheus-operator/rules.yaml`` of ``prometheus/alerts.yaml``, which promtool reads.
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

_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS: Final = 24
_GATEWAY: Final = 'job=~"$job", instance=~"$instance"'
_WORDS: Final = {
    "{GATEWAY": f"{{{_GATEWAY}",
    "{ROUTE": f'{{{_GATEWAY}, route=~"$route"',
    "{BACKEND": f'{{{_GATEWAY}, backend=~"$backend"',
    "[.]": "[$__rate_interval]",
}


def dashboard() -> str:
    """The dashboard, as Grafana imports it."""
    made = {
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
                _choice("job", "infergate_build_info"),
                _choice("instance", 'infergate_build_info{job=~"$job"}'),
                _choice("route", 'infergate_requests_total{job=~"$job"}'),
                _choice("backend", 'infergate_endpoint_addresses{job=~"$job"}'),
            ]
        },
        "panels": list(_panels(yaml.safe_load(_PANELS.read_text(encoding="utf-8")))),
    }
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def _choice(label: str, metric: str) -> dict[str, Any]:
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
    """Rows and their panels, each beside or below the one before."""
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
            place = {"x": x, "y": y, "w": width, "h": height}
            yield _panel(panel, number, row.get("kind", "timeseries"), place)
            x += width
        y += height


def _panel(
    panel: Mapping[str, Any], number: int, kind: str, place: Mapping[str, int]
) -> dict[str, Any]:
    """``kind`` is Grafana's."""
    lines = kind == "timeseries"
    legend = {"displayMode": "list", "placement": "bottom"}
    return {
        "id": number,
        "type": kind,
        "title": panel["title"],
        "description": panel.get("about", ""),
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {
                "unit": panel.get("unit", "none"),
                **({"min": 0, "custom": {"showPoints": "never"}} if lines else {}),
            },
            "overrides": [],
        },
        "options": {"tooltip": {"mode": "multi", "sort": "desc"}, "legend": legend}
        if lines
        else {},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": _spelt(query),
                "legendFormat": shown,
            }
            for index, (shown, query) in enumerate(panel["queries"].items())
        ],
    }


def _spelt(query: str) -> str:
    for word, meaning in _WORDS.items():
        query = query.replace(word, meaning)
    return query


def rules() -> str:
    """The alerts as a PrometheusRule."""
    lines = _ALERTS.read_text(encoding="utf-8").splitlines()
    groups = lines[lines.index("groups:") :]
    indented = "\n".join(f"  {line}".rstrip() for line in groups)
    return (
        "# Made by `python deploy/generate.py` of deploy/prometheus/alerts.yaml.\n"
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
