"""Formats the result of a probe as tables, text and JSON.

*Rule.* Control characters in text from servers are escaped before the text is printed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from infergate.core.messages import ModelMetadata, TensorMetadata
from infergate.core.name_rules import escape_unsafe
from infergate.migration.probe.example_requests import ExampleRequest
from infergate.migration.probe.findings import ProbedModel, ProbedServer, ProbeFindings
from infergate.terminal import Table

_MAX_SHOWN: Final = 200
_MAX_NAMES: Final = 10
_MAX_TENSORS: Final = 32
"""Maximum number of inputs, and of outputs, of a model in a table."""
MAX_TEXT_EXAMPLES: Final = 20
MAX_JSON_EXAMPLES: Final = 100
"""Maximum number of models per server for which requests are printed as text or as JSON. Building a
request takes up to a second."""


def one_line(text: str) -> str:
    """Return ``text`` on one line, shortened, and without control characters."""
    line = escape_unsafe(text[:_MAX_SHOWN]).replace("\n", " ").replace("\t", " ")
    return f"{line}…" if len(text) > _MAX_SHOWN else line


def shape_text(shape: Sequence[int]) -> str:
    """Return a shape without spaces, as in ``[-1,3]``."""
    return f"[{','.join(map(str, shape))}]"


def tables(findings: ProbeFindings) -> Iterator[Table]:
    """Yield a table of the addresses, and a table of models for each server that has models."""
    rows: list[tuple[str, ...]] = []
    for target in findings.targets:
        for item in target.detected:
            count = "cannot list" if item.models is None else str(len(item.models))
            title = one_line(f"{item.server} {item.version}".rstrip())
            rows.append((target.target.text, item.protocol, title, count))
        if target.problem is not None:
            rows.append((target.target.text, "-", target.problem.reason, "-"))
    yield Table("addresses", ("ADDRESS", "PROTOCOL", "SERVER", "MODELS"), rows)
    for server in findings.servers:
        if server.models:
            best = server.best
            title = f"models of {one_line(server.title)}, over {best.protocol} at {best.url}"
            headings = ("MODEL", "TENSOR", "DATATYPE", "SHAPE", "BATCH")
            yield Table(title, headings, [row for m in server.models for row in _model_rows(m)])


def _model_rows(model: ProbedModel) -> Iterator[tuple[str, ...]]:
    name = one_line(model.name)
    if model.metadata is None:
        yield name, "-", "-", "-", model.state.lower() or "unknown"
        return
    batch = _batch_text(model.metadata)
    for side, tensors in (("in", model.metadata.inputs), ("out", model.metadata.outputs)):
        for tensor in tensors[:_MAX_TENSORS]:
            datatype = one_line(tensor.datatype) or "unknown"
            label = f"{side} {one_line(tensor.name)}"
            yield name, label, datatype, shape_text(tensor.shape), batch
            name = batch = ""
        if len(tensors) > _MAX_TENSORS:  # some GraphPipe servers list every node of a graph
            yield "", f"{side} … {len(tensors) - _MAX_TENSORS} more", "", "", ""


def _batch_text(metadata: ModelMetadata) -> str:
    if metadata.max_batch_size is None:
        return "not reported"
    return f"up to {metadata.max_batch_size}" if metadata.max_batch_size else "none"


def remarks(findings: ProbeFindings, model_names: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each problem of an address, a server or a model. ``model_names`` are the
    values of ``--model``."""
    for target in findings.targets:
        if target.problem is not None:
            yield f"{target.target.text}: {target.problem.reason}; {target.problem.advice}"
    for server in findings.servers:
        where = f"{one_line(server.title)} at {server.best.url}"
        if not server.lists_models and not server.models:
            yield f"{where}: the server cannot list models; name them with --model (repeatable)"
        if server.omitted:
            yield f"{where}: {server.omitted} more models were not described"
        for problem, names in _problems(server).items():
            more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
            text = ", ".join(map(one_line, names[:_MAX_NAMES]))
            yield f"{where}: {text}{more}: {one_line(problem)}"
    available = {model.name for server in findings.servers for model in server.models}
    for name in model_names:
        if name not in available:
            yield f"model {one_line(name)}: no server serves it; check the name given with --model"


def _problems(server: ProbedServer) -> dict[str, list[str]]:
    """Return the names of the affected models by problem."""
    problems: dict[str, list[str]] = {}
    for model in server.models:
        if model.problem:
            problems.setdefault(model.problem, []).append(model.name)
    return problems


def example_text(examples: Sequence[ExampleRequest], omitted: int = 0) -> str:
    """Return requests as text. ``omitted`` is the number of models whose requests are not shown."""
    blocks = []
    for example in [item for item in examples if not item.problem]:
        through = ", through infergate with the configuration that infergate probe writes"
        blocks.append(
            f"# {one_line(example.model)}{through if example.needs_gateway else ''}\n"
            f"{escape_unsafe(example.curl)}\n\n{escape_unsafe(example.python)}\n"
        )
    if omitted:
        blocks.append(f"# The requests of {omitted} more models are not shown; use --json\n")
    return "\n".join(blocks)


def json_text(document: Mapping[str, Any]) -> str:
    """Return ``document`` as indented JSON with escaped control characters."""
    return escape_unsafe(json.dumps(document, indent=2, ensure_ascii=False))


def as_json(
    findings: ProbeFindings, examples: Sequence[Sequence[ExampleRequest]]
) -> dict[str, Any]:
    """Return the findings as JSON. ``examples`` has the requests of each server."""
    return {
        "addresses": [
            {
                "address": target.target.text,
                "protocols": [item.protocol for item in target.detected],
                "problem": target.problem.reason if target.problem else None,
                "advice": target.problem.advice if target.problem else None,
                "attempts": dict(target.attempts),
            }
            for target in findings.targets
        ],
        "servers": [
            _server_json(server, requests)
            for server, requests in zip(findings.servers, examples, strict=True)
        ],
    }


def _server_json(server: ProbedServer, examples: Sequence[ExampleRequest]) -> dict[str, Any]:
    by_model = {example.model: example for example in examples}
    return {
        "server": server.name,
        "version": server.version,
        "protocols": [
            {"protocol": item.protocol, "url": str(item.url)} for item in server.protocols
        ],
        "lists_models": server.lists_models,
        "omitted_models": server.omitted,
        "models": [
            _model_json(model, by_model.get(model.name, ExampleRequest(model.name)))
            for model in server.models
        ],
    }


def _model_json(model: ProbedModel, example: ExampleRequest) -> dict[str, Any]:
    metadata = model.metadata or ModelMetadata(model.name)
    return {
        "name": model.name,
        "state": model.state,
        "problem": model.problem or None,
        "versions": list(metadata.versions),
        "platform": metadata.platform,
        "max_batch_size": metadata.max_batch_size,
        "inputs": [tensor_json(tensor) for tensor in metadata.inputs],
        "outputs": [tensor_json(tensor) for tensor in metadata.outputs],
        "curl": example.curl or None,
        "python": example.python or None,
        "needs_gateway": example.needs_gateway,
    }


def tensor_json(tensor: TensorMetadata) -> dict[str, Any]:
    """Return the name, the datatype and the shape of ``tensor`` as JSON data."""
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
