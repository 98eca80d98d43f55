"""Composes a configuration that serves the probed models.

*Rule.* A finding becomes a setting only if it is certain. Any other finding becomes a comment with
the reason and the possible settings. Credentials are never written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, Final

from infergate.codecs.registry import plugins
from infergate.config.schema import BackendConfig
from infergate.config.values import Url
from infergate.core.datatypes import DATATYPES_BY_NAME, Datatype
from infergate.core.messages import ModelMetadata
from infergate.core.name_rules import NameRule, find_tensor_name_problem
from infergate.migration.probe.findings import ProbedModel, ProbedServer
from infergate.migration.probe.listener_ports import HOST, ListenerPorts
from infergate.migration.probe.mirror_text import cast_rules, mirror_lines
from infergate.migration.probe.options import ProbeOptions
from infergate.migration.probe.pairing import ModelPair, Pairing
from infergate.migration.probe.report import one_line, tensor_json
from infergate.migration.probe.yaml_text import flow, scalar
from infergate.routing.table import is_glob

_HEAD: Final = """\
# Written by infergate probe. Check it, then serve it:
#   infergate --config {file} --check
#   infergate --config {file}
# docs/configuration.md describes every key.
"""
_EXAMPLE_TENSORS: Final = (
    "{inputs: [{name: x, datatype: FP32, shape: [-1, 3]}], "
    "outputs: [{name: y, datatype: FP32, shape: [-1]}]}"
)
_NAMES: Final = NameRule(allow_slash=True)
_V1: Final = ("tfs-rest", "kserve-v1")
"""The protocols with paths below /v1. One of these protocols uses an additional listener."""


@dataclass(frozen=True, slots=True)
class _Backend:
    """A server and its backend's name in the configuration."""

    name: str
    server: ProbedServer


@dataclass(frozen=True, slots=True)
class _Entry:
    """A model to serve under ``name``. For a model of an old server, if there are new servers,
    ``pair`` is the model with its counterpart, and ``target`` is the counterpart's backend."""

    name: str
    backend: _Backend
    model: ProbedModel
    pair: ModelPair | None = None
    target: str = ""

    @property
    def is_graphpipe(self) -> bool:
        """Whether the backend speaks GraphPipe, whose clients need a port for each model."""
        return self.backend.server.best.protocol in _one_model_protocols()


@dataclass(frozen=True, slots=True)
class RoutesFile:
    """A composed configuration. ``http_port`` is the port of the HTTP listener. ``names`` are the
    gateway's names of models, keyed by the URL of the model's server and the model's name on this
    server."""

    text: str
    http_port: int
    names: Mapping[tuple[Url, str], str]


def compose_routes(
    file: str,
    servers: Sequence[ProbedServer],
    new_servers: Sequence[ProbedServer],
    options: ProbeOptions,
    ports: ListenerPorts,
) -> RoutesFile:
    """Return a configuration with routes to ``servers`` and mirrors to ``new_servers``. ``file`` is
    the configuration's file name. At least one server is required."""
    old = _name_backends(servers, "old" if new_servers else "", ())
    new = _name_backends(new_servers, "new", [item.name for item in old])
    collected = _collect(old, new)
    entries = list(collected.by_name.values())
    unlisted = [item for item in old if not item.server.models]
    used = {item.backend.name for item in entries} | {item.target for item in entries}
    used |= {item.name for item in unlisted}
    http = ports.assign(8000)
    sections = (
        [_HEAD.format(file=file)],
        _listeners([*servers, *new_servers], entries, ports, http),
        [line for b in (*old, *new) if b.name in used for line in _backend_lines(b, options)],
        _routes(entries, collected.remarks, unlisted),
        _models(entries),
    )
    titles = ("", "listeners:", "\nbackends:", "\nroutes:", "")
    lines = [
        line
        for title, section in zip(titles, sections, strict=True)
        for line in ([title] if title else []) + list(section)
    ]
    names = {(item.backend.server.best.url, item.model.name): item.name for item in entries}
    return RoutesFile("\n".join(lines) + "\n", http, names)


