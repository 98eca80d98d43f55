"""Writes the mirror of a route as lines of routes.yaml. The mirror copies the requests for a model
of the old server to the counterpart of the model on the new server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from infergate.core.datatypes import DATATYPES_BY_NAME, Datatype
from infergate.core.messages import ModelMetadata
from infergate.migration.probe.pairing import ModelPair, TensorPair
from infergate.migration.probe.report import one_line
from infergate.migration.probe.yaml_text import flow, scalar

_SUBSTITUTES: Final = {Datatype.BOOL: Datatype.UINT8, Datatype.BF16: Datatype.FP32}


def cast_rules(metadata: ModelMetadata | None, pair: ModelPair | None) -> dict[str, str]:
    """Return the casts of a route: the casts that ``pair`` needs, and casts of other datatypes that
    some protocols do not support."""
    tensors = (*metadata.inputs, *metadata.outputs) if metadata else ()
    casts = {
        datatype.value: _SUBSTITUTES[datatype].value
        for tensor in tensors
        if (datatype := DATATYPES_BY_NAME.get(tensor.datatype)) in _SUBSTITUTES
    }
    if pair is not None:
        casts |= dict(item.cast for item in (*pair.inputs, *pair.outputs) if item.cast)
    return casts


def mirror_lines(pair: ModelPair, backend: str) -> Iterator[str]:
    """Yield the lines of a mirror to ``backend``. If there is no counterpart, or the counterpart
    might not accept all requests, the lines are comments with the reasons."""
    if pair.new is None:
        yield f"# No mirror: {pair.reason}{_alternatives(pair.alternatives)}"
        return
    lines = [
        "mirror:",
        f"  backend: {scalar(backend)}",
        "  percent: 100",
        *_rewrite_lines(pair),
        "  compare: {}",
    ]
    if pair.can_mirror:
        yield from lines
        return
    yield "# The mirror is not certain:"
    yield from (f"#   {reason}" for reason in _reasons(pair))
    yield from (f"# {line}" for line in lines)


def _reasons(pair: ModelPair) -> Iterator[str]:
    if pair.reason:
        yield f"model {one_line(pair.old.name)}: {pair.reason}"
    for item in pair.inputs:
        if not item.is_certain:
            possible = _alternatives(item.alternatives)
            yield f"input {one_line(item.old.name)}: {item.reason}{possible}"
    for name in pair.extra_inputs:
        yield f"input {one_line(name)} of the new model: the old model has no such input"


def _rewrite_lines(pair: ModelPair) -> Iterator[str]:
    assert pair.new is not None
    rewrite: dict[str, Any] = {}
    if pair.new.name != pair.old.name:
        rewrite["model"] = pair.new.name
    for side, items in (("inputs", pair.inputs), ("outputs", pair.outputs)):
        if names := {i.old.name: i.new.name for i in items if i.new and _is_rewritten(i, pair)}:
            rewrite[side] = names
    if rewrite:
        yield "  rewrite:"
        yield from (f"    {key}: {flow(value)}" for key, value in rewrite.items())
    for item in pair.outputs:
        if not item.is_certain:
            possible = [item.new.name] if item.new and item.is_renamed else item.alternatives
            yield f"  # output {one_line(item.old.name)}: {item.reason}{_alternatives(possible)}"


def _is_rewritten(item: TensorPair, pair: ModelPair) -> bool:
    """Return whether the rewrite contains ``item``. A rewrite in a comment also contains uncertain
    pairs of tensors."""
    return item.is_renamed and (item.is_certain or not pair.can_mirror)


def _alternatives(names: Sequence[str]) -> str:
    return f"; possible: {', '.join(map(one_line, names))}" if names else ""
