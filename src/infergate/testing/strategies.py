"""Hypothesis strategies for canonical requests and responses, and for corrupting bytes. This module
requires hypothesis, which infergate itself does not require."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

from infergate.core.datatypes import Datatype
from infergate.core.messages import InferRequest, InferResponse, RequestedOutput
from infergate.core.tensor import Tensor, pack_bytes

INT64 = st.integers(-(2**63), 2**63 - 1)


def names() -> st.SearchStrategy[str]:
    """Names of tensors and models: short text that ``core.name_rules`` accepts as a tensor name."""
    characters = st.characters(
        exclude_categories=["Cs", "Cc", "Zl", "Zp"],
        exclude_characters="\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069",
    )
    return st.text(characters, min_size=1, max_size=12)


def texts() -> st.SearchStrategy[str]:
    """Unicode text of up to 12 characters, including the empty text."""
    return st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def scalars() -> st.SearchStrategy[Any]:
    """Parameter values that most protocols can represent: bool, 64-bit integer, text, float."""
    return st.one_of(
        st.booleans(), INT64, st.integers(2**63, 2**64 - 1), texts(), st.floats(allow_nan=False)
    )


def parameters() -> st.SearchStrategy[dict[str, Any]]:
    """Parameters with scalar values."""
    return st.dictionaries(names(), scalars(), max_size=3)


def shapes(max_rank: int = 4, max_dimension: int = 4) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes of up to ``max_rank`` dimensions, including scalars and dimensions of 0."""
    return st.lists(st.integers(0, max_dimension), max_size=max_rank).map(tuple)


@st.composite
def tensors(
    draw: st.DrawFn,
    datatypes: frozenset[Datatype] = frozenset(Datatype),
    name: st.SearchStrategy[str] | None = None,
) -> Tensor:
    """A valid tensor. Numbers have any bits (including NaN payloads); BOOL elements are 0 or 1."""
    datatype = draw(st.sampled_from(sorted(datatypes, key=lambda member: member.value)))
    shape = draw(shapes())
    count = math.prod(shape)
    if datatype is Datatype.BYTES:
        element = st.binary(max_size=6)
        data = pack_bytes(draw(st.lists(element, min_size=count, max_size=count)))
    elif datatype is Datatype.BOOL:
        data = bytes(draw(st.lists(st.integers(0, 1), min_size=count, max_size=count)))
    else:
        size = count * datatype.itemsize
        data = draw(st.binary(min_size=size, max_size=size))
    return Tensor(
        draw(names() if name is None else name), datatype, shape, data, draw(parameters())
    )


def tensor_lists(
    datatypes: frozenset[Datatype] = frozenset(Datatype),
) -> st.SearchStrategy[tuple[Tensor, ...]]:
    """One to three tensors with distinct names."""
    return st.lists(
        tensors(datatypes), min_size=1, max_size=3, unique_by=lambda tensor: tensor.name
    ).map(tuple)


def infer_requests(
    datatypes: frozenset[Datatype] = frozenset(Datatype),
) -> st.SearchStrategy[InferRequest]:
    """Inferences with one to three inputs and at most two requested outputs."""
    output = st.builds(RequestedOutput, names(), parameters())
    return st.builds(
        InferRequest,
        model=names(),
        version=texts(),
        id=texts(),
        parameters=parameters(),
        inputs=tensor_lists(datatypes),
        outputs=st.lists(output, max_size=2, unique_by=lambda entry: entry.name).map(tuple),
    )


def infer_responses(
    datatypes: frozenset[Datatype] = frozenset(Datatype),
) -> st.SearchStrategy[InferResponse]:
    """Responses to inferences, with one to three outputs."""
    return st.builds(
        InferResponse,
        model=names(),
        version=texts(),
        id=texts(),
        parameters=parameters(),
        outputs=tensor_lists(datatypes),
    )


@st.composite
def corrupted_bytes(draw: st.DrawFn, body: bytes) -> bytes:
    """``body`` with one to four random changes, insertions, deletions or repetitions."""
    data = bytearray(body)
    for _ in range(draw(st.integers(1, 4))):
        position = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(("change", "insert", "cut", "double", "end"))):
            case "change" if position < len(data):
                data[position] = draw(st.integers(0, 255))
            case "insert":
                data[position:position] = draw(st.binary(min_size=1, max_size=4))
            case "cut":
                del data[position : position + draw(st.integers(1, 8))]
            case "double":
                data[position:position] = data[position : position + draw(st.integers(1, 32))]
            case "end":
                del data[position:]
    return bytes(data)
