from __future__ import annotations

from pathlib import Path

import pytest

from infergate.comparison.rules import ComparisonRules, OutputRule, Tolerance
from infergate.config.comparison_file import load_comparison
from infergate.config.mistakes import ConfigError
from infergate.core.datatypes import Datatype


def load_rules(tmp_path: Path, text: str) -> ComparisonRules:
    file = tmp_path / "rules.yaml"
    file.write_text(text)
    return load_comparison(file, {"ATOL": "0.5"})


def test_rules_have_the_keys_of_a_mirrors_comparison(tmp_path: Path) -> None:
    text = """
tolerances:
  FP32:
    atol: ${ATOL}
outputs:
  y: {top_k: 1}
"""
    loaded = load_rules(tmp_path, text)
    assert loaded.tolerances == {Datatype.FP32: Tolerance(0.5, 1e-4)}
    assert loaded.outputs == {"y": OutputRule(top_k=1)}
    assert load_rules(tmp_path, "{}") == ComparisonRules()


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        ("a: 1\noutput: {y: {top_k: 1}}", ["1: a: unknown key 'a'", "2: output: unknown key"]),
        ("tolerances:\n  BYTES: {atol: 1}", ["2: tolerances.BYTES: BYTES is compared exactly"]),
        ("outputs:\n  y:\n    atol: -1", ["3: outputs.y.atol: must be at least 0"]),
        ("keep: {path: x}\n", ["1: keep: applies only to a mirror"]),
        ("baseline: {}\n", ["1: baseline: applies only to a mirror"]),
        ("outputs: {y: {ignore: maybe}}", ["1: outputs.y.ignore: expected true or false"]),
        ("[]", ["expected a mapping"]),
        ("a: [", ["1:"]),
    ],
)
def test_mistakes_are_reported_with_lines(tmp_path: Path, text: str, errors: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        load_rules(tmp_path, text)
    mistakes = [str(mistake) for mistake in raised.value.mistakes]
    assert len(mistakes) == len(errors)
    for each, expected in zip(mistakes, errors, strict=True):
        assert each.startswith(str(tmp_path / "rules.yaml"))
        assert expected in each


def test_an_unreadable_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff")
    for name, reason in (("none", "No such file"), ("binary", "not UTF-8")):
        with pytest.raises(ConfigError, match=reason):
            load_comparison(tmp_path / name, {})
