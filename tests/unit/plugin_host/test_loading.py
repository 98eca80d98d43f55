"""Import of the classes of plug-ins, and validation of their options."""

from __future__ import annotations

import logging
import sys
import threading
from dataclasses import dataclass
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

import plugin_kit
from infergate.config.load import parse
from infergate.config.mistakes import ConfigError
from infergate.plugin_host import loading
from infergate.plugin_host.loading import PluginError, load_class, run_within
from infergate.plugin_host.options import OptionsError, read_options
from infergate.plugins import PythonModel, RequestHook

GROUP = "infergate.hooks"


def load(reference: str, base: Any = RequestHook) -> Any:
    return load_class(reference, GROUP, base)


def test_a_class_is_found_by_its_module_and_name() -> None:
    assert load("plugin_kit:Hook") is plugin_kit.Hook


def test_a_class_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = EntryPoints([EntryPoint("guard", "plugin_kit:Hook", GROUP)])
    monkeypatch.setattr(loading, "entry_points", lambda group: entries.select(group=group))
    assert load("guard") is plugin_kit.Hook
    with pytest.raises(PluginError, match=r"entry point 'gard' .* did you mean 'guard'"):
        load("gard")


def test_an_ambiguous_entry_point_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("guard", "plugin_kit:Hook", GROUP)
    monkeypatch.setattr(loading, "entry_points", lambda group: (entry, entry))
    with pytest.raises(PluginError, match=r"'guard' .* is provided by several packages"):
        load("guard")


@pytest.mark.parametrize(
    ("reference", "base", "expected"),
    [
        ("plugin_kit:NotAHook", RequestHook, "not a subclass of infergate.plugins.RequestHook"),
        ("plugin_kit:RELEASE", RequestHook, "not a subclass"),
        ("plugin_kit:Abstract", PythonModel, "does not define infer, metadata"),
        ("plugin_kit:FromTheFuture", PythonModel, "needs version 1.99 of the plug-in interface"),
        ("plugin_kit:Missing", RequestHook, "has no attribute 'Missing'"),
        ("os.path; import x:Y", RequestHook, "is not of the form"),
        ("broken_plugin:X", RequestHook, "failed: SystemExit: 3"),
    ],
)
def test_the_error_names_an_unusable_class(
    reference: str, base: Any, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_plugin.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PluginError, match=expected) as caught:
        load(reference, base)
    assert reference in str(caught.value)


def test_a_slow_import_is_logged_and_ends_in_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "slow_plugin.py").write_text("import plugin_kit\nplugin_kit.RELEASE.wait()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(loading, "SLOW_SECONDS", 0.01)
    monkeypatch.setattr(loading, "IMPORT_SECONDS", 0.05)
    plugin_kit.RELEASE.clear()
    try:
        with (
            caplog.at_level(logging.WARNING),
            pytest.raises(PluginError, match=r"'slow_plugin:X' did not end within 0\.05 seconds"),
        ):
            load("slow_plugin:X")
        assert "importing 'slow_plugin:X' takes more than 0.01 seconds" in caplog.text
    finally:
        plugin_kit.RELEASE.set()
        for thread in threading.enumerate():
            if "slow_plugin" in thread.name:
                thread.join(10)
        sys.modules.pop("slow_plugin", None)


def test_a_function_within_its_time_limit_returns_its_result() -> None:
    assert run_within(60, "counting", lambda: 1 + 1) == 2


@dataclass
class Options:
    limit: int
    name: str = ""


@pytest.mark.parametrize(
    ("options_type", "values", "expected"),
    [
        (None, {"a": 1}, [(("a",), "the plug-in has no options")]),
        (Options, {}, [(("limit",), "this option is required")]),
        (
            Options,
            {"limit": 1, "nme": "x"},
            [(("nme",), "unknown option 'nme'; did you mean 'name'?")],
        ),
        (
            plugin_kit.HookOptions,
            {"levl": "x", "items": [-1]},
            [
                (("levl",), "unknown option 'levl'; did you mean 'level'?"),
                (("items",), "items must not be negative"),
            ],
        ),
        (threading.Event, {}, None),
    ],
)
def test_invalid_options_are_located(options_type: Any, values: Any, expected: Any) -> None:
    with pytest.raises(OptionsError) as caught:
        read_options(options_type, values)
    assert expected is None or list(caught.value.findings) == expected


def test_valid_options_become_an_instance() -> None:
    assert read_options(Options, {"limit": 5}) == Options(5)
    assert read_options(None, {}) is None


def test_options_of_a_plugin_are_reported_with_their_line() -> None:
    text = """
backends: {demo: {protocol: builtin}}
hooks:
  guard:
    hook: plugin_kit:Hook
    options:
      level: hgh
      items: [1,
              x]
routes: [{model: a, backend: demo, hooks: [guard]}]
"""
    with pytest.raises(ConfigError) as caught:
        parse(text, "routes.yaml", {})
    assert [str(mistake) for mistake in caught.value.mistakes] == [
        "routes.yaml:7: hooks.guard.options.level: Input should be 'low' or 'high'",
        (
            "routes.yaml:9: hooks.guard.options.items[1]: Input should be a valid integer, unable "
            "to parse string as an integer"
        ),
    ]
