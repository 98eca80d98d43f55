"""V2 REST on both sides: names are rewritten, and tensors are forwarded unchanged."""

import gzip
import json
import pickle

import pytest
from v2_rest_kit import CODEC, body, ok, post

from gateway_errors import raises_kind
from infergate.codecs.base import Profile
from infergate.codecs.profiles import GENERIC, INFERGATE, KSERVE, MLSERVER, TRITON
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.wire import HttpRequest, HttpResponse

REQUEST = post("{}")
OUTPUTS = '"outputs":[{"name":"Y","datatype":"INT8","shape":[1],"data":[ 1 ]}]'
HEADER = "inference-header-content-length"


def rewrite(
    wire: HttpResponse, model: str = "new", version: str = "2", request: HttpRequest = REQUEST
) -> HttpResponse:
    return CODEC.rewrite_response(wire, request, model, version, DEFAULT_LIMITS)


def request_for(request_id: str, members: str = "") -> HttpRequest:
    return CODEC.validate(post(f'{{"id":"{request_id}","inputs":[]{members}}}'), DEFAULT_LIMITS)


def test_a_validated_request_is_pickled_without_the_codec_state() -> None:
    validated = request_for("7", ',"parameters":{"sequence_id":3}')
    validated.codec_state = lambda: None  # cannot be pickled
    copied = pickle.loads(pickle.dumps(validated))
    assert copied == validated
    assert type(copied) is type(validated)
    assert copied.codec_state is None
    response = ok('{"model_name":"m","outputs":[]}')
    assert rewrite(response, request=copied) == rewrite(response, request=validated)


def test_a_rewritten_request_keeps_the_message_and_drops_connection_headers() -> None:
    headers = {
        "content-type": "application/json",
        HEADER: "2",
        "accept-encoding": "gzip",
        "authorization": "secret",
        "content-length": "2",
    }
    wire = HttpRequest("POST", "/v2/models/a/infer", "q=1", headers, [b"{}"])
    rewritten = CODEC.rewrite_request(wire, "b/c", "3", TRITON)
    assert (rewritten.method, rewritten.path, rewritten.query) == (
        "POST",
        "/v2/models/b%2Fc/versions/3/infer",
        "",
    )
    assert rewritten.headers == {"content-type": "application/octet-stream", HEADER: "2"}
    assert rewritten.body is wire.body
    versionless = CODEC.rewrite_request(wire, "b", "3", KSERVE)
    assert versionless.path == "/v2/models/b/infer"


def test_binary_requests_are_not_forwarded_to_json_servers() -> None:
    wire = HttpRequest("POST", "/v2/models/a/infer", "", {HEADER: "2"}, [b"{}"])
    assert CODEC.rewrite_request(wire, "a", "", MLSERVER) is None
    assert CODEC.rewrite_request(post("{}"), "a", "", MLSERVER) is not None


def is_forwarded(
    text: str, profile: Profile, head: str = "", data: bytes = b"", validate: bool = True
) -> bool:
    headers = {"inference_header_content_length": head} if head else {}
    wire = post(text.encode() + data, **headers)
    validated = CODEC.validate(wire, DEFAULT_LIMITS) if validate else wire
    return CODEC.rewrite_request(validated, "a", "", profile) is not None


def with_data(datatype: str, data: str) -> str:
    return f'{{"inputs":[{{"name":"X","datatype":"{datatype}","shape":[1],"data":[{data}]}}]}}'


def test_classes_are_requested_only_from_servers_that_support_them() -> None:
    text = '{"inputs":[],"outputs":[{"name":"Y","parameters":{"classification":2}}]}'
    plain = (
        '{"inputs":[],"outputs":[{"name":"classification","parameters":{"x":"classification"}}]}'
    )
    assert is_forwarded(text, TRITON)
    assert is_forwarded(text, INFERGATE)
    for profile in (GENERIC, MLSERVER, KSERVE):
        assert not is_forwarded(text, profile)
        assert is_forwarded(plain, profile)
    assert is_forwarded(text, MLSERVER, validate=False)  # the request is not parsed


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_json_is_translated_if_the_server_requires_binary(datatype: str) -> None:
    text = with_data(datatype, "1")
    assert not is_forwarded(text, TRITON)
    assert not is_forwarded(text, TRITON, str(len(text)))
    assert is_forwarded(text, MLSERVER)  # MLServer does not accept binary data
    assert is_forwarded(text, TRITON, validate=False)


