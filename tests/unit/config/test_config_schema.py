from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from infergate.codecs import registry
from infergate.config import Config, ConfigError, protocols, reference
from infergate.config import compile as compiled
from infergate.config.explain import keys_at
from infergate.config.load import parse
from infergate.config.section import all_sections
from infergate.core.limits import DEFAULT_LIMITS, Limits

NO_DEADLINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
DEMO = "backends: {d: {protocol: builtin}}\nroutes: [{model: a, backend: d}]\n"
DOCS = Path(__file__).parents[3] / "docs"
VALID_CONFIGS = Path(__file__).parents[2] / "config" / "good"


def test_all_limits_exist_with_their_defaults() -> None:
    config = Config.default()
    assert compiled.limits(config) == DEFAULT_LIMITS
    assert compiled.limits(config, headers=1000) == DEFAULT_LIMITS
    increased = compiled.limits(config, headers=100_000)
    assert increased == dataclasses.replace(DEFAULT_LIMITS, headers=100_000)
    names = [field.name for field in dataclasses.fields(Limits)]
    assert keys_at(("limits",)) == names


@pytest.mark.parametrize("protocol_limit", [0, 64 * 1024])
def test_an_explicit_limit_overrides_the_protocols_default(protocol_limit: int) -> None:
    config = parse(f"limits: {{headers: 20KiB}}\n{DEMO}", "f", {})
    assert compiled.limits(config, protocol_limit).headers == 20 * 1024


def test_the_default_configuration_is_the_demo() -> None:
    config = Config.default()
    route = compiled.routing_table(config).find("simple", "")
    assert route is not None
    assert config.backends[route.backend].protocol == "builtin"
    assert {name: str(a) for name, a in compiled.addresses(config).items()} == {
        "http": "127.0.0.1:8000",
        "grpc": "127.0.0.1:8001",
        "admin": "127.0.0.1:8002",
    }
    assert compiled.endpoints(config.backends["demo"]) == ()


def test_codec_options_do_not_depend_on_the_default_listeners() -> None:
    config = parse(
        "listeners: {http: null, additional: {a: {address: 0.0.0.0:1, protocols: [v2-rest]}}}\n"
        f"{DEMO}",
        "f",
        {},
    )
    assert compiled.frontend_options(config) == compiled.frontend_options(Config.default())
    assert compiled.listener_protocols(config)["additional.a"] == ("v2-rest",)
    assert "http" not in compiled.listener_protocols(config)


def test_a_config_is_immutable() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Config.default().readiness = "lenient"  # type: ignore[misc]


@pytest.mark.parametrize("section", list(all_sections()), ids=lambda s: s.__name__)
def test_every_key_is_described_and_snake_case(section: type[BaseModel]) -> None:
    assert section.__doc__
    for name, field in section.model_fields.items():
        key = field.alias or name
        assert key == key.lower()
        assert "-" not in key
        assert field.description
        assert field.description.endswith(".")


def test_the_reference_in_docs_is_up_to_date(tmp_path: Path) -> None:
    reference.write(tmp_path)
    for name in (reference.PAGE, reference.SCHEMA):
        assert (tmp_path / name).read_text(encoding="utf-8") == (DOCS / name).read_text(
            encoding="utf-8"
        ), "run: python -m infergate.config.reference"


def test_every_key_is_in_the_reference() -> None:
    page = reference.markdown()
    for section in all_sections():
        for name, field in section.model_fields.items():
            assert f"| `{field.alias or name}` |" in page


def test_json_schema_defaults_are_in_configuration_syntax() -> None:
    schema = reference.json_schema()
    assert schema["$defs"]["LimitsConfig"]["properties"]["json"]["default"] == "32MiB"
    assert schema["$defs"]["DrainConfig"]["properties"]["delay"]["default"] == "5s"
    assert schema["additionalProperties"] is False
    json.dumps(schema)


def test_protocols_come_from_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocols, "plugins", dict)
    with pytest.raises(ConfigError, match="'v2-grpc' is not a protocol; expected one of: builtin"):
        parse("backends: {a: {protocol: v2-grpc}}\nroutes: [{model: b, backend: a}]", "f", {})
    assert registry.ENTRY_POINT_GROUP == "infergate.codecs"


JARGON = ("Value error", "Input should", "pydantic", "validation", "valid ", "type=", "NoneType")
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**25), 10**25)
    | st.floats(allow_nan=False)
    | st.sampled_from(
        ["", "*", "a", "/(/", "demo", "1s", "1MiB", "grpc://a:1", "http://a", "[::1]:0"]
    )
    | st.text("ab:/.*[]", max_size=8)
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["model", "address", "protocol", "x", "name"]), inner)
    ),
    max_leaves=5,
)


def paths(node: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    steps = (
        list(node) if isinstance(node, dict) else range(len(node) if isinstance(node, list) else 0)
    )
    return [here, *(path for step in steps for path in paths(node[step], (*here, step)))]


WHOLE_DATA = yaml.safe_load((VALID_CONFIGS / "everything.yaml").read_text(encoding="utf-8"))
PATHS = [path for path in paths(WHOLE_DATA) if path]


@NO_DEADLINE
@given(st.lists(st.tuples(st.sampled_from(PATHS), ANYTHING), min_size=1, max_size=3))
def test_any_value_is_accepted_or_rejected_with_a_clear_message(
    changes: list[tuple[tuple[Any, ...], Any]],
) -> None:
    data = copy.deepcopy(WHOLE_DATA)
    for path, value in changes:
        node = data
        try:
            for step in path[:-1]:
                node = node[step]
            node[path[-1]] = value
        except (TypeError, IndexError, KeyError):
            continue  # removed by an earlier change
    text = yaml.safe_dump(data, sort_keys=False)
    try:
        config = parse(text, "f", {})
    except ConfigError as error:
        for mistake in error.mistakes:
            assert mistake.message
            assert not any(word in mistake.message for word in JARGON), mistake
            assert 1 <= mistake.line <= len(text.splitlines()), mistake
    else:
        compiled.routing_table(config)
        compiled.limits(config)
        for backend in config.backends.values():
            compiled.endpoints(backend)
        compiled.declared_models(config)
