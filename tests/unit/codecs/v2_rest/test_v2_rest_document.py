"""The JSON documents of V2 REST: nesting, repeated names, parameters, field types and limits."""

import json
from contextlib import suppress

import pytest
from v2_rest_kit import CODEC, infer, ok, parse, post, read_response, refused

from gateway_errors import raises_kind
from infergate.codecs.json_tensors.json_document import (
    MAX_CONTAINERS,
    MAX_CONTAINERS_ON_LOOP,
    MAX_SLOW_BYTES_ON_LOOP,
    check_nesting,
)
from infergate.codecs.v2_rest.tensors import MAX_TENSORS_ON_LOOP
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS, Limits, NeedsOffloadError, event_loop_limits
from infergate.core.messages import (
    InferResponse,
    ModelConfigRequest,
    ModelIndexRequest,
    ModelMetadataRequest,
    ModelStatisticsRequest,
    Operation,
)
from traced_memory import peak_bytes

TENSOR = '{"name":"X","datatype":"INT8","shape":[1],"data":[1]}'


def nested(levels: int) -> str:
    return "[" * levels + "1" + "]" * levels


@pytest.mark.parametrize("padding", ["", "é" * 30_000, '\\"[[' * 9000], ids=["", "long", "escapes"])
def test_the_nesting_limit_is_a_hundred(padding: str) -> None:
    # the object, inputs and the tensor add three levels
    def wire(levels: int) -> str:
        text = infer("INT8", [1], nested(levels)).body[0].decode()
        return f'{text[:-1]},"pad":"{padding}"}}'

    assert parse(post(wire(97))).inputs[0].data == b"\x01"
    refused(post(wire(98)), "100 levels")


def test_brackets_side_by_side_or_in_strings_are_not_nested() -> None:
    data = "[" + ",".join(["[1]"] * 500) + "]"
    assert len(parse(infer("INT8", [500], data)).inputs[0].data) == 500
    text = '["' + "[{" * 200 + '"]'
    assert parse(infer("BYTES", [1], text)).inputs[0].numpy().tolist() == [b"[{" * 200]


@pytest.mark.parametrize(
    "text",
    ["[" * (1 << 18), '""' * (2 << 20) + "[" * 200, "[]" * 100_000 + "[" * 101],
    ids=["brackets", "quotes", "deep in a later block"],
)
def test_the_depth_check_needs_bounded_memory(text: str) -> None:
    body = text.encode()

    def check() -> None:
        with pytest.raises(GatewayError, match="100 levels"):
            check_nesting(body)

    assert peak_bytes(check) < 3 * len(body) + (8 << 20)


@pytest.mark.parametrize("end", [b"", b"\\", b'"', b"\n"], ids=["none", "escape", "quote", "LF"])
def test_an_unterminated_string_is_scanned_once(end: bytes) -> None:
    # a quadratic scan of half a million escaped quotes would take days
    refused(post(b"[" * 101 + b'"' + b'\\"' * 500_000 + end), "100 levels")
    refused(post(b'{"inputs":"' + b'\\"' * 500_000 + b"[" * 101 + end), "invalid JSON")
    refused(post(b"[]" * 101 + b'"' + b'\\"' * 500_000 + end), "invalid JSON")


def test_adjacent_strings_are_strings() -> None:
    deep = "[" * 200
    check_nesting(f'["{deep}""{deep}","","{deep}"]'.encode())
    with pytest.raises(GatewayError, match="100 levels"):
        check_nesting(f'["","",""{deep}'.encode())


def test_brackets_closed_too_often() -> None:
    refused(post("]" * 300 + "[" * 300), "character 0")


@pytest.mark.parametrize("item", ["[]", "{}", '["]"]'])
def test_the_maximum_number_of_arrays_and_objects(item: str) -> None:
    text = f"[{','.join([item] * (MAX_CONTAINERS - 1))}]"
    check_nesting(text.encode())
    with raises_kind(Kind.TOO_LARGE, match="262144 arrays and objects"):
        check_nesting(f"[{text}]".encode())


def test_the_event_loop_leaves_many_arrays_to_a_helper() -> None:
    limits = event_loop_limits(DEFAULT_LIMITS)
    check_nesting(b"[" + b"[]," * (MAX_CONTAINERS_ON_LOOP - 2) + b"[]]", limits)
    with pytest.raises(NeedsOffloadError):
        check_nesting(b"[" + b"[]," * MAX_CONTAINERS_ON_LOOP + b"[]]", limits)


