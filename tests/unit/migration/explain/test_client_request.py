from __future__ import annotations

from pathlib import Path

import pytest

from infergate.codecs.protos import SCHEMA
from infergate.core.wire import HttpRequest, RpcRequest, join_parts
from infergate.migration.explain.client_request import (
    ClientRequest,
    RequestError,
    is_rpc_method,
    parse_command,
    parse_headers,
    read_file,
    recorded_request,
)
from recordings import exchange, write_recording

FORM = {"accept": "*/*", "content-type": "application/x-www-form-urlencoded"}
JSON = {"accept": "application/json", "content-type": "application/json"}
PLAIN = {"accept": "*/*"}
URL = "http://h:8000/v2"


def http(command: str, folder: Path = Path()) -> HttpRequest:
    wire = parse_command(command, 1000, folder).wire
    assert isinstance(wire, HttpRequest)
    return wire


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (f"curl {URL}", HttpRequest("GET", "/v2", "", PLAIN)),
        ("curl h:8000", HttpRequest("GET", "/", "", PLAIN)),
        (f"curl '{URL}/a b?x=1&y=%20'", HttpRequest("GET", "/v2/a%20b", "x=1&y=%20", PLAIN)),
        (f"curl {URL}/a%2Fb", HttpRequest("GET", "/v2/a%2Fb", "", PLAIN)),
        (f"/usr/bin/curl -sS -v --url {URL}", HttpRequest("GET", "/v2", "", PLAIN)),
        (f"curl {URL} -d a=1 -d b=2", HttpRequest("POST", "/v2", "", FORM, (b"a=1&b=2",))),
        (f"curl {URL} -da", HttpRequest("POST", "/v2", "", FORM, (b"a",))),
        (f"curl {URL} --data=a", HttpRequest("POST", "/v2", "", FORM, (b"a",))),
        (f"curl {URL} -G -d a=1", HttpRequest("GET", "/v2", "a=1", PLAIN)),
        (f"curl {URL} --data-raw @a", HttpRequest("POST", "/v2", "", FORM, (b"@a",))),
        (f"curl {URL} --data-urlencode 'a=b c'",
         HttpRequest("POST", "/v2", "", FORM, (b"a=b%20c",))),
        (f"curl {URL} --json '{{}}'", HttpRequest("POST", "/v2", "", JSON, (b"{}",))),
        (f"curl -X PUT {URL}", HttpRequest("PUT", "/v2", "", PLAIN)),
        (f"curl -XPUT {URL}", HttpRequest("PUT", "/v2", "", PLAIN)),
        (f"curl -I {URL}", HttpRequest("HEAD", "/v2", "", PLAIN)),
        (f"curl {URL} -H 'A: b' -H 'a:c' -H 'Accept:'",
         HttpRequest("GET", "/v2", "", {"a": "b, c"})),
        (f"curl {URL} -u me:pw",
         HttpRequest("GET", "/v2", "", {**PLAIN, "authorization": "Basic bWU6cHc="})),
        (f"curl {URL} \\\n  -H 'a: b'", HttpRequest("GET", "/v2", "", {**PLAIN, "a": "b"})),
        (f"curl --cacert x -o out -m 3 {URL}", HttpRequest("GET", "/v2", "", PLAIN)),
    ],
)  # fmt: skip
def test_a_curl_command_is_read_as_curl_sends_it(command: str, expected: HttpRequest) -> None:
    assert http(command) == expected


def test_files_in_a_curl_command_are_relative_to_the_folder(tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(b"a\r\nb\n")
    assert http(f"curl {URL} -d @body", tmp_path).body == (b"ab",)
    assert http(f"curl {URL} --data-binary @body", tmp_path).body == (b"a\r\nb\n",)
    assert http(f"curl {URL} -T body", tmp_path).method == "PUT"


@pytest.mark.parametrize(
    ("command", "authority", "is_tls"),
    [
        (f"curl {URL}", "h:8000", False),
        ("curl https://h/v2", "h:443", True),
        ("curl http://[::1]:9/v2", "[::1]:9", False),
    ],
)
def test_the_url_sets_the_authority_and_tls(command: str, authority: str, is_tls: bool) -> None:
    request = parse_command(command, 1000, Path())
    assert (request.authority, request.is_tls) == (authority, is_tls)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("", "starts with curl or grpcurl"),
        ("wget http://h", "starts with curl or grpcurl"),
        ("curl 'http://h", "cannot be parsed"),
        ("curl", "0 URLs"),
        ("curl http://a http://b", "2 URLs"),
        (f"curl -F a=b {URL}", "option '-F'"),
        (f"curl {URL} --header", "option '--header'"),
        (f"curl {URL} -H nothing", "expected 'name: value'"),
        (f"curl {URL} -d @/no/such/file", "/no/such/file cannot be read: No such file"),
        ("curl ftp://h/v2", "expected http:// or https://"),
        ("curl http://h:99999/v2", "Port out of range"),
        ("grpcurl h:1", "expected grpcurl"),
        ("grpcurl h:1 a.B/C", "does not know the gRPC method /a.B/C"),
        ("grpcurl -d 7 h:1 inference.GRPCInferenceService/ModelInfer", "is invalid"),
        ("grpcurl -d '{\"no\": 1}' h:1 inference.GRPCInferenceService/ModelInfer", "is invalid"),
    ],
)
def test_an_unreadable_command_is_rejected_with_the_reason(command: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        parse_command(command, 1000, Path())


def test_a_grpcurl_command_is_read() -> None:
    text = "grpcurl -plaintext -H 'X-A: b' -d '{\"name\": \"m\"}' h:8001 "
    request = parse_command(f"{text}inference.GRPCInferenceService/ModelReady", 1000, Path())
    assert request == ClientRequest(request.wire, "h:8001")
    assert isinstance(request.wire, RpcRequest)
    assert request.wire.method == "/inference.GRPCInferenceService/ModelReady"
    assert request.wire.metadata == {"x-a": "b"}
    message_class = SCHEMA.method_classes(request.wire.method)[0]
    assert message_class.FromString(bytes(join_parts(request.wire.message))).name == "m"


def test_a_file_beyond_the_limit_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "body"
    file.write_bytes(b"12345")
    assert read_file(file, 5) == b"12345"
    with pytest.raises(RequestError, match=r"more than 4 bytes \(limits.body\)"):
        read_file(file, 4)


def test_headers_are_joined_and_need_a_name() -> None:
    assert parse_headers(["A: b:c", "a: d"]) == {"a": "b:c, d"}
    with pytest.raises(RequestError, match="expected 'name: value'"):
        parse_headers([": b"])


@pytest.mark.parametrize(
    ("text", "is_known"),
    [
        ("/inference.GRPCInferenceService/ModelInfer", True),
        ("inference.GRPCInferenceService/ModelInfer", True),
        ("/tensorflow.serving.PredictionService/Predict", True),
        ("/inference.GRPCInferenceService/Nothing", False),
        ("/v2/models/m/infer", False),
        ("request.txt", False),
    ],
)
def test_known_grpc_methods_are_recognized(text: str, is_known: bool) -> None:
    assert is_rpc_method(text) is is_known


def test_a_recorded_request_with_a_redacted_body_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.igrec"
    write_recording(file, [exchange(1)], redacted=("(body)",))
    with pytest.raises(RequestError, match="#1: the body was redacted in the recording"):
        recorded_request(file, 1)
