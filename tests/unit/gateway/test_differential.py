"""Forward and translate: every vector both ways, and the server behind sees the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infergate.codecs.profiles import TRITON
from infergate.codecs.registry import plugins
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.wire import HttpResponse, joined
from infergate.testing.vectors import Vector, load

VECTORS = Path(__file__).parents[2] / "vectors"
PROTOCOLS = sorted(folder.name for folder in VECTORS.iterdir() if folder.is_dir())
CASES = [
    pytest.param(protocol, vector, id=f"{protocol}/{vector.name}")
    for protocol in PROTOCOLS
    if protocol in plugins()
    for vector in load(VECTORS / protocol)
]


def outcome(step: Any) -> Any:
    """What ``step`` returns, or the error it raises as something to compare."""
    try:
        return step()
    except GatewayError as error:
        return (error.kind, error.public)


@pytest.mark.parametrize(("protocol", "vector"), CASES)
def test_both_ways_agree(protocol: str, vector: Vector) -> None:
    codec = plugins()[protocol].make(vector.options)
    if vector.asks is None:
        requests_agree(codec, vector.wire)
    else:
        responses_agree(codec, vector)


def body_of(wire: Any) -> Any:
    return wire.body if isinstance(wire, HttpResponse) else wire.message


def requests_agree(codec: Any, wire: Any) -> None:
    try:
        peek = codec.peek(wire)
    except GatewayError:
        return  # refused before a way is chosen
    if peek.operation is not InferRequest:
        return
    translated = outcome(lambda: codec.parse_request(wire, DEFAULT_LIMITS).operation)
    checked = outcome(lambda: codec.shield(wire, DEFAULT_LIMITS))
    if isinstance(translated, tuple) or isinstance(checked, tuple):
        assert checked == translated
        return
    if not isinstance(translated, InferRequest):
        return  # a bare tensor has no names to compare before the model's metadata is known
    forwarded = codec.readdress(checked, peek.model, peek.version, TRITON)
    if forwarded is None:
        return  # this server does not take the message as it stands: it is translated
    seen = codec.parse_request(forwarded, DEFAULT_LIMITS).operation
    assert seen == translated
    rebuilt = codec.build_request(translated, TRITON)
    assert codec.parse_request(rebuilt, DEFAULT_LIMITS).operation == translated


def responses_agree(codec: Any, vector: Vector) -> None:
    asks = vector.asks
    if not isinstance(asks, InferRequest):
        return
    asked = codec.build_request(asks, TRITON)
    translated = outcome(lambda: codec.parse_response(vector.wire, asks, DEFAULT_LIMITS))
    forwarded = outcome(lambda: codec.relabel(vector.wire, asked, "", "", DEFAULT_LIMITS))
    if isinstance(translated, tuple):
        if translated[0] is Kind.BACKEND_GARBAGE and not isinstance(forwarded, tuple):
            # Clients are checked, servers are trusted: tensors of an answer that is forwarded are
            # not looked at, so what is wrong inside them goes on as it came.
            assert bytes(joined(body_of(forwarded))) == bytes(joined(body_of(vector.wire)))
            return
        assert isinstance(forwarded, tuple)
        assert forwarded[0] is translated[0]
        return
    assert isinstance(translated, InferResponse)
    translated = replace(translated, id=asks.id)  # as gateway.rename does
    assert codec.parse_response(forwarded, asks, DEFAULT_LIMITS) == translated
    renamed = codec.relabel(vector.wire, asked, "new name", "77", DEFAULT_LIMITS)
    assert codec.parse_response(renamed, asks, DEFAULT_LIMITS) == replace(
        translated, model="new name", version="77"
    )