@pytest.mark.parametrize(
    ("body", "is_offloaded"),
    [
        (f'{{"inputs":[{",".join([TENSOR] * MAX_TENSORS_ON_LOOP)}]}}', False),
        (f'{{"inputs":[{",".join([TENSOR] * (MAX_TENSORS_ON_LOOP + 1))}]}}', True),
        ('{"inputs":[],"a":NaN}', False),
        ('{"inputs":[],"a":NaN' + " " * MAX_SLOW_BYTES_ON_LOOP + "}", True),
    ],
    ids=["tensors", "many tensors", "NaN", "NaN in a long text"],
)
def test_the_event_loop_leaves_slow_requests_to_a_helper(body: str, is_offloaded: bool) -> None:
    limits = event_loop_limits(DEFAULT_LIMITS)
    for read in (CODEC.parse_request, CODEC.validate):
        with pytest.raises(NeedsOffloadError) if is_offloaded else suppress(GatewayError):
            read(post(body), limits)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('{"inputs":[],"parameters":{"p":[' + '"ab",' * 1_000_000 + "0]}}", "65536 values"),
        ('{"inputs":[],"parameters":{"p":[' + "1.5," * 1_000_000 + "0]}}", "65536 values"),
        ("{" + '"a":0,' * 1_000_000 + '"inputs":[]}', "65536 members"),
        ('{"inputs":[{' + '"a":0,' * 1_000_000 + '"name":"X"}]}', "65536 members"),
    ],
    ids=["texts", "numbers", "members", "members of a tensor"],
)
def test_values_are_counted_before_they_are_created(body: str, expected: str) -> None:
    """Each value would become an object of 24 to 100 bytes."""
    wire = post(body)
    assert peak_bytes(lambda: refused(wire, expected, kind=Kind.TOO_LARGE)) < 6 * len(body)


def test_commas_in_strings_are_not_counted() -> None:
    for text in ("," * 100_000, '\\\\",\\\\\\\\,' * 50_000):
        parsed = parse(post('{"inputs":[],"parameters":{"p":' + json.dumps(text) + ',"q":[1,2]}}'))
        assert parsed.parameters == {"p": text, "q": [1, 2]}
    many = json.dumps(["\\", '"', ',"'] * 30_000)
    refused(post('{"inputs":[],"parameters":{"p":' + many + "}}"), kind=Kind.TOO_LARGE)


@pytest.mark.parametrize(
    "body",
    ['{"a":"' + "x" * (8 << 20) + '"}', '{"a":[' + "0," * 600_000 + "0]}"],
    ids=["bytes", "values"],
)
@pytest.mark.parametrize(
    "operation",
    [
        ModelMetadataRequest("m"),
        ModelConfigRequest("m"),
        ModelStatisticsRequest("m"),
        ModelIndexRequest(),
    ],
    ids=lambda operation: type(operation).__name__,
)
def test_long_server_responses_are_rejected(operation: Operation, body: str) -> None:
    with raises_kind(Kind.BACKEND_GARBAGE, match="it exceeds the limit of 8388608 bytes or 524288"):
        CODEC.parse_response(ok(body), operation, DEFAULT_LIMITS)


@pytest.mark.parametrize("other", ["1", "NaN"])
@pytest.mark.parametrize(
    ("text", "owner"),
    [
        ('{"inputs":[],"x":OTHER,"x":1}', "the body"),
        ('{"x":OTHER,"inputs":[{"name":"X","name":"Y"}]}', "inputs[0]"),
        ('{"x":OTHER,"inputs":[],"outputs":[{"name":"X","name":"Y"}]}', "outputs[0]"),
        ('{"x":OTHER,"inputs":[],"parameters":{"a":1,"a":2}}', "parameters"),
        ('{"x":OTHER,"inputs":[],"parameters":{"o":{"a":1,"a":2}}}', "parameters.o"),
        ('{"x":OTHER,"inputs":[],"parameters":{"o":[{"a":1,"a":2}]}}', "parameters.o"),
    ],
)
def test_a_duplicate_name_is_refused(text: str, owner: str, other: str) -> None:
    refused(post(text.replace("OTHER", other)), owner, "twice")


