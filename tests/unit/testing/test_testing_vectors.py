"""The vector loader and runner accept valid cases and report invalid cases."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from infergate.codecs.base import Capabilities, ParsedRequest, Profile
from infergate.core.datatypes import Datatype
from infergate.core.errors import bad_request
from infergate.core.limits import Limits
from infergate.core.messages import (
    HealthStatus,
    ModelReadyRequest,
    Operation,
    Response,
    ServerLiveRequest,
)
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpRequest, HttpResponse, RpcRequest, RpcResponse
from infergate.testing import check_vector, load

READY = {"type": "ModelReadyRequest", "model": "m"}
CASE_FIELDS = {"about": "a", "source": "s", "side": "request"}
REQUEST = {**CASE_FIELDS, "canonical": READY}
NOT_READY = {**CASE_FIELDS, "side": "response", "canonical": {"type": "HealthStatus", "ok": False}}
RESPONSE = {**NOT_READY, "canonical": {"type": "HealthStatus", "ok": True}}


class ReadinessCodec:
    """A codec for readiness only. A request is the name of a model, and the response is ``yes``."""

    name = "ready"
    capabilities = Capabilities(frozenset({Datatype.INT8}))

    def __init__(self, join: Callable[[Sequence[Buffer]], bytes] = b"".join) -> None:
        self.join = join

    def parse_request(self, wire: HttpRequest, limits: Limits) -> ParsedRequest:
        name = bytes(self.join(wire.body)).decode()
        if not name:
            raise bad_request("the model has no name")
        return ParsedRequest(ModelReadyRequest(name))

    def build_request(
        self, operation: ModelReadyRequest, profile: Profile, model: object = None
    ) -> HttpRequest:
        headers = {"x-profile": profile.name}
        return HttpRequest("POST", "/ready", "q=1", headers, (operation.model.encode(),))

    def parse_response(
        self, wire: HttpResponse, operation: Operation, limits: Limits, model: object = None
    ) -> Response:
        return HealthStatus(ok=self.join(wire.body) == b"yes")

    def build_response(self, response: HealthStatus, parsed: ParsedRequest) -> HttpResponse:
        return HttpResponse(200, {}, (b"yes",))


CODEC: Any = ReadinessCodec()
READY_REQUEST = b"POST /ready?q=1 HTTP/1.1\r\nX-Profile: triton\r\nhost: h\r\n\r\nm"
READY_RESPONSE = b"HTTP/1.1 200 OK\r\n\r\nyes"


def error_case(kind: str = "BAD_REQUEST", *mentions: str) -> dict[str, Any]:
    return {**CASE_FIELDS, "error": {"kind": kind, "mentions": mentions}}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write_case(fields: dict[str, Any], wire: bytes, file: str = "wire.http") -> Path:
        folder = tmp_path / "ready" / "case"
        folder.mkdir(parents=True)
        (folder / "case.json").write_text(json.dumps(fields))
        (folder / file).write_bytes(wire)
        return folder.parent

    return write_case


Write = Callable[..., Path]


def test_a_request_case_passes_both_ways(write: Write) -> None:
    (vector,) = load(write({**REQUEST, "both_ways": True}, READY_REQUEST))
    assert str(vector) == "ready/case"
    assert vector.wire == HttpRequest(
        "POST", "/ready", "q=1", {"x-profile": "triton", "host": "h"}, (b"m",)
    )
    check_vector(CODEC, vector)


def test_a_response_case_passes_both_ways(write: Write) -> None:
    case = {**RESPONSE, "asks": READY, "both_ways": True, "options": {"o": 1}}
    (vector,) = load(write(case, READY_RESPONSE))
    assert vector.operation == ModelReadyRequest("m")
    assert vector.options == {"o": 1}
    check_vector(CODEC, vector)


def test_an_error_case_passes(write: Write) -> None:
    (vector,) = load(write(error_case("BAD_REQUEST", "name"), READY_REQUEST[:-1]))
    check_vector(CODEC, vector)


BOTH_WAYS = {**REQUEST, "both_ways": True}


@pytest.mark.parametrize(
    ("case", "wire", "expected"),
    [
        ({**REQUEST, "canonical": {**READY, "model": "n"}}, READY_REQUEST, "whole"),
        (REQUEST, READY_REQUEST[:-1], "rejected with"),
        ({**BOTH_WAYS, "profile": "kserve"}, READY_REQUEST, "x-profile"),
        (BOTH_WAYS, READY_REQUEST.replace(b"POST", b"PUT"), "PUT"),
        (BOTH_WAYS, READY_REQUEST.replace(b"q=1", b"q=2"), "q=2"),
        (error_case("NOT_FOUND"), READY_REQUEST[:-1], "NOT_FOUND"),
        (error_case("BAD_REQUEST", "shape"), READY_REQUEST[:-1], "lacks 'shape'"),
        (error_case(), READY_REQUEST, "is not ExpectedError"),
        ({**error_case(), "both_ways": True}, READY_REQUEST[:-1], "cannot be built"),
        (
            {**NOT_READY, "asks": READY, "both_ways": True},
            READY_RESPONSE.replace(b"yes", b"no"),
            "b'yes', not b'no'",
        ),
    ],
)
def test_a_codec_that_differs_from_the_case_fails(
    write: Write, case: dict[str, Any], wire: bytes, expected: str
) -> None:
    (vector,) = load(write(case, wire))
    with pytest.raises(AssertionError, match=expected):
        check_vector(CODEC, vector)


def test_a_codec_that_depends_on_body_splits_fails(write: Write) -> None:
    case = {**REQUEST, "canonical": {**READY, "model": "mm"}}
    (vector,) = load(write(case, READY_REQUEST + b"m"))
    check_vector(CODEC, vector)
    first_part_only: Any = ReadinessCodec(lambda parts: bytes(parts[0]))
    with pytest.raises(AssertionError, match="in halves"):
        check_vector(first_part_only, vector)


@pytest.mark.parametrize(
    ("case", "wire", "expected"),
    [
        ({**REQUEST, "abuot": "x"}, READY_REQUEST, "abuot"),
        ({**REQUEST, "error": {}}, READY_REQUEST, "either"),
        ({**REQUEST, "asks": READY}, READY_REQUEST, "asks"),
        (RESPONSE, READY_RESPONSE, "asks"),
        ({**REQUEST, "canonical": {"type": "Nothing"}}, READY_REQUEST, "Nothing"),
        (REQUEST, b"POST / HTTP/1.1\r\n", "empty line"),
        (REQUEST, b"POST / HTTP/1.1\r\nhost\r\n\r\n", "no colon"),
        ({}, READY_REQUEST, "either"),
        ({"canonical": READY, "side": "request"}, READY_REQUEST, "about"),
    ],
)
def test_the_error_names_an_invalid_case(
    write: Write, case: dict[str, Any], wire: bytes, expected: str
) -> None:
    with pytest.raises(ValueError, match=f"ready/case: .*{expected}"):
        load(write(case, wire))


def test_a_case_with_two_wire_files_is_an_error(write: Write) -> None:
    folder = write(REQUEST, READY_REQUEST)
    (folder / "case/wire.rpc").write_bytes(b"")
    with pytest.raises(ValueError, match="exactly one of the wire files"):
        load(folder)


def test_an_rpc_file_is_a_request(write: Write) -> None:
    wire = b"/p.S/M\r\nk: v\r\nk: w\r\n\r\n\x00\r\n\r\n"
    (vector,) = load(
        write({**REQUEST, "canonical": {"type": "ServerLiveRequest"}}, wire, "wire.rpc")
    )
    assert vector.canonical == ServerLiveRequest()
    assert vector.wire == RpcRequest("/p.S/M", (b"\x00\r\n\r\n",), {"k": "v, w"})


def test_an_rpc_file_with_a_code_is_a_response(write: Write) -> None:
    case = {**RESPONSE, "asks": READY}
    (vector,) = load(write(case, "code 5 größe: no\r\n\r\n".encode(), "wire.rpc"))
    assert vector.wire == RpcResponse((), 5, "größe: no", {})


def test_an_rpc_response_without_a_code_is_an_error(write: Write) -> None:
    with pytest.raises(ValueError, match="code N details"):
        load(write({**RESPONSE, "asks": READY}, b"5\r\n\r\n", "wire.rpc"))
