"""Redaction of exchanges before they are stored."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exchange_samples import comparable, sample_exchange
from infergate.codecs.base import ParsedRequest
from infergate.codecs.kserve_v1.backend import explanation_request
from infergate.codecs.protos import SCHEMA
from infergate.codecs.registry import plugins
from infergate.codecs.tfs.messages import CLASSIFY
from infergate.core.credential_names import may_hold_credentials
from infergate.core.datatypes import Datatype
from infergate.core.exchange import Exchange, Outcome
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.tensor import OpaqueParameters, Tensor, check_data, pack_bytes
from infergate.core.wire import HttpRequest, RpcRequest
from infergate.recording.encoding import decode_exchange, encode_exchange
from infergate.recording.redaction import BODY, Redaction

TEXT = Tensor("name", Datatype.BYTES, (2, 1), pack_bytes([b"Ada", b"Grace"]), {"p": 1})
IMAGE = Tensor("image", Datatype.FP32, (1, 2), b"\1" * 8)
SAFE = Tensor("safe", Datatype.UINT8, (1,), b"s")
EXCHANGE = Exchange(
    InferRequest("m", inputs=(TEXT, IMAGE, SAFE)),
    Outcome((InferResponse("m", outputs=(SAFE, IMAGE)), InferResponse("m", outputs=(TEXT,)))),
)
RESPONSE_TENSOR = Tensor("response", Datatype.BYTES, (1,), pack_bytes([b'{"ssn": "PATIENT"}']))
FORWARDED = Exchange(
    InferRequest(
        "m", parameters=OpaqueParameters({"l": "PATIENT"}, ("tfs-rest",), b"classify\0PATIENT")
    ),
    Outcome((InferResponse("m", outputs=(RESPONSE_TENSOR,)),)),
)


def _names(tensors: tuple[Tensor, ...]) -> list[str]:
    return [tensor.name for tensor in tensors]


def test_without_settings_an_exchange_loses_only_its_headers() -> None:
    exchange = replace(EXCHANGE, headers={"x-tenant": "a"})
    stored, others, redacted = Redaction().apply(exchange)
    assert comparable(stored) == comparable(EXCHANGE)
    assert (others, redacted) == ({}, ())


def test_removed_tensors_are_in_neither_request_nor_responses() -> None:
    stored, others, redacted = Redaction(removed=["im*"]).apply(
        EXCHANGE, {"mirror": EXCHANGE.outcome}
    )
    assert _names(stored.request.inputs) == ["name", "safe"]
    for outcome in (stored.outcome, others["mirror"]):
        assert [_names(response.outputs) for response in outcome.responses] == [["safe"], ["name"]]
    assert redacted == ("image",)


def test_zeroed_tensors_keep_everything_but_their_data() -> None:
    stored, _, redacted = Redaction(zeroed=["name", "image"]).apply(EXCHANGE)
    text, image, safe = stored.request.inputs
    assert image == replace(IMAGE, data=bytes(8))
    assert text == replace(TEXT, data=bytes(8))
    assert list(text.numpy().ravel()) == [b"", b""]
    assert safe is SAFE
    for tensor in stored.request.inputs:
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
    stored = Redaction(headers=["x-b", "x-ten*"]).apply(exchange)[0]
    assert stored.headers == {"x-tenant": "a", "x-b": "b"}


@pytest.mark.parametrize("globs", [{"removed": ["*"]}, {"removed": ["a"]}, {"zeroed": ["a"]}])
def test_a_body_and_the_response_to_it_are_removed(globs: dict[str, list[str]]) -> None:
    stored, others, redacted = Redaction(**globs).apply(FORWARDED, {"m": FORWARDED.outcome})
    assert redacted == (BODY,)
    record = b"".join(map(bytes, encode_exchange(stored, others, redacted)))
    assert b"PATIENT" not in record
    assert BODY in decode_exchange(record).redacted
    assert stored.request.parameters == {}
    assert isinstance(stored.request.parameters, OpaqueParameters)
    assert stored.request.parameters.protocols == ("tfs-rest",)


FORWARDED_CALLS = {
    "tfs-rest": HttpRequest(
        "POST", "/v1/models/m:regress", "", {}, (b'{"examples": [{"ssn": "PATIENT"}]}',)
    ),
    "tfs-grpc": RpcRequest(
        CLASSIFY, (SCHEMA.method_classes(CLASSIFY)[0](model_spec={"name": "m"}, input={
            "example_list_with_context": {"context": {"features": {"feature": {"PATIENT": {}}}}}
        }).SerializeToString(),),
    ),
}  # fmt: skip


@pytest.mark.parametrize("protocol", FORWARDED_CALLS)
def test_forwarded_calls_have_a_body_that_is_removed(protocol: str) -> None:
    wire = FORWARDED_CALLS[protocol]
    parsed = plugins()[protocol].create({}).parse_request(wire, DEFAULT_LIMITS)
    assert isinstance(parsed, ParsedRequest)
    assert isinstance(parsed.operation, InferRequest)
    _check_that_the_body_is_removed(parsed.operation)


def test_a_request_for_an_explanation_has_a_body_that_is_removed() -> None:
    _check_that_the_body_is_removed(explanation_request("m", b"PATIENT"))


def _check_that_the_body_is_removed(request: InferRequest) -> None:
    exchange = replace(FORWARDED, request=request)
    assert b"PATIENT" in b"".join(map(bytes, encode_exchange(exchange)))
    redacted = Redaction(zeroed=["x"]).apply(exchange)
    assert b"PATIENT" not in b"".join(map(bytes, encode_exchange(*redacted)))


def test_outputs_stay_if_the_request_has_inputs_besides_its_body() -> None:
    parameters = OpaqueParameters({"a": "PATIENT"}, ("graphpipe",), b'{"a": "PATIENT"}')
    request = replace(EXCHANGE.request, parameters=parameters)
    stored, _, redacted = Redaction(removed=["name"]).apply(replace(EXCHANGE, request=request))
    assert b"PATIENT" not in b"".join(map(bytes, encode_exchange(stored)))
    assert redacted == (BODY, "name")
    assert [_names(each.outputs) for each in stored.outcome.responses] == [["safe", "image"], []]


def test_a_body_stays_if_no_tensor_is_redacted() -> None:
    stored, _, redacted = Redaction(headers=["*"]).apply(FORWARDED)
    assert (stored, redacted) == (FORWARDED, ())


@pytest.mark.parametrize(
    "name",
    [
        "x-jwt-assertion", "x-goog-iap-jwt-assertion", "x-credential", "X-Amz-Credential", "x-pass",
        "x_pwd", "x-passwd", "x-passphrase", "x-forwarded-client-cert", "x-signature", "sig",
    ],
)  # fmt: skip
def test_less_common_names_of_credential_headers_are_recognized(name: str) -> None:
    assert may_hold_credentials(name)


@pytest.mark.parametrize(
    "name", ["x-compass", "x-bypass", "passenger-id", "x-certainty", "x-signal", "x-design"]
)
def test_words_that_contain_pass_cert_or_sig_are_no_credentials(name: str) -> None:
    assert not may_hold_credentials(name)