@pytest.mark.parametrize("other", ["1", "NaN"])
def test_parameters_of_every_kind(other: str) -> None:
    parsed = parse(
        post(
            f'{{"x":{other},"inputs":[],"parameters":'
            '{"n":null,"t":true,"i":-9223372036854775808,"u":18446744073709551615,"f":1.5e300,'
            '"s":"\\u00e9\\u0000","l":[1,[2.5,null]],"o":{"k":{}},"":0}}'
        )
    )
    assert parsed.parameters == {
        "n": None,
        "t": True,
        "i": -(2**63),
        "u": 2**64 - 1,
        "f": 1.5e300,
        "s": "é\0",
        "l": [1, [2.5, None]],
        "o": {"k": {}},
        "": 0,
    }
    assert type(parsed.parameters["t"]) is bool


def test_integers_of_any_size_in_parameters() -> None:
    parsed = parse(post(f'{{"inputs":[],"parameters":{{"big":{2**70}}}}}'))
    assert parsed.parameters == {"big": 2**70}
    refused(post('{"inputs":[],"parameters":{"big":' + "9" * 5000 + "}}"), "invalid JSON")
    refused(post('{"inputs":[],"parameters":{"big":1e999}}'), "parameters.big")


@pytest.mark.parametrize("value", ["1", "1.5", "true", '"a"', "[]", "{}", "NaN"])
def test_fields_of_the_wrong_type(value: str) -> None:
    if value != "[]":
        refused(post(f'{{"inputs":{value}}}'), "inputs must be an array")
        refused(post(f'{{"inputs":[],"outputs":{value}}}'), "outputs must be an array")
    if value != "{}":
        refused(post(f'{{"inputs":[{value}]}}'), "inputs[0] must be an object")
        refused(post(f'{{"inputs":[],"outputs":[{value}]}}'), "outputs[0] must be an object")
        refused(post(f'{{"inputs":[],"parameters":{value}}}'), "parameters must be an object")
    if value != '"a"':
        refused(post(f'{{"inputs":[],"id":{value}}}'), "id must be a string")
        refused(post(f'{{"inputs":[],"outputs":[{{"name":{value}}}]}}'), "outputs[0].name")
        tensor = TENSOR.replace('"INT8"', value)
        refused(post(f'{{"inputs":[{tensor}]}}'), "inputs[0].datatype")


@pytest.mark.parametrize("field", ["name", "datatype", "shape"])
def test_missing_fields(field: str) -> None:
    tensor = TENSOR.replace(f'"{field}"', '"other"')
    refused(post(f'{{"inputs":[{tensor}]}}'), f"inputs[0].{field} is missing")
    refused(post(f'{{"inputs":[{TENSOR},{tensor}]}}'), f"inputs[1].{field} is missing")


def test_the_limits_apply() -> None:
    many = '{"inputs":[' + ",".join(TENSOR.replace("X", f"X{i}") for i in range(3)) + "]}"
    outputs = '{"inputs":[],"outputs":[{"name":"a"},{"name":"b"},{"name":"c"}]}'
    for text, limits, kind, expected in (
        (many, Limits(tensors=2), Kind.BAD_REQUEST, "^inputs has 3 items; the limit is 2$"),
        (many, Limits(json=100), Kind.TOO_LARGE, "JSON exceed the limit of 100$"),
        (many, Limits(body=100), Kind.TOO_LARGE, "over the limit of 100 bytes$"),
        (outputs, Limits(tensors=2), Kind.BAD_REQUEST, "^outputs has 3"),
    ):
        with raises_kind(kind, match=expected):
            CODEC.parse_request(post(text), limits)


def test_a_byte_order_mark_is_skipped() -> None:
    assert parse(post(b"\xef\xbb\xbf" + b'{"inputs":[]}')).inputs == ()
    assert parse(post(b"\xef\xbb\xbf" + b'{"inputs":[],"x":NaN}')).inputs == ()


def test_invalid_text_in_responses_is_refused() -> None:
    for name, value in (
        ("model_name", b'"\xff"'),
        ("id", b'"\\ud800"'),
        ("parameters", b'{"a":"\xff"}'),
    ):
        with raises_kind(Kind.BACKEND_GARBAGE, match=f"{name} is not valid Unicode"):
            read_response(ok(b'{"%b":%b,"outputs":[]}' % (name.encode(), value)))


def test_unused_text_in_responses_is_ignored() -> None:
    parsed = read_response(ok(b'{"note":"\xff","outputs":[]}'))
    assert parsed == InferResponse("m")