def _one_model_protocols() -> AbstractSet[str]:
    return {name for name, plugin in plugins().items() if plugin.supports_framing}


def _name_backends(
    servers: Sequence[ProbedServer], side: str, reserved_names: Sequence[str]
) -> list[_Backend]:
    backends: dict[str, _Backend] = {}
    for server in servers:
        slug = re.sub(r"[^a-z0-9]+", "-", server.name.lower()).strip("-")[:40] or "server"
        base = (side if len(servers) == 1 else f"{side}-{slug}") if side else slug
        name, number = base, 1
        while name in backends or name in reserved_names:
            number += 1
            name = f"{base}-{number}"
        backends[name] = _Backend(name, server)
    return list(backends.values())


# ---- the served models


class _Entries:
    """The models to serve, and comments about the models that are not served."""

    def __init__(self) -> None:
        self.by_name: Final[dict[str, _Entry]] = {}
        self.remarks: Final[list[str]] = []

    def add(self, entry: _Entry) -> None:
        name, number = entry.name, 1
        while entry.is_graphpipe and name in self.by_name:  # the server accepts any model name
            number += 1
            name = f"{entry.name}-{number}"
        if problem := _NAMES.find_problem(name):
            self.remarks.append(f"  # Not served: the model name {one_line(name)} {problem}.")
        elif name in self.by_name:
            best = entry.backend.server.best
            self.remarks.append(f"  # {best.url} ({best.protocol}) also has {one_line(name)}.")
        else:
            self.by_name[name] = replace(entry, name=name)


def _collect(old: Sequence[_Backend], new: Sequence[_Backend]) -> _Entries:
    """Return the models of ``old`` with their counterparts, and the other models of ``new``."""
    entries = _Entries()
    paired: set[str] = set()
    for backend in old:
        for pair, target in _pairs(backend, new):
            entries.add(_Entry(pair.old.name, backend, pair.old, pair if new else None, target))
            if pair.new is not None:
                paired.add(pair.new.name)
    for backend in new:
        for model in backend.server.models:
            if model.name not in paired:
                entries.add(_Entry(model.name, backend, model))
    return entries


def _pairs(backend: _Backend, new: Sequence[_Backend]) -> Iterator[tuple[ModelPair, str]]:
    """Yield the pair of each model of ``backend``, and the name of the counterpart's backend."""
    owners = {m.name: item for item in reversed(new) for m in item.server.models}
    counterparts = [m for item in new for m in item.server.models if owners[m.name] is item]
    supported = [_datatypes(item.server) for item in new] or [frozenset[Datatype]()]
    pairing = Pairing(_datatypes(backend.server), frozenset.intersection(*supported))
    for pair in pairing.pair_models(backend.server.models, counterparts):
        yield pair, owners[pair.new.name].name if pair.new else ""


def _datatypes(server: ProbedServer) -> frozenset[Datatype]:
    datatypes: frozenset[Datatype] = (
        plugins()[server.best.protocol].create({}).capabilities.datatypes
    )
    return datatypes


# ---- sections


def _listeners(
    servers: Sequence[ProbedServer], entries: Sequence[_Entry], ports: ListenerPorts, http: int
) -> Iterator[str]:
    spoken = {item.protocol for server in servers for item in server.protocols}
    first, second = reversed(_V1) if spoken.isdisjoint(_V1[:1]) and _V1[1] in spoken else _V1
    section: dict[str, Any] = {"address": f"{HOST}:{http}"}
    if first != _V1[0]:
        section["v1"] = first
    yield f"  http: {flow(section)}"
    yield f"  grpc: {flow({'address': f'{HOST}:{ports.assign(8001)}'})}"
    yield f"  admin: {flow({'address': f'{HOST}:{ports.assign(8002)}'})}"
    if graphpipe := [entry for entry in entries if entry.is_graphpipe]:
        yield "  graphpipe:  # unmodified GraphPipe clients need a port for each model"
        for entry in graphpipe:
            port = ports.assign(9000)
            listener = {"address": f"{HOST}:{port}", "model": entry.name}
            if entry.backend.server.best.url.scheme in {"tcp", "unix"}:
                listener["framing"] = "size-prefixed"
            yield f"    - {flow(listener)}"
    other = {"address": f"{HOST}:{ports.assign(8003)}", "protocols": [second]}
    yield f"  additional:  # {first} and {second} have the same paths"
    yield f"    {second}: {flow(other)}"


