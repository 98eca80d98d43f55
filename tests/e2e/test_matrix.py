"""Tests every client with every backend, and that docs/fidelity.md has the results and none of them
is wrong."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infergate.cli import main
from infergate.codecs.base import ParsedRequest, PartialInferRequest
from infergate.codecs.graphpipe.codec import GraphPipeCodec
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata
from infergate.core.tensor import Tensor
from infergate.core.wire import HttpRequest
from infergate.matrix import run
from infergate.matrix.cases import CASES
from infergate.matrix.client_kinds import CLIENT_KINDS
from infergate.matrix.findings import Mark
from infergate.matrix.gateways import BACKENDS
from infergate.matrix.recording_backend import EchoModel

GRAPHPIPE = "GraphPipe, HTTP"
PAGE = Path(__file__).parents[2] / "docs" / "fidelity.md"


def test_the_page_equals_the_findings_and_none_is_wrong(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["matrix", "--page"]) == 0
    page = capsys.readouterr().out
    assert page == PAGE.read_text(), "run make fidelity, and review the changes"


def test_the_page_has_every_pair_and_case() -> None:
    lines = PAGE.read_text().splitlines()
    headings = [line for line in lines if line.startswith("## From ")]
    assert headings == [f"## From {kind.name}" for kind in CLIENT_KINDS]
    assert lines.count(f"| | {' | '.join(BACKENDS)} |") == len(CLIENT_KINDS)
    for case in CASES:
        rows = [line for line in lines if line.startswith(f"| {case.name} |")]
        assert len(rows) == len(CLIENT_KINDS), case.name
        assert {row.count("|") for row in rows} == {len(BACKENDS) + 2}
    assert len({case.name for case in CASES}) == len(CASES)


def flip_first_byte(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Change the first byte of the first tensor if it has data."""
    first, *rest = tensors
    data = bytes(first.data)
    return (replace(first, data=bytes((data[0] ^ 1,)) + data[1:]) if data else first, *rest)


def test_a_frontend_error_fails_every_pair_of_its_protocol(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parse = GraphPipeCodec.parse_request

    def misread(self: GraphPipeCodec, wire: HttpRequest, limits: Limits) -> Any:
        partial = parse(self, wire, limits)
        if not isinstance(partial, PartialInferRequest):
            return partial

        def finish(model: ModelMetadata) -> ParsedRequest:
            parsed = partial.complete(model)
            assert isinstance(parsed.operation, InferRequest)
            inputs = flip_first_byte(parsed.operation.inputs)
            return replace(parsed, operation=replace(parsed.operation, inputs=inputs))

        return replace(partial, complete=finish)

    monkeypatch.setattr(GraphPipeCodec, "parse_request", misread)
    monkeypatch.setattr(
        run, "CLIENT_KINDS", [each for each in CLIENT_KINDS if each.name == GRAPHPIPE]
    )
    [result] = asyncio.run(_results())
    row = next(row for case, row in zip(CASES, result.findings, strict=True) if case.name == "FP32")
    assert [finding.mark for finding in row] == [Mark.WRONG] * len(BACKENDS)


async def _results() -> list[run.ClientResult]:
    return [result async for result in run.run_clients()]


def test_the_command_fails_if_a_model_is_misread(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    infer, counts = EchoModel.infer, Counter[str]()

    def infer_incorrectly(self: EchoModel, request: InferRequest) -> InferResponse:
        response = infer(self, request)
        counts[request.model] += 1
        # The first response comes from the embedded backend, and is the reference for the others.
        if counts[request.model] == 1:
            return response
        return replace(response, outputs=flip_first_byte(response.outputs))

    monkeypatch.setattr(EchoModel, "infer", infer_incorrectly)
    monkeypatch.setattr(
        run, "CLIENT_KINDS", [each for each in CLIENT_KINDS if each.name == GRAPHPIPE]
    )
    assert main(["matrix"]) == 1
    output = capsys.readouterr().out
    assert all(name in output for name in (*BACKENDS, GRAPHPIPE))
    assert "! wrong (pairs)" in output
    assert "different values in 'OUT0'" in output