def test_requests_with_shared_memory_are_not_passed_through() -> None:
    """The gateway checks regions itself, also for servers that accept only JSON."""
    text = with_data("INT8", "").replace(
        '"data":[]', '"parameters":{"shared_memory_region":"r","shared_memory_byte_size":1}'
    )
    for profile in (TRITON, GENERIC, KSERVE, MLSERVER):
        assert not is_forwarded(text, profile)


DATA_WITHOUT_ARRAY = with_data("BYTES", "").replace("[]", '"YQ=="')
MARKED_AS_BASE64 = with_data("BYTES", '"YQ=="').replace(
    '"data"', '"parameters":{"content_type":"base64"},"data"'
)


@pytest.mark.parametrize(
    ("text", "forwarded_to"),
    [
        (with_data("FP16", '"NaN"'), []),
        (with_data("FP32", '"NaN"'), []),
        (with_data("FP32", "NaN"), []),
        (with_data("FP64", '"-Infinity"'), []),
        (with_data("FP32", "null"), []),
        (DATA_WITHOUT_ARRAY, []),
        (MARKED_AS_BASE64, [MLSERVER]),
    ],
)
def test_messages_that_servers_interpret_differently_are_translated(
    text: str, forwarded_to: list[Profile]
) -> None:
    for profile in (TRITON, GENERIC, KSERVE, MLSERVER):
        assert is_forwarded(text, profile) is (profile in forwarded_to)
    assert is_forwarded(text, TRITON, validate=False)


def test_text_that_only_looks_nonstandard_is_forwarded() -> None:
    assert is_forwarded(with_data("BYTES", '"NaN"'), TRITON)
    assert is_forwarded(with_data("BYTES", '"FP16"'), TRITON)
    assert is_forwarded(with_data("BYTES", '"binary_data_output and outputs"'), TRITON)
    binary = with_data("FP16", "").replace('"data":[]', '"parameters":{"binary_data_size":2}')
    assert is_forwarded(binary, TRITON, str(len(binary)), b"\0\x7c")


def test_a_parameter_that_triton_ignores_is_translated() -> None:
    text = '{"parameters":{"binary_data_output":true},"outputs":[{"name":"Y"}],"inputs":[]}'
    assert not is_forwarded(text, TRITON)
    assert not is_forwarded(text, TRITON, str(len(text)))
    assert is_forwarded(text, MLSERVER)
    assert is_forwarded(text.replace('"outputs"', '"others"'), TRITON)
    assert is_forwarded(text.replace("binary_data_output", "other"), TRITON)


NULLS = (
    '{"id":null,"inputs":[]}',
    '{"parameters":null,"inputs":[]}',
    '{"outputs":null,"inputs":[]}',
    '{"inputs":[],"outputs":[{"name":"Y","parameters":null}]}',
    with_data("INT8", "1").replace('"data"', '"parameters":null,"data"'),
)


@pytest.mark.parametrize("other", ["1", "NaN"])
@pytest.mark.parametrize("text", NULLS)
def test_null_for_a_member_is_translated(text: str, other: str) -> None:
    text = text.replace("{", f'{{"x":{other},', 1)
    assert not is_forwarded(text, TRITON)
    assert not is_forwarded(text, MLSERVER)
    assert is_forwarded(text, TRITON, validate=False)


def test_null_elsewhere_is_passed_through() -> None:
    assert is_forwarded('{"unknown":null,"parameters":{"a":null},"inputs":[]}', TRITON)
    assert is_forwarded('{"id":"null","inputs":[]}', TRITON)


