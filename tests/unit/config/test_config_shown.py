from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from infergate.assembly.endpoint_settings import configured_endpoints
from infergate.config import Config, load
from infergate.config.load import parse
from infergate.config.redacted import HIDDEN_CHANGE, _redact, _secrets, redacted_diff, redacted_yaml
from infergate.config.values import display_names
from infergate.plugins import RequestHook
from infergate.runtime.console.plan import plan

VALID_CONFIGS = Path(__file__).parents[2] / "config" / "good"
HASH = "5" * 63
TEXT = """
listeners: {{admin: {{keys: [{{name: ops, sha256: "{0}1"}}], actions: true}}}}
backends: {{demo: {{protocol: builtin}}}}
routes:
  - {{model: m, backend: demo, headers: {{authorization: "Bearer hunter2", x-stage: canary}}}}
  - {{model: "*", backend: demo}}
access:
  keys: [{{name: ci, sha256: "{0}{1}"}}]
  rules: [{{who: ["key:ci"], models: ["*"], operations: [infer]}}]
  rates: [{{who: ["*"], models: ["*"], requests: 5/s}}]
  redis: {{url: "redis://user:{2}@host:6379/0"}}
"""


@dataclass
class Options:
    password: float
    auth: bool
    size: int


class Hook(RequestHook):
    options_type = Options


def config(last: str = "2", password: str = "pass@hunter2") -> Config:
    return parse(TEXT.format(HASH, last, password), "routes.yaml", {})


@pytest.mark.parametrize("defaults", [False, True])
def test_no_secret_is_shown(defaults: bool) -> None:
    text = redacted_yaml(config(), defaults=defaults)
    for secret in ("hunter2", HASH, "pass@"):
        assert secret not in text
    assert "x-stage: canary" in text
    assert text.count("(hidden)") == 3
    assert text.count("redis:…") == 1


def test_defaults_are_shown_on_request() -> None:
    assert "idle_body_time" not in redacted_yaml(config())
    assert "idle_body_time: 30s" in redacted_yaml(config(), defaults=True)


def test_the_diff_has_the_changed_lines() -> None:
    assert redacted_diff(config(), config()) == ""
    other = parse(TEXT.format(HASH, "2", "pass@hunter2").replace("5/s", "6/s"), "routes.yaml", {})
    lines = redacted_diff(config(), other).splitlines()
    assert "-    requests: 5/s" in lines or "-  requests: 5/s" in lines, lines
    assert any(line.startswith("+") and "6/s" in line for line in lines)


def test_a_changed_secret_is_reported_but_not_shown() -> None:
    text = redacted_diff(config(), config(last="3", password="hunter3"))
    assert text.count("(hidden, changed)") == 1
    assert "hunter" not in text
    assert HASH not in text


def test_options_of_plug_ins_that_may_be_credentials_are_hidden() -> None:
    text = """
        listeners: {codecs: {my-codec: {password: hunter2, strict: "yes"}}}
        backends:
          m: {protocol: python, model: "a:B", options: {api_key: hunter2, urls: {token: [hunter2]}}}
        hooks: {guard: {hook: "a:B", options: {secret: hunter2, policy: shown}}}
        routes:
          - model: "*"
            backend: m
            transforms: {inputs: {x: [{plugin: {transform: "a:B", options: {key: hunter2}}}]}}
    """
    redacted = _redact(yaml.safe_load(text))
    assert "hunter2" not in str(redacted)
    assert str(redacted).count("(hidden)") == 5
    assert "shown" in str(redacted)
    assert redacted["listeners"]["codecs"]["my-codec"]["strict"] == "yes"


def test_keys_of_a_mapping_that_may_be_credentials_are_hidden() -> None:
    def hook(keys: Any) -> dict[str, Any]:
        return {"hooks": {"guard": {"hook": "a:B", "options": {"api_keys": keys}}}}

    assert _redact(hook({"hunter2": "team-a"})) == hook("(hidden)")
    assert list(_secrets(hook(["hunter2"]), ())) == [
        (("hooks", "guard", "options", "api_keys"), ["hunter2"])
    ]


def test_a_number_that_may_be_a_credential_is_hidden() -> None:
    text = """
        backends: {{demo: {{protocol: builtin}}}}
        hooks:
          guard:
            hook: "test_config_shown:Hook"
            options: {{password: {0}, auth: true, size: 7}}
        routes: [{{model: "*", backend: demo}}]
    """
    old, new = [parse(text.format(each), "routes.yaml", {}) for each in (1234, 56.78)]
    redacted = redacted_yaml(old)
    assert "password: (hidden)" in redacted
    assert "auth: true" in redacted
    assert "size: 7" in redacted
    diff = redacted_diff(old, new)
    assert "1234" not in diff
    assert "56.78" not in diff
    assert "password: (hidden, changed)" in diff


def test_a_change_of_hidden_values_only_is_reported() -> None:
    assert redacted_diff(config(), config(password="hunter3")) == HIDDEN_CHANGE


@pytest.mark.parametrize("file", sorted(VALID_CONFIGS.glob("*.yaml")), ids=lambda each: each.stem)
def test_every_configuration_can_be_shown(file: Path) -> None:
    environ = {
        "GOOD_HOST": "0.0.0.0", "GOOD_EMPTY": "", "GOOD_BACKEND": "demo", "GOOD_NUMBER": "7",
        "GOOD_FALSE": "false",
    }  # fmt: skip
    loaded = load(file, environ)
    assert "routes:" in redacted_yaml(loaded)
    assert "routes:" in redacted_yaml(loaded, defaults=True)


ENDPOINTS = """
backends:
  b:
    protocol: v2-rest
    endpoints:
      - http://a:8000/token-abc
      - http://a:8000/token-def
      - {{url: "https://c/{0}", name: big}}
routes: [{{model: "*", backend: b}}]
"""


@pytest.mark.parametrize("defaults", [False, True])
def test_no_path_of_an_endpoint_is_shown(defaults: bool) -> None:
    configs = [parse(ENDPOINTS.format(each), "routes.yaml", {}) for each in ("token-1", "token-2")]
    text = redacted_yaml(configs[0], defaults=defaults)
    assert "token-" not in text
    assert text.count("http://a:8000/(hidden)") == 2
    assert "name: big" in text
    diff = redacted_diff(*configs)
    assert "token-" not in diff
    assert "+  - url: https://c/(hidden, changed)" in diff.replace("    ", "  ")
    urls = configs[0].backends["b"].endpoints
    labels = ["http://a:8000/(hidden)", "http://a:8000/(hidden) 2", "big"]
    assert display_names(urls) == labels
    assert [each.label for each in configured_endpoints(configs[0].backends["b"])] == labels
    assert [each["endpoints"] for each in plan(configs[0], {})["backends"]] == [labels]
