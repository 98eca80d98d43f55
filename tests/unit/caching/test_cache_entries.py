"""The encoding of cached responses: round trips, and the refusal of invalid values."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infergate.caching.entries import check, decode, encode
from infergate.caching.keys import UncacheableError
from infergate.core.datatypes import Datatype
from infergate.core.errors import Kind
from infergate.core.messages import InferResponse
from infergate.core.region_ref import RegionRef
from infergate.core.tensor import OpaqueParameters, Tensor
from infergate.testing import strategies

OUTPUT = Tensor("y", Datatype.UINT8, (2,), b"ab", {"p": [1, {"q": None}]})
RESPONSE = InferResponse("m", "1", "id", {"a": "\ud800é"}, (OUTPUT,), is_last=True)


@settings(max_examples=15)
@given(strategies.infer_responses())
def test_a_response_is_unchanged_except_for_its_id(response: InferResponse) -> None:
    value = encode(response, {"h": "1"})
    check(value)
    entry = decode(value)
    assert entry.response == replace(response, id="")
    # unlike ==, repr also compares types such as bool and int
    assert repr(entry.response.parameters) == repr(dict(response.parameters))
    assert entry.headers == {"h": "1"}


def test_nested_and_opaque_parameters_are_unchanged() -> None:
    opaque = OpaqueParameters({"a": 1}, ("p", "q"), b"\xff", (Kind.UNSUPPORTED, "no"))
    for response in (RESPONSE, replace(RESPONSE, parameters=opaque)):
        value = encode(response, {})
        assert decode(value).response == replace(response, id="")
    parameters = decode(value).response.parameters
    assert isinstance(parameters, OpaqueParameters)
    assert (parameters.protocols, parameters.text) == (("p", "q"), b"\xff")
    assert parameters.rejection == (Kind.UNSUPPORTED, "no")


def test_outputs_in_shared_memory_are_uncacheable() -> None:
    output = replace(OUTPUT, shared_memory=RegionRef("r", 0, 2))
    with pytest.raises(UncacheableError):
        encode(replace(RESPONSE, outputs=(output,)), {})


@settings(max_examples=15)
@given(st.data(), strategies.infer_responses())
def test_corrupted_values_are_refused_or_valid(
    data: st.DataObject, response: InferResponse
) -> None:
    value = data.draw(strategies.corrupted_bytes(encode(response, {})))
    try:
        check(value)
    except ValueError:
        return
    decode(value)


@pytest.mark.parametrize(
    "text",
    [
        b'["m","",false,null,[["y","UINT8",[3],null,2]],{}]',
        b'["m","",false,null,[["y","BYTES",[1],null,2]],{}]',
        b'["m","",false,null,[["y","UINT8",[2],null,1]],{}]',
        b'["m","",false,null,[["y","UINT8",[-1],null,2]],{}]',
        b'["m","",false,null,[["y","UINT8",[2],null,-2]],{}]',
        b'["m","",false,null,[["y","NONE",[2],null,2]],{}]',
        b'["m","",false,null,[[5,"UINT8",[2],null,2]],{}]',
        b'["m","",false,5,[["y","UINT8",[2],null,2]],{}]',
        b'["m","",0,null,[["y","UINT8",[2],null,2]],{}]',
        b'["m",7,false,null,[["y","UINT8",[2],null,2]],{}]',
        b'["m","",false,null,[["y","UINT8",[2],null,2]],{"h":5}]',
        b'["m","",false,null,[["y","UINT8",[2],null,2]],5]',
        b'["m","",false,null,5,{}]',
        b"[" * 100_000,
        b"{}",
        b"",
    ],
)
def test_invalid_descriptions_are_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="not a cached response"):
        check(len(text).to_bytes(4) + text + b"ab")


def test_a_valid_description_is_accepted() -> None:
    text = b'["m","",false,null,[["y","UINT8",[2],null,2]],{}]'
    check(len(text).to_bytes(4) + text + b"ab")
