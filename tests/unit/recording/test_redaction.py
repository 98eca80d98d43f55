"""Redaction of exchanges before they are stored."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exchange_samples import comparable, sample_exchange
from infergate.core.datatypes import Datatype
from infergate.core.exchange import Exchange, Outcome
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.tensor import Tensor, check_data, pack_bytes
from infergate.recording.redaction import Redaction

TEXT = Tensor("name", Datatype.BYTES, (2, 1), pack_bytes([b"Ada", b"Grace"]), {"p": 1})
IMAGE = Tensor("image", Datatype.FP32, (1, 2), b"\1" * 8)
SAFE = Tensor("safe", Datatype.UINT8, (1,), b"s")
EXCHANGE = Exchange(
    InferRequest("m", inputs=(TEXT, IMAGE, SAFE)),
    Outcome((InferResponse("m", outputs=(SAFE, IMAGE)), InferResponse("m", outputs=(TEXT,)))),
)


def _names(tensors: tuple[Tensor, ...]) -> list[str]:
    return [tensor.name for tensor in tensors]


def test_without_settings_an_exchange_loses_only_its_headers() -> None:
    exchange = replace(EXCHANGE, headers={"x-tenant": "a"})
    found, further, redacted = Redaction().apply(exchange)
    assert comparable(found) == comparable(EXCHANGE)
    assert (further, redacted) == ({}, ())


def test_removed_tensors_are_in_neither_request_nor_responses() -> None:
    found, further, redacted = Redaction(removed=["im*"]).apply(
        EXCHANGE, {"mirror": EXCHANGE.outcome}
    )
    assert _names(found.request.inputs) == ["name", "safe"]
    for outcome in (found.outcome, further["mirror"]):
        assert [_names(response.outputs) for response in outcome.responses] == [["safe"], ["name"]]
    assert redacted == ("image",)


def test_zeroed_tensors_keep_everything_but_their_data() -> None:
    found, _, redacted = Redaction(zeroed=["name", "image"]).apply(EXCHANGE)
    text, image, safe = found.request.inputs
    assert image == replace(IMAGE, data=bytes(8))
    assert text == replace(TEXT, data=bytes(8))
    assert list(text.numpy().ravel()) == [b"", b""]
    assert safe is SAFE
    for tensor in found.request.inputs:
        check_data(tensor.name, tensor.datatype, tensor.shape, tensor.data)
    assert redacted == ("name", "image")


def test_names_are_matched_with_case_and_as_a_whole() -> None:
    assert Redaction(removed=["IMAGE", "imag", "mage"]).apply(EXCHANGE)[2] == ()


@pytest.mark.parametrize(
    "name",
    ["authorization", "cookie", "x-api-key", "x-amz-security-token", "x-session-id", "x-secret"],
)
def test_headers_with_credentials_are_never_kept(name: str) -> None:
    exchange = replace(sample_exchange(), headers={name: "s3cret", "x-tenant": "a"})
    for globs in (["*"], [name, "x-tenant"]):
        assert Redaction(headers=globs).apply(exchange)[0].headers == {"x-tenant": "a"}


def test_only_listed_headers_are_kept() -> None:
    exchange = replace(sample_exchange(), headers={"x-tenant": "a", "x-b": "b", "x-bc": "c"})
    found = Redaction(headers=["x-b", "x-ten*"]).apply(exchange)[0]
    assert found.headers == {"x-tenant": "a", "x-b": "b"}
