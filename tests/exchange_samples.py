"""Exchanges for tests of recordings, and ``comparable`` to compare them bit by bit."""

from __future__ import annotations

import dataclasses
import math
import struct
from typing import Any

from hypothesis import strategies as st

from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.exchange import Exchange, Outcome
from infergate.core.messages import InferRequest, InferResponse, RequestedOutput
from infergate.core.tensor import Buffer, OpaqueParameters, Tensor
from infergate.testing import strategies

TEXTS = st.text(st.characters(), max_size=6)
"""Any text, lone surrogates included."""
FLOATS = st.binary(min_size=8, max_size=8).map(lambda data: struct.unpack("<d", data)[0])
"""Any float, including NaNs with any payload."""
_SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.integers(-4, 4), TEXTS)
JSON_VALUES = FLOATS | st.recursive(
    _SCALARS | st.floats(allow_nan=False) | st.just(math.nan),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
_PLAIN = st.dictionaries(TEXTS, JSON_VALUES, max_size=3)
_KINDS = st.sampled_from(Kind)
_OPAQUE = st.builds(
    OpaqueParameters,
    _PLAIN,
    st.lists(st.sampled_from(["v2-rest", "graphpipe"])).map(tuple),
    st.binary(max_size=8),
    st.none() | st.tuples(_KINDS, TEXTS),
)


def _without_sequence(parameters: Any) -> bool:
    return "sequence_id" not in parameters


PARAMETERS = (_PLAIN | _OPAQUE).filter(_without_sequence)
_SEQUENCE = (st.integers(0, 2**64 - 1) | TEXTS).map(lambda value: {"sequence_id": value})
TENSORS = st.lists(strategies.tensors(name=TEXTS), max_size=3).map(tuple)
REQUESTS = st.builds(
    InferRequest,
    TEXTS,
    TEXTS,
    TEXTS,
    PARAMETERS | _SEQUENCE,
    TENSORS,
    st.lists(st.builds(RequestedOutput, TEXTS, PARAMETERS), max_size=2).map(tuple),
)
RESPONSES = st.builds(InferResponse, TEXTS, TEXTS, TEXTS, PARAMETERS, TENSORS, st.booleans())
_ERRORS = st.builds(
    GatewayError,
    _KINDS,
    TEXTS,
    origin=st.sampled_from(Origin),
    retry_after=st.none() | st.floats(0, 100),
)
OUTCOMES = st.builds(
    Outcome,
    st.lists(RESPONSES, max_size=2).map(tuple),
    st.none() | _ERRORS,
    FLOATS,
    st.lists(FLOATS, max_size=2).map(tuple),
)
EXCHANGES = st.builds(
    Exchange,
    REQUESTS,
    OUTCOMES,
    TEXTS,
    TEXTS,
    TEXTS,
    TEXTS,
    st.dictionaries(TEXTS, TEXTS, max_size=2),
    FLOATS,
    st.booleans(),
)


def comparable(value: Any) -> Any:
    """Return a form of ``value`` that is equal only for values of the same types and bits."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, GatewayError):
        return value.kind, value.public, value.origin, comparable(value.retry_after)
    if isinstance(value, OpaqueParameters):
        return "opaque", dict_items(value), value.protocols, value.text, value.rejection
    if isinstance(value, dict):
        return dict_items(value)
    if isinstance(value, tuple | list):
        return type(value), [comparable(item) for item in value]
    if dataclasses.is_dataclass(value):
        return type(value), [
            comparable(getattr(value, field.name)) for field in dataclasses.fields(value)
        ]
    return type(value), struct.pack("<d", value) if type(value) is float else value


def dict_items(value: dict[str, Any]) -> list[Any]:
    return [(name, comparable(item)) for name, item in value.items()]


def sample_exchange(number: int = 0, size: int = 16, **parameters: Any) -> Exchange:
    """Return a small exchange whose tensors depend on ``number``."""
    data = bytes((number + index) % 251 for index in range(size))
    tensor = Tensor("x", Datatype.UINT8, (size,), data)
    request = InferRequest("m", "", f"id-{number}", parameters, (tensor,))
    response = InferResponse("m", "1", f"id-{number}", outputs=(tensor,), is_last=True)
    return Exchange(request, Outcome((response,), duration=0.5), "v2-rest", "m", "b")


def exchange_of(data: Buffer) -> Exchange:
    """Return an exchange without responses, whose only tensor has the bytes ``data``."""
    tensor = Tensor("x", Datatype.UINT8, (len(data),), data)
    return Exchange(InferRequest("m", inputs=(tensor,)), Outcome())
