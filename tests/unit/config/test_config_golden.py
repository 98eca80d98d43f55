"""The compiled form and the warnings of tests/config/good, the errors of tests/config/bad, and the
examples in config/.

``INFERGATE_WRITE_GOLDEN=1 pytest tests/unit/config`` rewrites the expectations, for review.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from infergate.config import Config, ConfigError, load
from infergate.config import compile as compiled
from infergate.config.load import parse
from infergate.routing.table import Route

FILES = Path(__file__).parents[2] / "config"
EXAMPLES = Path(__file__).parents[3] / "config"
ENVIRON = {
    "BAD_RANK": "many",
    "GOOD_HOST": "0.0.0.0",
    "GOOD_EMPTY": "",
    "GOOD_BACKEND": "demo",
    "GOOD_NUMBER": "7",
    "GOOD_FALSE": "false",
}


def stems(kind: str) -> list[str]:
    names = sorted(path.stem for path in (FILES / kind).glob("*.yaml"))
    assert names
    return names


def as_json(config: Config) -> dict[str, Any]:
    """Return the compiled parts of ``config`` as JSON data."""
    addresses = compiled.addresses(config)
    envelopes = {name: compiled.envelope_options(config, name) for name in addresses}
    recording = config.recording and config.recording.model_dump(mode="json", exclude={"path"})
    return {
        **({"recording": recording} if recording else {}),
        **({"envelopes": envelopes} if any(envelopes.values()) else {}),
        "listeners": {name: str(each) for name, each in addresses.items()},
        "bound_listeners": {
            name: {**dataclasses.asdict(each), "address": dataclasses.asdict(addresses[name])}
            for name, each in compiled.model_listeners(config).items()
        },
        "frontend_options": compiled.frontend_options(config),
        "backends": {
            name: {
                **backend.model_dump(mode="json"),
                "endpoints": [e._asdict() for e in compiled.endpoints(backend)],
            }
            for name, backend in config.backends.items()
        },
        "routes": [route_as_json(route) for route in compiled.routing_table(config).routes],
        "limits": dataclasses.asdict(compiled.limits(config)),
        "models": {
            name: {
                "properties": dict(model.properties),
                "inputs": [(t.name, t.datatype, t.shape) for t in model.inputs],
                "outputs": [(t.name, t.datatype, t.shape) for t in model.outputs],
                "versions": model.versions,
                "platform": model.platform,
            }
            for name, model in compiled.declared_models(config).items()
        },
        "control": config.control.model_dump(),
        "readiness": config.readiness,
        "drain": config.drain.model_dump(),
        "log": config.log.model_dump(),
    }


def route_as_json(route: Route) -> dict[str, Any]:
    """Return ``route`` without the optional parts that it does not use."""
    fields = dataclasses.asdict(route)
    fields["cast"] = {source.value: target.value for source, target in route.cast.items()}
    if route.mirror is None:
        return fields
    if route.mirror.comparison is None:
        del fields["mirror"]["comparison"]
    else:
        comparison = fields["mirror"]["comparison"]
        tolerances = comparison["rules"]["tolerances"]
        comparison["rules"]["tolerances"] = {key.value: each for key, each in tolerances.items()}
        if comparison["storage"] is not None:
            comparison["storage"]["path"] = comparison["storage"]["path"].name
    return fields


def expect(path: Path, text: str) -> None:
    if "INFERGATE_WRITE_GOLDEN" in os.environ:
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("stem", stems("good"))
def test_a_valid_file_is_compiled_as_expected(stem: str) -> None:
    config = load(FILES / "good" / f"{stem}.yaml", ENVIRON)
    expect(FILES / "good" / f"{stem}.json", json.dumps(as_json(config), indent=2) + "\n")


def test_parts_without_effect_are_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FILES / "good")
    config = load(Path("without-effect.yaml"), ENVIRON)
    assert [(each.line, each.path, each.message) for each in config.warnings] == [
        (5, "backends.spare", "no route uses the backend 'spare'"),
        (9, "routes[0].split[0].percent", "the split sends no requests to 'new'"),
        (12, "routes[1].mirror.percent", "the mirror is off: 'new' gets no copies"),
        (
            12,
            "routes[1].mirror.compare.baseline.percent",
            "the baseline is off: no response is compared with it",
        ),
    ]
    assert load(Path("branches.yaml"), ENVIRON).warnings == ()


def test_unexpected_effects_are_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FILES / "good")
    file = Path("unexpected-effects.yaml")
    assert [(each.line, each.path, each.message) for each in load(file, ENVIRON).warnings] == [
        (
            12,
            "routes[1].priority",
            (
                "any client may request a higher priority, up to 1, with the header "
                "'infergate-priority'; 'highest_priority' in access.shares limits it"
            ),
        ),
        (
            17,
            "routes[2].transforms.inputs[0].decode_image",
            (
                "without helper processes ('helpers: 0'), a large WebP image delays all other "
                "requests while it is decoded"
            ),
        ),
    ]
    text = file.read_text("utf-8").replace("helpers: 0", "helpers: 1")
    shares = text.replace("  rules:", "  shares: [{who: ['*'], highest_priority: 5}]\n  rules:")
    assert parse(shares, file, ENVIRON).warnings == ()


@pytest.mark.parametrize("stem", stems("bad"))
def test_invalid_files_have_expected_errors(stem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FILES / "bad")
    with pytest.raises(ConfigError) as caught:
        load(Path(f"{stem}.yaml"), ENVIRON)
    expect(FILES / "bad" / f"{stem}.txt", f"{caught.value}\n")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_the_examples_are_valid_unchanged(path: Path) -> None:
    assert load(path, {}).routes


def test_the_demo_file_is_the_default() -> None:
    assert load(EXAMPLES / "demo.yaml", {}) == Config.default()


def test_images_without_pillow_are_an_error_that_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("infergate.config.transform_checks.has_pillow", lambda: False)
    with pytest.raises(ConfigError) as caught:
        load(FILES / "good" / "transforms.yaml", ENVIRON)
    (mistake,) = caught.value.mistakes
    assert (mistake.line, mistake.path) == (12, "routes[0].transforms.inputs[0].decode_image")
    assert "pip install infergate[images]" in mistake.message
