"""V2 REST on both sides: names change, tensors do not."""

import gzip
import json

import pytest
from v2_rest_wires import CODEC, body, ok, post

from infergate.codecs.profiles import KSERVE, MLSERVER, TRITON
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.wire import HttpRequest, HttpResponse

ASKED = post("{}")
OUTPUTS = '"outputs":[{"name":"Y","datatype":"INT8","shape":[1],"data":[ 1 ]}]'
HEADER = "inference-header-content-length"


def relabel(wire: HttpResponse, model: str = "new", version: str = "2") -> HttpResponse:
    return CODEC.relabel(wire, ASKED, model, version, DEFAULT_LIMITS)


def test_readdress_keeps_the_message_and_drops_the_connection() -> None:
    headers = {
        "content-type": "application/json",
        HEADER: "2",
        "accept-encoding": "gzip",
        "authorization": "secret",
        "content-length": "2",
    }
    wire = HttpRequest("POST", "/v2/models/a/infer", "q=1", headers, [b"{}"])
    sent = CODEC.readdress(wire, "b/c", "3", TRITON)
    assert sent is not None
    assert (sent.method, sent.path, sent.query) == ("POST", "/v2/models/b%2Fc/versions/3/infer", "")
    assert sent.headers == {"content-type": "application/octet-stream", HEADER: "2"}
    assert sent.body is wire.body
    versionless = CODEC.readdress(wire, "b", "3", KSERVE)
    assert versionless is not None
    assert versionless.path == "/v2/models/b/infer"


def test_binary_requests_are_not_forwarded_to_json_servers() -> None:
    wire = HttpRequest("POST", "/v2/models/a/infer", "", {HEADER: "2"}, [b"{}"])
    assert CODEC.readdress(wire, "a", "", MLSERVER) is None
    assert CODEC.readdress(post("{}"), "a", "", MLSERVER) is not None


@pytest.mark.parametrize("word", ['"FP16"', '"BF16"', '"NaN"', '"-Infinity"'])
def test_json_that_servers_take_as_binary_only_is_translated(word: str) -> None:
    wire = post(f'{{"datatype": {word}}}')
    assert CODEC.readdress(wire, "a", "", TRITON) is None
    assert CODEC.readdress(wire, "a", "", MLSERVER) is not None  # which takes no binary either


@pytest.mark.parametrize("header", [{}, {HEADER: "77"}])
def test_the_form_triton_does_not_heed_is_translated(header: dict[str, str]) -> None:
    text = '{"parameters":{"binary_data_output":true},"outputs":[{"name":"Y"}],"inputs":[]}'
    assert len(text) == 77 + 2
    wire = HttpRequest("POST", "/v2/models/a/infer", "", header, [text.encode()])
    assert CODEC.readdress(wire, "a", "", TRITON) is None
    without = HttpRequest(
        "POST", "/v2/models/a/infer", "", header, [text.replace('"outputs"', '"others"').encode()]
    )
    assert CODEC.readdress(without, "a", "", TRITON) is not None


def test_an_unchecked_request_keeps_its_encoding() -> None:
    sent = CODEC.readdress(post(b"...", content_encoding="gzip"), "a", "", TRITON)
    assert sent is not None
    assert sent.headers == {"content-type": "application/json", "content-encoding": "gzip"}


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
        # names left out
        ("{OUT}", '{"model_name":"new","model_version":"2",OUT}'),
        ('{"model_name":"m",OUT}', '{"model_version":"2","model_name":"new",OUT}'),
        # names already right
        ('{"model_name":"new","model_version":"2",OUT}',) * 2,
    ],
)
def test_names_are_replaced_in_place(text: str, expected: str) -> None:
    out = relabel(ok(text.replace("OUT", OUTPUTS), content_type="application/json", server="x"))
    assert body(out).decode() == expected.replace("OUT", OUTPUTS)
    assert out.headers == {"content-type": "application/json"}


def test_nothing_to_rename() -> None:
    text = f'{{"model_name":"m",{OUTPUTS}}}'
    wire = ok(text)
    assert body(relabel(wire, "", "")) == text.encode()
    assert b'"model_name":"new"' in body(relabel(wire, "new", ""))


def test_unusual_order_is_parsed() -> None:
    text = f'{{{OUTPUTS},"note":NaN,"model_name":"m"}}'
    assert relabel(ok("{" + '"other":1,' + text[1:]), "", "").body[0] != b""
    out = relabel(ok('{"other":"é",' + text[1:]))
    told = json.loads(body(out))
    assert (told["model_name"], told["model_version"], told["other"]) == ("new", "2", "é")
    assert "NaN" in body(out).decode()
    twice = f'{{"model_name":"a","model_name":"b",{OUTPUTS}}}'
    with pytest.raises(GatewayError, match="twice"):
        relabel(ok(twice))


@pytest.mark.parametrize("lead", ["", '"other":1,'], ids=["spliced", "parsed"])
def test_binary_answers_keep_their_blobs(lead: str) -> None:
    head = (
        f'{{{lead}"model_name":"m","model_version":"1","outputs":[{{"name":"Y","datatype":"INT8",'
        '"shape":[2],"parameters":{"binary_data_size":2}}]}'
    ).encode()
    headers = {HEADER: str(len(head)), "content-type": "application/octet-stream", "date": "x"}
    out = relabel(HttpResponse(200, headers, [head + b"\xff\x00"]), "a longer name")
    length = int(out.headers[HEADER])
    told = json.loads(body(out)[:length])
    assert (told["model_name"], told["model_version"]) == ("a longer name", "2")
    assert body(out)[length:] == b"\xff\x00"
    assert set(out.headers) == {HEADER, "content-type"}


def test_answers_are_decoded_and_encoded_for_each_side() -> None:
    text = f'{{"model_name":"m","pad":"{"x" * 500}",{OUTPUTS}}}'.encode()
    wire = HttpResponse(200, {"content-encoding": "gzip"}, [gzip.compress(text)])
    plain = relabel(wire, "", "")
    assert (body(plain), plain.headers) == (text, {"content-type": "application/json"})
    asked = post("{}", accept_encoding="gzip")
    packed = CODEC.relabel(wire, asked, "", "", DEFAULT_LIMITS)
    assert gzip.decompress(body(packed)) == text
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["vary"] == "accept-encoding"


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
def test_bad_answers_are_not_passed_on(wire: HttpResponse, kind: Kind) -> None:
    with pytest.raises(GatewayError) as caught:
        relabel(wire)
    assert caught.value.kind is kind
