"""The cache of JSON heads gives the same results as the full check, and is bounded."""

import math
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infergate.codecs.base import ParsedRequest
from infergate.codecs.message_heads import MAX_CACHED_HEAD, MAX_WEIGHT
from infergate.codecs.profiles import TRITON
from infergate.codecs.v2_rest import infer_request, infer_response
from infergate.codecs.v2_rest.codec import V2RestCodec
from infergate.codecs.v2_rest.infer_request import ResponseFormat
from infergate.codecs.v2_rest.json_heads import BYTE_WEIGHT, split_json
from infergate.core.errors import GatewayError
from infergate.core.limits import DEFAULT_LIMITS, Limits, event_loop_limits
from infergate.core.messages import InferRequest, InferResponse, RequestedOutput
from infergate.core.region_ref import RegionRef
from infergate.core.wire import HttpRequest, HttpResponse, join_parts
from infergate.testing import canonical
from infergate.testing.strategies import corrupted_bytes, infer_requests, infer_responses, texts
from object_size import package_size

LIMITS = event_loop_limits(DEFAULT_LIMITS)
NARROW = event_loop_limits(Limits(tensors=1, rank=1, json=100))
LENGTH = "inference-header-content-length"
PATH = "/v2/models/m/versions/1/infer"


class UncachedCodec(V2RestCodec):
    """A codec that caches no heads, so it checks every message."""

    def __init__(self) -> None:
        super().__init__()
        self._request_heads = None  # type: ignore[assignment, misc]
        self._response_heads = None  # type: ignore[assignment, misc]


FAST = V2RestCodec()
"""Shared by all tests, so that later tests use the heads cached by earlier ones."""
SLOW = UncachedCodec()


def post(text: bytes, data: bytes, length: str = "", **headers: str) -> HttpRequest:
    headers |= {LENGTH: length or str(len(text))}
    return HttpRequest("POST", PATH, "", headers, (text + data,))


