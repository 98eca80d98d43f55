"""Old names of keys are accepted, with a warning."""

from __future__ import annotations

import logging

import pytest

from infergate.config import ConfigError
from infergate.config.load import parse

TEXT = """
backends:
  demo:
    protocol: builtin
    limits: {{{limits}}}
routes: [{{model: "*", backend: demo}}]
access:
  rules: [{{who: [anonymous]}}]
  rates: [{{requests: 4/h}}]
  redis: {{url: "redis://host", {redis}}}
"""
RETRIES = "backends.demo.limits: the key 'retry_least' is deprecated; use 'min_retries'"
REDIS = "access.redis: the key 'away' is deprecated; use 'when_unavailable'"


def test_old_names_have_the_effect_of_the_new_names(caplog: pytest.LogCaptureFixture) -> None:
    new = parse(TEXT.format(limits="min_retries: 7", redis="when_unavailable: open"), "f", {})
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        old = parse(TEXT.format(limits="retry_least: 7", redis="away: open"), "f", {})
    assert old == new
    assert [record.getMessage() for record in caplog.records] == [
        f"f:5: {RETRIES}",
        f"f:10: {REDIS}",
    ]
    assert {record.event for record in caplog.records} == {"config_key_deprecated"}  # type: ignore[attr-defined]


MISTAKES = {
    "retry_least: -1": "min_retries: must be at least 0, got -1",
    'retry_least: "${NOT_SET}"': (
        "retry_least: the environment variable 'NOT_SET' is not set (${NOT_SET:-…} gives a default)"
    ),
    "retry_least: 1, min_retries: 2": (
        "retry_least: 'min_retries' is the new name of this key; use only 'min_retries'"
    ),
}


@pytest.mark.parametrize("limits", MISTAKES)
def test_mistakes_in_keys_with_old_names_are_reported_once_with_their_line(limits: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(TEXT.format(limits=limits, redis="timeout: 1s"), "f", {})
    assert str(caught.value) == f"f:5: backends.demo.limits.{MISTAKES[limits]}"
