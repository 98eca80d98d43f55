"""The section ``access``: operations, key files, hidden secrets, missing packages, and rates."""

from __future__ import annotations

from pathlib import Path

import pytest

from infergate.access import rules
from infergate.config import Config, ConfigError
from infergate.config.access import ConfiguredRate, RuleConfig
from infergate.config.load import load, parse

HEAD = "backends: {d: {protocol: builtin}}\nroutes: [{model: a, backend: d}]\naccess:\n"
HASH = "a" * 64


def read(folder: Path, text: str) -> Config:
    (folder / "routes.yaml").write_text(HEAD + text)
    return load(folder / "routes.yaml", {"REDIS_URL": "redis://:pass-word@host"})


def mistakes(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(folder, text)
    return str(caught.value)


def test_every_operation_of_rules_can_be_configured() -> None:
    choices = RuleConfig.model_json_schema()["properties"]["operations"]["items"]["enum"]
    assert set(choices) == set(rules.RULE_OPERATIONS.values())


def test_a_key_file_is_relative_to_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"ci: {HASH}\n")
    config = read(tmp_path, "  keys_file: keys\n  rules: [{who: ['key:ci']}]\n")
    assert config.access is not None
    assert config.access.keys_file == tmp_path / "keys"


def test_a_malformed_key_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("ci: infergate_secret\n")
    errors = mistakes(tmp_path, "  keys_file: keys\n  rules: [{who: ['key:ci']}]\n")
    assert (
        "routes.yaml:4: access.keys_file: the file 'keys': line 1: expected the SHA-256" in errors
    )
    assert "infergate_secret" not in errors


def test_a_password_is_not_shown(tmp_path: Path) -> None:
    text = "  rules: [{who: ['*']}]\n  rates: [{requests: 1/s}]\n  redis: {url: '${REDIS_URL}'}\n"
    config = read(tmp_path, text)
    assert config.access is not None
    assert config.access.redis is not None
    assert config.access.redis.url == "redis://:pass-word@host"
    assert "pass-word" not in repr(config) + config.model_dump_json()
    for url in ("http://:pass-word@host", "[pass-word", "redis://:pass-word/x@host"):
        with pytest.raises(ConfigError) as caught:
            parse(HEAD + text.replace("${REDIS_URL}", url), "f", {})
        assert "pass-word" not in str(caught.value)


def test_missing_packages_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    errors = mistakes(
        tmp_path,
        "  rules: [{who: ['*']}]\n  rates: [{requests: 1/s}]\n  redis: {url: redis://host}\n"
        "  jwt: {a: {issuer: x, audiences: [y], jwks_url: https://idp.example/keys}}\n",
    )
    for package in ("jwt", "redis"):
        assert f"access.{package}: " in errors
        assert f"pip install 'infergate[{package}]'" in errors


@pytest.mark.parametrize(
    ("requests", "amount", "seconds"), [("1/s", 1, 1), ("600/m", 600, 60), ("5/ h", 5, 3600)]
)
def test_rates_are_parsed(requests: str, amount: int, seconds: int, tmp_path: Path) -> None:
    text = f"  rules: [{{who: ['*']}}]\n  rates: [{{requests: {requests}, bytes: 2KiB/s}}]\n"
    config = read(tmp_path, text)
    assert config.access is not None
    (rate,) = config.access.rates
    assert rate.requests == ConfiguredRate(amount, seconds, requests)
    assert rate.bytes == ConfiguredRate(2048, 1, "2KiB/s")
    assert str(rate.requests) == requests
