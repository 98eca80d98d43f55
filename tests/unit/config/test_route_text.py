"""The text of routes and endpoints in tables."""

from __future__ import annotations

import json

import pytest
import yaml

from infergate.config.route_text import endpoints_text, policies_text, targets_text
from infergate.config.routes import RouteConfig
from infergate.config.schema import BackendConfig


def route_of(keys: str) -> RouteConfig:
    section = {"model": "m", "backend": "a", **yaml.safe_load(keys)}
    return RouteConfig.model_validate_json(json.dumps(section))


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ("{}", "a"),
        ("{split: [{backend: b, percent: 10}]}", "a, 10% b"),
        ("{fallback: c}", "a, else c"),
        ("{mirror: {backend: d, percent: 2.5}}", "a, 2.5% mirrored to d"),
        (
            "{split: [{backend: b, percent: 5}], fallback: c, mirror: {backend: d, percent: 1}}",
            "a, 5% b, else c, 1% mirrored to d",
        ),
    ],
)
def test_targets_are_described(keys: str, text: str) -> None:
    assert targets_text(route_of(keys)) == text


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ("{}", "-"),
        ("{headers: {x-stage: canary}}", "only x-stage: canary"),
        ("{retry: {times: 4}, idempotent: true}", "retries: 4, idempotent"),
        ("{idempotent: true, hedge: {after: 50ms}}", "idempotent, hedge after 50ms"),
        ("{priority: 2, validate: false}", "priority 2, not validated"),
        ("{hooks: [guard, audit]}", "hooks: guard audit"),
        (
            "{transforms: {inputs: [{rename: {x: y}}], outputs: [{softmax: {tensor: s}}]}}",
            "transformed: rename softmax",
        ),
        ("{record: {percent: 12.5}}", "12.5% recorded"),
    ],
)
def test_policies_are_described(keys: str, text: str) -> None:
    assert policies_text(route_of(keys)) == text


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ("{protocol: builtin}", "-"),
        (
            "{protocol: v2-grpc, endpoints: ['grpc://h:1', {url: 'grpc://i:2', weight: 3}]}",
            "grpc://h:1 grpc://i:2 (weight 3)",
        ),
        (
            "{protocol: v2-grpc, endpoints: ['grpc://models:8001'], kubernetes: {port: grpc}}",
            "grpc://models:8001 (EndpointSlices)",
        ),
    ],
)
def test_endpoints_are_described(keys: str, text: str) -> None:
    backend = BackendConfig.model_validate_json(json.dumps(yaml.safe_load(keys)))
    assert endpoints_text(backend) == text
