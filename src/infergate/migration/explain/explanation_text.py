"""Formats an explanation as text or JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from infergate.core.name_rules import escape_unsafe
from infergate.migration.explain.explanation import Explanation
from infergate.migration.explain.target import TargetExplanation

Json = dict[str, Any]
_PIPELINES = {
    "forward": "the message passes through: no tensor is decoded",
    "translate": "the message is translated through the canonical form",
}


def as_json(explanation: Explanation) -> Json:
    """Return ``explanation`` as JSON, without the inference and the metadata."""
    return {
        "listener": explanation.listener,
        "protocol": explanation.protocol,
        "operation": explanation.operation,
        "model": explanation.model,
        "version": explanation.version,
        "routes": [asdict(check) for check in explanation.routes],
        "targets": [asdict(target) for target in explanation.targets],
        "notes": list(explanation.notes),
        "error": explanation.error,
    }


def as_text(explanation: Explanation, *, shows_bytes: bool = False) -> str:
    """Return ``explanation`` as text. ``shows_bytes`` adds the beginning of each message as a hex
    dump."""
    text = "\n".join(_lines(explanation, shows_bytes=shows_bytes))
    # Names and headers of a recording may contain control characters.
    return "".join(f"{escape_unsafe(line)}\n" for line in text.split("\n"))


def _lines(explanation: Explanation, *, shows_bytes: bool) -> Iterator[str]:
    yield f"listener  {explanation.listener}"
    yield f"protocol  {explanation.protocol}"
    if explanation.operation:
        version = f", version {explanation.version}" if explanation.version else ""
        model = f" of model '{explanation.model}'{version}" if explanation.model else ""
        yield f"request   {explanation.operation}{model}"
    for note in explanation.notes:
        yield f"note      {note}"
    if explanation.routes:
        yield ""
        yield "routes"
        for check in explanation.routes:
            yield f"  {check.number}. {check.label}: {check.mismatch or 'matches'}"
    if explanation.error:
        yield ""
        yield f"refused: {explanation.error}"
    for target in explanation.targets:
        yield ""
        yield from _target(target, shows_bytes=shows_bytes)


def _target(target: TargetExplanation, *, shows_bytes: bool) -> Iterator[str]:
    yield f"{target.role} '{target.backend}' ({target.protocol}): {target.when}"
    if len(target.endpoints) > 1:
        yield f"  endpoints: {', '.join(target.endpoints)}"
    if target.pipeline:
        yield f"  {_PIPELINES.get(target.pipeline, target.pipeline)}"
    for step in target.steps:
        yield f"  - {step}"
    if target.error:
        yield f"  {target.error}"
    elif target.url:
        yield from _message(target, shows_bytes=shows_bytes)
    for line in target.layout:
        yield f"    {line}"


def _message(target: TargetExplanation, *, shows_bytes: bool) -> Iterator[str]:
    message = target.message
    yield f"  {message['start'].partition(' ')[0]} {target.url}"
    for name, value in message["headers"]:
        yield f"    {name}: {value}"
    if message["decoded"]:
        yield textwrap.indent(message["decoded"].rstrip(), "    ")
    elif message["size"]:
        yield f"    {message['size']} bytes"
    if shows_bytes:
        yield textwrap.indent(message["bytes"], "    ")
