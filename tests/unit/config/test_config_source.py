from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infergate.config import ConfigError, Mistake, load, source
from infergate.config.mistakes import format_path, nearest, suggestion

NO_DEADLINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def data(text: str, **environ: str) -> Any:
    parsed = source.parse(text, "f", environ)
    assert not parsed.mistakes
    return parsed.data


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("null", None),
        ("12", 12),
        ("-1", -1),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("yes", "yes"),
        ("off", "off"),
        ("010", "010"),
        ("0x10", "0x10"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("'12'", "12"),
        ('"true"', "true"),
        ("=", "="),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: Any) -> None:
    parsed = data(f"k: {text}\n")["k"]
    assert (parsed, type(parsed)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${N}", 7),
        ('"${N}"', "7"),
        ("a-${N}-${T}", "a-7-text"),
        ("${U:-12}", 12),
        ("${U:-}", None),
        ("'${U:-}'", ""),
        ("${EMPTY:-d}", "d"),
        ("x${EMPTY}", "x"),
        ("$${N}", "${N}"),
        ("$N", "$N"),
        ("cost $5", "cost $5"),
        ("${U:-a:b}", "a:b"),
        ("${LIST}", "[1, 2]"),
        ("${NESTED}", "${N}"),
    ],
)
def test_variables_are_replaced(text: str, value: Any) -> None:
    environ = {"N": "7", "T": "text", "EMPTY": "", "LIST": "[1, 2]", "NESTED": "${N}"}
    assert data(f"k: {text}\n", **environ)["k"] == value


def test_variables_in_keys_are_not_replaced() -> None:
    assert data("${N}: 1\n", N="x") == {"${N}": 1}


def test_every_path_has_its_line() -> None:
    parsed = source.parse("a:\n  b:\n    - 1\n    - c: 2\n      d:\n        3\n", "f", {})
    assert parsed.lines == {
        (): 1,
        ("a",): 1,
        ("a", "b"): 2,
        ("a", "b", 0): 3,
        ("a", "b", 1): 4,
        ("a", "b", 1, "c"): 4,
        ("a", "b", 1, "d"): 5,
    }
    assert parsed.line(("a", "b", 7, "x")) == 2
    assert parsed.line(("nowhere",)) == 1


def test_merge_keys_do_not_replace_existing_keys() -> None:
    text = "a: &a {x: 1, y: 1}\nb: &b {<<: *a, y: 2}\nc: {y: 3, <<: [*b, {z: 4, x: 9}]}\n"
    assert data(text) == {
        "a": {"x": 1, "y": 1},
        "b": {"y": 2, "x": 1},
        "c": {"y": 3, "x": 1, "z": 4},
    }


@pytest.mark.no_cover
@pytest.mark.parametrize("text", ["a: &a {<<: *a}\n", "[" * 5000 + "]" * 5000])
def test_unbounded_nesting_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="nested too deeply"):
        source.parse(text, "f", {})


def test_aliases_within_aliases_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_MAX_NODES", 1000)
    text = "a0: &a0 [1, 1, 1, 1]\n"
    text += "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}, *a{i - 1}]\n" for i in range(1, 9))
    parsed = source.parse(text, "f", {})
    assert "nested aliases" in parsed.mistakes[0].message


def test_text_that_is_not_yaml_is_rejected() -> None:
    with pytest.raises(ConfigError, match="not YAML"):
        source.parse("a: \x01", "f", {})


def test_the_pure_python_loader_gives_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a: &x {b: [1, 'two', \"${N}\"], c: ~}\nd: *x\ne:\n  - ${N}\n"
    fast = source.parse(text, "f", {"N": "3"})
    monkeypatch.setattr(source, "_LOADER", yaml.SafeLoader)
    slow = source.parse(text, "f", {"N": "3"})
    assert fast.data == {"a": {"b": (1, "two", "3"), "c": None}, "d": fast.data["a"], "e": (3,)}
    assert (fast.data, fast.lines) == (slow.data, slow.lines)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "no.yaml", {})
    assert str(caught.value) == f"{tmp_path}/no.yaml: cannot be read: No such file or directory"
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(tmp_path, {})


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "routes.yaml"
    path.write_text(
        "\ufeffbackends: {d: {protocol: builtin}}\nroutes: [{model: a, backend: d}]\n",
        encoding="utf-8",
    )
    assert load(path, {}).routes[0].model == "a"


def test_a_mistake_is_reported_with_its_position() -> None:
    mistake = Mistake("routes.yaml", 12, "backends.trt.endpoint", "unknown key 'endpoint'")
    assert str(mistake) == "routes.yaml:12: backends.trt.endpoint: unknown key 'endpoint'"
    assert str(Mistake("routes.yaml", 0, "", "the file is empty")) == (
        "routes.yaml: the file is empty"
    )


def test_paths_are_formatted() -> None:
    assert format_path(()) == ""
    assert format_path(("a", 0, "b", "c.d", "")) == "a[0].b['c.d']['']"


def test_the_nearest_name_is_suggested() -> None:
    assert nearest("Max-Batch-Size", ["max_batch_size"]) == "max_batch_size"
    assert nearest("zzz", ["abc"]) is None
    assert suggestion("zzz", []) == ""
    assert suggestion("zzz", ["b", "a"]) == "; expected one of: a, b"


@NO_DEADLINE
@given(st.text(max_size=60) | st.text("a:-[]{}&*!|>'\"#%@` \n${}<", max_size=40))
def test_arbitrary_text_gives_data_or_errors(text: str) -> None:
    with suppress(ConfigError):
        source.parse(text, "f", {})