def _backend_lines(backend: _Backend, options: ProbeOptions) -> Iterator[str]:
    server, best = backend.server, backend.server.best
    yield f"  {scalar(backend.name)}:  # {one_line(server.title)}"
    for item in server.protocols[1:]:
        yield f"    # It also speaks {item.protocol}: {item.url}"
    section = options.backend_section(best.protocol, best.url)
    if options.headers:
        default = BackendConfig.model_fields["forward_headers"].default
        section["forward_headers"] = [*default, *options.headers]
    for key, value in section.items():
        yield f"    {key}: {flow(value)}"


def _routes(
    entries: Sequence[_Entry], remarks: Sequence[str], unlisted: Sequence[_Backend]
) -> Iterator[str]:
    for entry in entries:
        yield f"  - model: {flow(_pattern(entry.name))}"
        yield f"    backend: {scalar(entry.backend.name)}"
        if casts := cast_rules(entry.model.metadata, entry.pair):
            yield f"    cast: {flow(casts)}  # for protocols without these datatypes"
        if entry.model.problem:
            yield f"    # When probed: {one_line(entry.model.problem)}"
        if entry.pair is not None:
            yield from (f"    {line}" for line in mirror_lines(entry.pair, entry.target))
    yield from remarks
    for index, backend in enumerate(unlisted):
        hint = f"{backend.name} cannot list its models; name them with --model"
        mark = "# " if index else ""
        yield f"  {mark}- {flow({'model': '*', 'backend': backend.name})}  # {hint}"


def _pattern(name: str) -> str:
    """Return the pattern that matches only ``name``."""
    return f"/{re.escape(name)}/" if is_glob(name) else name


def _models(entries: Sequence[_Entry]) -> Iterator[str]:
    if any("/" in name for entry in entries for name in _names_of(entry)):
        yield "\nallow_slash_in_model_names: true"
    declared: list[str] = []
    unknown: list[str] = []
    for entry in entries:
        metadata = entry.model.metadata
        if metadata is None or not _is_complete(metadata):
            tensors = _EXAMPLE_TENSORS if metadata is None else flow(_declaration(metadata))
            unknown.append(f"#   {scalar(entry.name)}: {tensors}")
        elif entry.model.source != entry.backend.server.best.protocol:
            declared.append(f"  {scalar(entry.name)}: {flow(_declaration(metadata))}")
    if declared:
        yield "\nmodels:  # the backends' protocols do not provide this metadata"
        yield from declared
    if unknown:
        yield "\n# Clients that use a different protocol need the tensors of these models."
        yield "# Fill in the names, datatypes and shapes, and remove the '# ':"
        if not declared:
            yield "# models:"
        yield from unknown


def _names_of(entry: _Entry) -> tuple[str, ...]:
    new = entry.pair.new if entry.pair else None
    return (entry.name, new.name) if new else (entry.name,)


def _is_complete(metadata: ModelMetadata) -> bool:
    tensors = (*metadata.inputs, *metadata.outputs)
    return bool(metadata.inputs and metadata.outputs) and all(
        tensor.datatype in DATATYPES_BY_NAME and not find_tensor_name_problem(tensor.name)
        for tensor in tensors
    )


def _declaration(metadata: ModelMetadata) -> dict[str, Any]:
    batch = {"max_batch_size": metadata.max_batch_size} if metadata.max_batch_size else {}
    return {
        **batch,
        "inputs": [tensor_json(tensor) for tensor in metadata.inputs],
        "outputs": [tensor_json(tensor) for tensor in metadata.outputs],
    }