def test_a_request_that_is_not_validated_keeps_its_encoding() -> None:
    rewritten = CODEC.rewrite_request(post(b"...", content_encoding="gzip"), "a", "", TRITON)
    assert rewritten.headers == {"content-type": "application/json", "content-encoding": "gzip"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Triton
        (
            '{"id":"i","model_name":"m","model_version":"1",OUT}',
            '{"id":"i","model_name":"new","model_version":"2",OUT}',
        ),
        # MLServer, with white space
        (
            ' { "model_name" : "m\\"\\u00e9" , "model_version":"1","id":"i","parameters":{},OUT}',
            ' { "model_name" : "new" , "model_version":"2","id":"i","parameters":{},OUT}',
        ),
        # KServe
        (
            '{"model_name":"m","model_version":null,"id":"i","parameters":null,OUT}',
            '{"model_name":"new","model_version":"2","id":"i","parameters":null,OUT}',
        ),
        # without names
        ("{OUT}", '{"model_name":"new","model_version":"2",OUT}'),
        ('{"model_name":"m",OUT}', '{"model_version":"2","model_name":"new",OUT}'),
        # names that are already correct
        ('{"model_name":"new","model_version":"2",OUT}',) * 2,
    ],
)
def test_only_names_are_replaced(text: str, expected: str) -> None:
    rewritten = rewrite(
        ok(text.replace("OUT", OUTPUTS), content_type="application/json", server="x")
    )
    assert body(rewritten).decode() == expected.replace("OUT", OUTPUTS)
    assert rewritten.headers == {"content-type": "application/json"}


def test_a_response_with_nothing_to_rename() -> None:
    text = f'{{"model_name":"m",{OUTPUTS}}}'
    wire = ok(text)
    assert body(rewrite(wire, "", "")) == text.encode()
    assert b'"model_name":"new"' in body(rewrite(wire, "new", ""))


@pytest.mark.parametrize(
    "text",
    [
        '{"other":"é","model_name":"m","id":"i",OUT}',
        '{OUT,"note":NaN,"model_name":"m","id":"i"}',
        '{"model_name":"m",OUT,"id":"i"}\r\n ',
        '{"model_name":"m",OUT, "model_version" : null , "id":"i" }',
        '{"model_name":"m","parameters":{},"id":"i",OUT}',
        '{"parameters":{},"id":"i","model_name":"m",OUT}',
    ],
)
def test_names_in_unusual_positions_are_found_by_parsing(text: str) -> None:
    wire = ok(text.replace("OUT", OUTPUTS))
    document = json.loads(body(rewrite(wire, request=request_for("mine"))))
    assert (document["id"], document["model_name"], document["model_version"]) == (
        "mine",
        "new",
        "2",
    )
    assert body(rewrite(wire, request=request_for("mine"))).count(b"model_name") == 1
    assert document["outputs"] == [{"name": "Y", "datatype": "INT8", "shape": [1], "data": [1]}]
    unnamed = json.loads(body(rewrite(wire, "", "", request_for(""))))
    assert ("id" in unnamed, unnamed["model_name"]) == (False, "m")
    not_validated = json.loads(body(rewrite(wire, "", "")))
    assert (not_validated["id"], not_validated["model_name"]) == ("i", "m")


def test_a_duplicate_name_in_a_response_is_refused() -> None:
    text = f'{{"model_name":"a","model_name":"b",{OUTPUTS}}}'
    with pytest.raises(GatewayError, match="twice"):
        rewrite(ok(text))


def test_a_response_without_a_model_name_gets_the_requested_one() -> None:
    document = json.loads(body(rewrite(ok(f'{{"other":1,{OUTPUTS}}}'), "", "")))
    assert document["model_name"] == "m"


@pytest.mark.parametrize("client_id", ["mine", ""])
@pytest.mark.parametrize("backend_id", ['"uuid-1"', '"mine"', "null", None])
@pytest.mark.parametrize("id_first", [True, False])
def test_the_response_id_is_the_clients_or_absent(
    client_id: str, backend_id: str | None, id_first: bool
) -> None:
    names = ['"model_name":"m"']
    if backend_id is not None:
        names.insert(0 if id_first else 1, f' "id" : {backend_id} ')
    text = f"{{{','.join(names)},{OUTPUTS}}}"
    rewritten = body(rewrite(ok(text), "", "", request_for(client_id)))
    document = json.loads(rewritten, object_pairs_hook=list)
    assert dict(document).get("id", "") == client_id
    assert len(document) == len(dict(document))
    assert OUTPUTS.encode() in rewritten
    if backend_id == '"mine"' == f'"{client_id}"':
        assert rewritten == text.encode()
    # a route without validation keeps the response unchanged
    assert body(rewrite(ok(text), "", "")) == text.encode()


