"""Explanations of routes with plug-ins: transforms apply, and models and hooks do not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from infergate.cli import main
from infergate.codecs.profiles import GENERIC
from infergate.codecs.registry import plugins
from infergate.config.load import parse
from infergate.core.datatypes import Datatype
from infergate.core.messages import InferRequest
from infergate.core.tensor import Tensor, pack_bytes
from infergate.migration.explain.client_request import ClientRequest
from infergate.migration.explain.explanation import ExplainOptions, explain
from plugin_kit import Hook

CONFIG = """
backends:
  py: {protocol: python, model: "plugin_kit:Double", options: {outcome: raises}}
hooks:
  guard: {hook: "plugin_kit:Hook", options: {before: rejects}}
routes:
  - model: double
    backend: py
    hooks: [guard]
    transforms: {inputs: [{plugin: {transform: "plugin_kit:Lengths"}}]}
"""


async def test_hooks_and_models_are_named_but_not_run() -> None:
    Hook.events.clear()
    text = Tensor("text", Datatype.BYTES, (1,), pack_bytes([b"abc"]))
    wire = (
        plugins()["v2-rest"]
        .create({})
        .build_request(InferRequest("double", inputs=(text,)), GENERIC)
    )
    result = await explain(parse(CONFIG, "f", {}), ClientRequest(wire), ExplainOptions())
    assert "The hooks guard may change or answer the request. They are not run." in result.notes
    (target,) = result.targets
    assert (target.protocol, target.error) == ("python", "")
    assert target.layout == ("input 'X': FP32 [1, 2], 8 bytes",)
    assert Hook.events == []


def test_a_plugin_that_cannot_be_created_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "routes.yaml"
    file.write_text(
        'backends: {py: {protocol: python, model: "plugin_kit:FailsInConstructor"}}\n'
        "routes: [{model: double, backend: py}]\n"
    )
    argv = ["explain", "--config", str(file), "GET", "/v2/models/double"]
    assert main(argv) == 2
    assert (
        "backend 'py': creating 'plugin_kit:FailsInConstructor' failed" in capsys.readouterr().err
    )