def ok(text: bytes, data: bytes) -> HttpResponse:
    return HttpResponse(200, {LENGTH: str(len(text))}, (text + data,))


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of ``function`` in a comparable form, or its error."""
    try:
        result = function(*arguments)
    except GatewayError as error:
        return (error.kind, error.public, error.detail, error.origin)
    if isinstance(result, ParsedRequest):
        assert isinstance(result.operation, InferRequest)
        return canonical.to_text(result.operation), result.response_options, result.wants_stream
    if isinstance(result, InferResponse):
        return canonical.to_text(result)
    return result


def request_outcomes(codec: V2RestCodec, wire: HttpRequest, limits: Limits = LIMITS) -> list[Any]:
    return [outcome(codec.parse_request, wire, limits), outcome(codec.validate, wire, limits)]


def response_outcomes(codec: V2RestCodec, wire: HttpResponse, limits: Limits = LIMITS) -> list[Any]:
    operations = (
        InferRequest("m"),
        InferRequest("other", outputs=(RequestedOutput("Y"),)),
        InferRequest("m", outputs=(RequestedOutput("Y", shared_memory=RegionRef("r", 0, 99)),)),
    )
    return [outcome(codec.parse_response, wire, operation, limits) for operation in operations]


def check(outcomes: Callable[..., list[Any]], wire: Any, limits: Limits = LIMITS) -> list[Any]:
    """Return the outcomes of ``wire``, and check that they are the same without the cache."""
    expected = outcomes(SLOW, wire, limits)
    for _ in range(3):  # the second round fills the cache
        assert outcomes(FAST, wire, limits) == expected
    return expected


check_request, check_response = partial(check, request_outcomes), partial(check, response_outcomes)


@given(infer_requests(), texts(), st.booleans(), st.data())
def test_generated_and_corrupted_requests(
    request: InferRequest, request_id: str, is_compressed: bool, data: st.DataObject
) -> None:
    headers = {"accept-encoding": "gzip"} if is_compressed else {}
    try:
        wire = SLOW.build_request(request, TRITON)
        others = [SLOW.build_request(replace(request, id=id_), TRITON) for id_ in (request_id, "")]
    except GatewayError:  # parameters that JSON cannot express
        return
    for message in (wire, *others):
        message.path, message.headers = PATH, {**message.headers, **headers}
        for limits in (LIMITS, NARROW):
            check_request(message, limits)
        damaged = data.draw(corrupted_bytes(bytes(join_parts(message.body))))
        check_request(replace(message, body=(damaged,)))
        check_request(message)


@given(infer_responses(), texts(), st.data())
def test_generated_and_corrupted_responses(
    response: InferResponse, response_id: str, data: st.DataObject
) -> None:
    parsed = ParsedRequest(InferRequest("m"), ResponseFormat({}, True, ""))
    try:
        messages = [
            SLOW.build_response(message, parsed)
            for message in (response, replace(response, id=response_id), replace(response, id=""))
        ]
    except GatewayError:
        return
    for wire in messages:
        wire.headers = {name.lower(): value for name, value in wire.headers.items()}
        for limits in (LIMITS, NARROW):
            check_response(wire, limits)
        damaged = data.draw(corrupted_bytes(bytes(join_parts(wire.body))))
        check_response(replace(wire, body=(damaged,)))
        check_response(wire)


# ---- cached heads

INPUTS = (
    '"inputs":[{"name":"X","datatype":"INT32","shape":[1],"parameters":{"binary_data_size":4}},'
    '{"name":"S","datatype":"BYTES","shape":[1],"parameters":{"binary_data_size":6}}]'
)
DATA = b"\1\0\0\0" + b"\2\0\0\0ab"
REGION = '"shared_memory_region":"r","shared_memory_byte_size":4'
OUTPUTS = INPUTS.replace("inputs", "outputs")


def head(request_id: str = '"id":"1",', rest: str = INPUTS) -> bytes:
    return f"{{{request_id}{rest}}}".encode()


def test_a_cached_request_is_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = V2RestCodec()
    for _ in range(2):
        codec.parse_request(post(head(), DATA), LIMITS)
    monkeypatch.setattr(infer_request, "_read_fields", None)
    wire = post(head('"id":"another",'), b"\7\0\0\0\2\0\0\0cd", accept_encoding="gzip")
    parsed = codec.parse_request(wire, LIMITS)
    assert (parsed.operation.model, parsed.operation.id) == ("m", "another")
    first, second = parsed.operation.inputs
    assert (bytes(first.data), bytes(second.data)) == (b"\7\0\0\0", b"\2\0\0\0cd")
    assert first.data.obj is wire.body[0]  # not copied


def test_a_cached_response_is_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = V2RestCodec()
    names = '"model_name":"m","model_version":"3","id":"%s",'
    operation = InferRequest("m", outputs=(RequestedOutput("X"),))
    for _ in range(2):
        codec.parse_response(ok(head(names % 1, OUTPUTS), DATA), operation, LIMITS)
    monkeypatch.setattr(infer_response, "_read_message", None)
    response = codec.parse_response(ok(head(names % "z-2", OUTPUTS), DATA), operation, LIMITS)
    assert (response.model, response.version, response.id) == ("m", "3", "z-2")
    assert bytes(response.outputs[1].data) == b"\2\0\0\0ab"
    unknown = InferRequest("m", outputs=(RequestedOutput("Z"),))
    with pytest.raises(GatewayError, match="has no output 'Z'"):
        codec.parse_response(ok(head(names % 1, OUTPUTS), DATA), unknown, LIMITS)


@pytest.mark.parametrize(
    "data",
    [
        DATA[:-1],
        DATA + b"\0",
        b"",
        b"\1\0\0\0" + b"\3\0\0\0ab",
        b"\1\0\0\0" + b"\1\0\0\0ab",
        b"\1\0\0\0" + b"\xff\xff\xff\xffab",
    ],
)
def test_data_that_does_not_match_a_cached_head_is_rejected(data: bytes) -> None:
    check_request(post(head(), DATA))
    check_response(ok(head('"model_name":"m",', OUTPUTS), DATA))
    for outcomes in (
        check_request(post(head(), data)),
        check_response(ok(head('"model_name":"m",', OUTPUTS), data))[:2],
    ):
        assert all(type(error) is tuple for error in outcomes), outcomes


@pytest.mark.parametrize(
    "id_member",
    [
        '"id":"a\\"b",',
        '"id":"\\u0041",',
        '"id":"é",',
        '"id":null,',
        '"id":7,',
        '"id":"a","id":"b",',
        '"id":"a","i\\u0064":"b",',
        '"\\u0069d":"x",',
        '"id" : "spaced" ,',
        '"id":"unterminated,',
        '"id":"\x01",',
        '"id":"%s",' % ("i" * MAX_CACHED_HEAD),
        '"parameters":{"id":"inner"},',
        '"parameters":{"a":{"id":"deep"}},"id":"1",',
    ],
)
def test_ids_of_any_form(id_member: str) -> None:
    check_request(post(head('"id":"1",'), DATA))
    check_request(post(head(id_member), DATA))
    check_request(post(head('"id":"2",'), DATA))
    names = '"model_name":"m",'
    check_response(ok(head(names + id_member, OUTPUTS), DATA))
    check_response(ok(head(id_member, OUTPUTS), DATA))


def test_an_id_is_found_only_in_the_outer_object() -> None:
    assert split_json(b'{"id":"x","inputs":[]}') == (b'{"id":"","inputs":[]}', "x")
    assert split_json(b'{"model_name":"id","id":"x"}') == (b'{"model_name":"id","id":""}', "x")
    for text in (b'{"parameters":{"id":"x"}}', b'[{"id":"x"}]', b'{"id":"x', b'"id":"x"', b""):
        assert split_json(text) == (text, None)


@pytest.mark.parametrize(
    "length", ["0", "00", "-1", "1e2", "9" * 18, "9" * 30, " 5", "\u0661", "+5", ""]
)
def test_hostile_length_headers(length: str) -> None:
    wire = post(head(), DATA, length or " ")
    expected = outcome(SLOW.validate, wire, LIMITS)
    for _ in range(3):
        assert outcome(FAST.validate, wire, LIMITS) == expected


@pytest.mark.parametrize(
    "rest",
    [
        INPUTS.replace('"parameters":{"binary_data_size":4}', '"data":[1]'),
        INPUTS.replace('"binary_data_size":4', REGION),
        INPUTS + ',"outputs":[{"name":"Y","parameters":{"classification":3}}]',
        INPUTS + ',"outputs":[{"name":"Y","parameters":{"binary_data":true}},{"name":"Z"}]',
        INPUTS + ',"parameters":{"binary_data_output":true,"sequence_id":7}',
        INPUTS + ',"parameters":{"stream":true}',
        INPUTS + ',"parameters":null',
        INPUTS + ',"outputs":[{"name":"Y"},{"name":"Y"}]',
        INPUTS.replace("BYTES", "INT16"),
        INPUTS.replace('"S"', '"X"'),
    ],
)
def test_unusual_heads(rest: str) -> None:
    messages = [post(head(f'"id":"{number}",', rest), DATA) for number in (1, 2)]
    for wire in messages:
        check_request(wire)
    compressed = replace(messages[0], headers={**messages[0].headers, "accept-encoding": "gzip"})
    check_request(compressed)


def test_a_response_without_a_model_name_has_the_requested_name() -> None:
    outcomes = check_response(ok(head('"id":"1",', OUTPUTS), DATA))
    assert '"other"' not in outcomes[0]


# ---- bounds


def binary_inputs(count: int, extra: str = "") -> str:
    tensors = [
        f'{{"name":"{index:x}","datatype":"INT8","shape":[0],'
        f'"parameters":{{"binary_data_size":0}}}}'
        for index in range(count)
    ]
    return f'"inputs":[{",".join(tensors)}]{extra}'


def parameters(value: str, count: int) -> str:
    members = ",".join([f'"{index:x}":{value}' for index in range(count)])
    return binary_inputs(1, f',"parameters":{{{members}}}')


def array(element: str, count: int) -> str:
    return binary_inputs(1, f',"parameters":{{"a":[{",".join([element] * count)}]}}')


HEADS = {
    "short": binary_inputs(1),
    "tensors": binary_inputs(22),
    "numbers": parameters("999", 180),
    "empty objects": parameters("{}", 180),
    "objects": parameters('{"":{"":0}}', 110),
    "arrays": array("[]", 600),
    "array of objects": array('{"":0}', 240),
    "nested": parameters('{"":' * 60 + "0" + "}" * 60, 4),
    "outputs": binary_inputs(
        1, ',"outputs":[' + ",".join([f'{{"name":"{n:x}"}}' for n in range(110)]) + "]"
    ),
}


@pytest.mark.no_cover
@pytest.mark.parametrize("rest", HEADS.values(), ids=HEADS.keys())
def test_a_flood_of_heads_stays_within_the_limit(rest: str) -> None:
    codec = V2RestCodec()
    size = len(head('"id":"",', rest)) + 30
    assert size <= MAX_CACHED_HEAD, "the head is too long for the cache"
    count = 2 * math.ceil(MAX_WEIGHT / (1024 + BYTE_WEIGHT * size))
    before = package_size("codecs", codec)
    for number in range(count):
        text = head(f'"id":"1","parameters{number}":null,', rest)
        for _ in range(3):
            codec.parse_request(post(text, b""), LIMITS)
    assert codec._request_heads._heads.entries._older, "no generation of the cache was filled"
    assert package_size("codecs", codec) - before < MAX_WEIGHT


def test_a_head_seen_once_or_too_long_is_not_cached() -> None:
    codec = V2RestCodec()
    heads = codec._request_heads._heads
    for number in range(50):
        codec.parse_request(post(head(f'"x{number}":1,'), DATA), LIMITS)
    long = head(f'"x":"{"y" * MAX_CACHED_HEAD}",')
    for _ in range(3):
        codec.parse_request(post(long, DATA), LIMITS)
    assert not heads.entries


def test_a_pickled_codec_has_an_empty_cache() -> None:
    codec = V2RestCodec("literal", 7)
    for _ in range(2):
        codec.parse_request(post(head(), DATA), LIMITS)
    assert codec._request_heads._heads.entries
    copy = pickle.loads(pickle.dumps(codec))
    assert not copy._request_heads._heads.entries
    assert (copy._spelling, copy._compress_min) == (codec._spelling, 7)


def test_an_entry_is_not_used_under_other_limits() -> None:
    check_request(post(head(), DATA))
    outcomes = check_request(post(head(), DATA), event_loop_limits(Limits(tensors=1)))
    assert all("limit" in error[1] for error in outcomes)