def test_bytes_that_are_not_utf8_are_written_as_in_a_translation() -> None:
    tensor = b'{"name":"Y","datatype":"BYTES","shape":[1],"data":["\xff"]}'
    text = b'{"model_name":"m","outputs":[%b]}' % tensor
    document = json.loads(body(rewrite(ok(text), request=request_for("i"))))
    assert (document["id"], document["model_name"]) == ("i", "new")
    (output,) = document["outputs"]
    assert (output["data"], output["parameters"]) == (["/w=="], {"content_type": "base64"})
    binary = request_for("i", ',"parameters":{"binary_data_output":true}')
    rewritten = rewrite(ok(text), request=binary)
    assert body(rewritten).endswith(b"\x01\0\0\0\xff")
    assert int(rewritten.headers[HEADER]) == len(body(rewritten)) - 5
    # the bytes after the JSON need not be text
    head = text.replace(b'"data":["\xff"]', b'"parameters":{"binary_data_size":5}')
    response = HttpResponse(200, {HEADER: str(len(head))}, [head + b"\x01\0\0\0\xff"])
    assert body(rewrite(response, "", "", request_for(""))) == body(
        HttpResponse(200, {}, response.body)
    )


@pytest.mark.parametrize("prefix", ["", '"other":1,'], ids=["spliced", "parsed"])
def test_binary_responses_keep_their_data(prefix: str) -> None:
    head = (
        f'{{{prefix}"model_name":"m","model_version":"1","outputs":[{{"name":"Y","datatype":"INT8",'
        '"shape":[2],"parameters":{"binary_data_size":2}}]}'
    ).encode()
    headers = {HEADER: str(len(head)), "content-type": "application/octet-stream", "date": "x"}
    rewritten = rewrite(HttpResponse(200, headers, [head + b"\xff\x00"]), "a longer name")
    length = int(rewritten.headers[HEADER])
    document = json.loads(body(rewritten)[:length])
    assert (document["model_name"], document["model_version"]) == ("a longer name", "2")
    assert body(rewritten)[length:] == b"\xff\x00"
    assert set(rewritten.headers) == {HEADER, "content-type"}


def test_responses_are_decoded_and_encoded_for_each_side() -> None:
    text = f'{{"model_name":"m","parameters":{{"pad":"{"x" * 500}"}},{OUTPUTS}}}'.encode()
    wire = HttpResponse(200, {"content-encoding": "gzip"}, [gzip.compress(text)])
    plain = rewrite(wire, "", "")
    assert (body(plain), plain.headers) == (text, {"content-type": "application/json"})
    request = post("{}", accept_encoding="gzip")
    compressed = CODEC.rewrite_response(wire, request, "", "", DEFAULT_LIMITS)
    assert gzip.decompress(body(compressed)) == text
    assert compressed.headers["content-encoding"] == "gzip"
    assert compressed.headers["vary"] == "accept-encoding"


@pytest.mark.parametrize(
    ("wire", "kind"),
    [
        (ok("<html>"), Kind.BACKEND_GARBAGE),
        (ok(""), Kind.BACKEND_GARBAGE),
        (ok("[]"), Kind.BACKEND_GARBAGE),
        (ok('{"model_name":"m"}'), Kind.BACKEND_GARBAGE),
        (ok('{"error":"boom"}'), Kind.BACKEND_ERROR),
        (HttpResponse(200, {HEADER: "9"}, [b"{}"]), Kind.BACKEND_GARBAGE),
        (HttpResponse(200, {HEADER: "x"}, [b"{}"]), Kind.BACKEND_GARBAGE),
        (ok('{"error":"gone"}', 404), Kind.NOT_FOUND),
    ],
)
def test_invalid_responses_are_not_passed_through(wire: HttpResponse, kind: Kind) -> None:
    with raises_kind(kind):
        rewrite(wire)


@pytest.mark.parametrize(
    "parameters", ["{}", '{"a":1,"b":"x}[{"}', '{"outputs":1}', '{"a":{"outputs":[]}}', '{"a":[1]}']
)
def test_rewriting_never_duplicates_a_name(parameters: str) -> None:
    text = f'{{"model_name":"m","parameters":{parameters},"id":"srv",{OUTPUTS}}}'
    document = json.loads(body(rewrite(ok(text))), object_pairs_hook=list)
    names = [name for name, _ in document]
    assert len(set(names)) == len(names)
    assert dict(document)["model_name"] == "new"
