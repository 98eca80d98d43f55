"""Tests broken or hostile legacy clients in front of the embedded models. The responses are like
those of v1.15.0, or of v1.9.0 where v1.15.0 closes the connection or crashes. Tests name the
exceptions. Other clients are served, and no resource remains in use."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from e2e.running import Infergate, started_infergate
from faults import watch
from faults.legacy import (
    DIFFERENCE,
    NUMBERS,
    OLD,
    OLD_INFER,
    SIMPLE,
    SUM,
    ProtocolClients,
    code_name,
    grpc_outcome,
    http_outcome,
    old_message,
    old_post,
)
from faults.peer import Answer, Client, post
from faults.rpc import Status, call, channel
from legacy.messages import SERVICE

CONFIG = """
backends:
  ours: {protocol: builtin}
routes:
  - {model: "*", backend: ours}
limits: {body: 1MiB}
"""
MIB = 1 << 20
REJECTED_HEADERS: list[str] = []
"""The NV-InferRequest headers that were rejected as INVALID_ARG."""
STREAM = f"/{SERVICE}/StreamInfer"


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Infergate, ProtocolClients]]:
    with started_infergate(CONFIG) as gateway, channel(gateway.grpc) as rpc_channel:
        clients = ProtocolClients(gateway.http, rpc_channel)
        assert clients.send_request("trtis-http", "simple").code == "SUCCESS"
        assert clients.send_request("trtis-grpc", "simple").code == "SUCCESS"
        REJECTED_HEADERS.clear()
        yield gateway, clients
        rejected = watch.counted(gateway, outcome="bad_request", protocol="trtis-http")
        assert rejected >= len(REJECTED_HEADERS), "a rejected request is not counted"
        watch.assert_healthy(gateway)


@pytest.fixture
def gateway(running: tuple[Infergate, ProtocolClients]) -> Iterator[Infergate]:
    """Run the gateway. Check that it serves other clients during the test and holds no more
    resources after it."""
    gateway, _ = running
    with watch.unharmed(gateway, lambda: good(gateway), max_new_descriptors=watch.HELPERS):
        yield gateway


@pytest.fixture
def rpc(running: tuple[Infergate, ProtocolClients], gateway: Infergate) -> grpc.Channel:
    return running[1].channel


def good(gateway: Infergate) -> None:
    outcome = http_outcome(old_post(gateway.http, "simple", SIMPLE, NUMBERS))
    assert outcome.code == "SUCCESS"
    assert outcome.body.startswith(SUM + DIFFERENCE + b'model_name: "simple"\n')


def assert_bare(answer: Answer, status: int = 400) -> None:
    """Check that ``answer`` has neither a body nor a header of the legacy API."""
    assert answer.status == status
    assert not set(answer.headers) & {"nv-status", "nv-inferresponse"}
    assert answer.body == b""
    assert answer.headers["content-type"] == "text/plain"


def assert_rejected(
    gateway: Infergate, header: str, words: str, body: bytes = NUMBERS, **more: str
) -> None:
    """Check that the request is rejected over HTTP, without a body and with only the id in
    NV-InferResponse."""
    answer = old_post(gateway.http, more.get("model", "simple"), header, body)
    outcome = http_outcome(answer)
    if outcome.code == "INVALID_ARG":
        REJECTED_HEADERS.append(header)
    assert (outcome.code, outcome.error) == (more.get("code", "INVALID_ARG"), words)
    assert re.fullmatch(r"(id: \d+)?", answer.headers["nv-inferresponse"])
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.body == b""


INPUTS = 'input { name: "INPUT0" } input { name: "INPUT1" }'
OUTPUT = 'output { name: "OUTPUT0" }'

# ---- NV-InferRequest that cannot be read -----------------------------------------------------

UNREADABLE = {
    "an unknown field": f"what: 1 {SIMPLE}",
    "an unterminated string": 'batch_size: 1 input { name: "INPUT0 }',
    "a missing brace": "batch_size: 1 input {",
    "an extra brace": f"{SIMPLE} }}",
    "a word for a number": "batch_size: one",
    "a number over 32 bits": "batch_size: 4294967296",
    "a number over 64 bits": f"{SIMPLE} id: 18446744073709551616",
    "a number of 4000 digits": f"batch_size: {'9' * 4000}",
    "a negative number": "batch_size: -1",
    "a float": "batch_size: 1.5",
    "a field twice": "batch_size: 1 batch_size: 1",
    "a wrong escape": 'input { name: "\\q" }',
    "a name that is not UTF-8": 'input { name: "\\377" }',
    "binary": "\x08\x01\x12\x08",
    "a sentence": "let me in",
    "JSON": '{"batch_size": 1}',
    "nested 2000 deep": "input {" * 2000,
    "an unknown field nested 2000 deep": "a {" * 2000 + "}" * 2000,
    "lists in lists": "input: [" + "[" * 3000,
    "a name twice": 'input { name: "INPUT0" name: "INPUT1" }',
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_an_unreadable_header_is_rejected(gateway: Infergate, case: str) -> None:
    """The response does not depend on whether the model exists."""
    before = watch.counted(gateway, outcome="bad_request", protocol="trtis-http")
    for model in ("simple", "nosuch"):
        lines = [f"POST /api/infer/{model} HTTP/1.1", "Host: x", f"Content-Length: {len(NUMBERS)}"]
        head = "\r\n".join([*lines, f"NV-InferRequest: {UNREADABLE[case]}", "", ""])
        with Client(gateway.http) as client:
            client.send(head.encode("latin-1") + NUMBERS)
            answer = client.answer()
        if case == "binary":  # HTTP does not allow such bytes
            assert answer.status == 400
        else:
            assert_bare(answer)
    if case != "binary":
        assert watch.counted(gateway, outcome="bad_request", protocol="trtis-http") == before + 2


@pytest.mark.parametrize(("name", "expected"), [(b"\xc3\xa9", r"\303\251"), (b"\xff", r"\303\277")])
def test_non_ascii_names_are_escaped(gateway: Infergate, name: bytes, expected: str) -> None:
    """The name is returned as ASCII. Bytes that are not UTF-8 are read as Latin-1."""
    header = b'batch_size: 1 input { name: "INPUT0" } input { name: "%b" }' % name
    with Client(gateway.http) as client:
        client.send(b"POST /api/infer/simple HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n")
        client.send(b"NV-InferRequest: %b\r\n\r\n" % header)
        answer = client.answer()
    assert answer.status == 400
    words = rf"unexpected inference input \'{expected}\' for"
    assert f'msg: "{words}' in answer.headers["nv-status"]


def test_a_repeated_header_is_rejected(gateway: Infergate) -> None:
    """Legacy servers use the first header. The gateway joins both, which gives two batch sizes."""
    head = f"POST /api/infer/simple HTTP/1.1\r\nHost: x\r\nContent-Length: {len(NUMBERS)}\r\n"
    with Client(gateway.http) as client:
        client.send((head + f"NV-InferRequest: {SIMPLE}\r\n" * 2 + "\r\n").encode() + NUMBERS)
        assert_bare(client.answer())


@pytest.mark.parametrize("over", [0, 1])
def test_the_size_of_a_legacy_header_is_limited(gateway: Infergate, over: int) -> None:
    """A listener with the legacy API accepts headers of 64 KiB, even in pipelined requests."""
    lines = ["Host: x", f"Content-Length: {len(NUMBERS)}", f"NV-InferRequest: {SIMPLE} #"]
    headroom = 64 * 1024 - sum(len(line) + len("\r\n") for line in lines)
    head = "\r\n".join(["POST /api/infer/simple HTTP/1.1", *lines]) + "x" * (headroom + over)
    limited = watch.refused_by(gateway, "headers") if over else contextlib.nullcontext()
    with limited, watch.limited_growth(gateway.pid, 16 * MIB), Client(gateway.http) as client:
        client.send((f"{head}\r\n\r\n".encode() + NUMBERS) * 2)
        if over:
            assert client.answer().status == 431
        else:
            for _ in range(2):
                assert http_outcome(client.answer()).code == "SUCCESS"


@pytest.mark.parametrize("over", [0, 1])
def test_other_listeners_and_metadata_have_the_ordinary_header_limit(
    gateway: Infergate, rpc: grpc.Channel, over: int
) -> None:
    """The limit is 16 KiB at the admin listener. It also applies to metadata, where gRPC adds 32
    bytes for each field."""
    line = "A: " + "x" * (16 * 1024 - len("Host: x\r\nA: \r\n") + over)
    limited = watch.refused_by(gateway, "headers") if over else contextlib.nullcontext()
    with limited, Client(gateway.admin) as client:
        client.send(f"GET /healthz HTTP/1.1\r\nHost: x\r\n{line}\r\n\r\n".encode())
        assert client.answer().status == (431 if over else 200)
    metadata = [("x-much", "x" * (17_000 if over else 15_000))]
    status = call(rpc, old_message("simple"), OLD_INFER, metadata=metadata)
    assert status.code.name == ("RESOURCE_EXHAUSTED" if over else "OK")


# ---- NV-InferRequest with impossible values --------------------------------------------------

WRONG = {  # The requests that were recorded with a real server are in tests/unit/codecs/trtis.
    "a batch of 2^32 - 1": (
        f"batch_size: 4294967295 {INPUTS}",
        "inference request batch-size must be <= 8 for 'simple'",
    ),
    "an unknown input": (
        'batch_size: 1 input { name: "INPUT0" } input { name: "X" }',
        "unexpected inference input 'X' for model 'simple'",
    ),
    "an input without a name": (
        'batch_size: 1 input { name: "INPUT0" } input {}',
        "unexpected inference input '' for model 'simple'",
    ),
    "an input name with control characters": (
        'batch_size: 1 input { name: "INPUT0" } input { name: "\\303\\251\\n\\000" }',
        "unexpected inference input 'é\n\0' for model 'simple'",
    ),
    "dimensions whose product overflows": (
        ('batch_size: 1 input { name: "INPUT0" dims: [4611686018427387904, 4] } '
        'input { name: "INPUT1" }'),
        ("unexpected shape for input 'INPUT0' for model 'simple'. Expected [16], got "
        "[4611686018427387904,4]"),
    ),
    "a size of 2^64 - 1": (
        ('batch_size: 1 input { name: "INPUT0" batch_byte_size: 18446744073709551615 } '
        'input { name: "INPUT1" }'),
        ("specific batch-byte-size for input 'INPUT0' does not match expected byte-size calculated "
        "from shape and datatype for model 'simple'"),
    ),
    "an id and nothing else": (
        "id: 18446744073709551615", "inference request batch-size must be >= 1 for 'simple'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_impossible_values_are_rejected(gateway: Infergate, rpc: grpc.Channel, case: str) -> None:
    """The text is the same over HTTP and gRPC."""
    header, words = WRONG[case]
    assert_rejected(gateway, header, words)
    outcome = grpc_outcome(call(rpc, old_message("simple", header=header), OLD_INFER))
    assert (outcome.code, outcome.error) == ("INVALID_ARG", words)


def test_the_id_is_returned_with_the_error(gateway: Infergate, rpc: grpc.Channel) -> None:
    header = f"id: 18446744073709551615 batch_size: 9 {INPUTS}"
    answer = old_post(gateway.http, "simple", header, NUMBERS)
    assert answer.headers["nv-inferresponse"] == "id: 18446744073709551615"
    status = call(rpc, old_message("simple", header=header), OLD_INFER)
    assert OLD.InferResponse.FromString(status.message).meta_data.id == 2**64 - 1


def test_a_size_over_64_bits_is_rejected(gateway: Infergate, rpc: grpc.Channel) -> None:
    """The size of 2^62 elements of four bytes does not fit in 64 bits."""
    header = 'batch_size: 1 input { name: "INPUT0" dims: 4611686018427387904 }'
    outcome = http_outcome(old_post(gateway.http, "identity", header, b""))
    assert outcome.code == "INVALID_ARG"
    assert "INPUT0" in outcome.error
    outcome = grpc_outcome(call(rpc, old_message("identity", header=header, raw=[b""]), OLD_INFER))
    assert outcome.code == "INVALID_ARG"
    assert "INPUT0" in outcome.error


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (NUMBERS[:-4], "unexpected size for input 'INPUT1', expecting 4 bytes for model 'simple'"),
        (NUMBERS[:60], "unexpected size for input 'INPUT0', expecting 4 bytes for model 'simple'"),
        (b"", "unexpected size for input 'INPUT0', expecting 64 bytes for model 'simple'"),
        (NUMBERS + b"x", "unexpected additional input data for model 'simple'"),
    ],
    ids=["short", "half", "empty", "long"],
)
def test_a_body_of_a_wrong_size_is_rejected(gateway: Infergate, body: bytes, words: str) -> None:
    assert_rejected(gateway, SIMPLE, words, body)


@pytest.mark.parametrize(
    "strings", [b"\xff\xff\xff\xff", b"\x05\0\0\0abc", b"\0\0\0", b"\0" * 60, b"\0" * 68]
)
def test_inconsistent_string_lengths_are_rejected(gateway: Infergate, strings: bytes) -> None:
    """Legacy servers ignore the lengths inside the data. The gateway checks them."""
    size = len(strings)
    header = " ".join(f'input {{ name: "INPUT{i}" batch_byte_size: {size} }}' for i in range(2))
    answer = old_post(gateway.http, "simple_string", f"batch_size: 1 {header}", strings * 2)
    outcome = http_outcome(answer)
    assert outcome.code == "INVALID_ARG"
    assert "INPUT0" in outcome.error


# ---- unusual requests that are served ------------------------------------------------------

VALID = {
    "no requested outputs": (f"batch_size: 1 {INPUTS}", b""),
    "one output": (f'batch_size: 1 {INPUTS} output {{ name: "OUTPUT1" }}', DIFFERENCE),
    "outputs in another order": (
        f'batch_size: 1 {INPUTS} output {{ name: "OUTPUT1" }} output {{ name: "OUTPUT0" }}',
        DIFFERENCE + SUM,
    ),
    "an output twice": (f"batch_size: 1 {INPUTS} {OUTPUT} {OUTPUT}", SUM + SUM),  # as with v1.9.0
    "zero classes": (
        f'batch_size: 1 {INPUTS} output {{ name: "OUTPUT0" cls {{}} }}', SUM,
    ),
    "another text format": (
        ("batch_size:1,input<name:'INPUT0'>;input:{name:\"INPUT\" '1' dims:[0x10]}"
        "output{name:'OUTPUT\\060'}#the end"),
        SUM,
    ),
    "flags without a sequence": (f"flags: 4294967295 batch_size: 1 {INPUTS} {OUTPUT}", SUM),
}  # fmt: skip


@pytest.mark.parametrize("case", VALID)
def test_unusual_requests_are_served(gateway: Infergate, rpc: grpc.Channel, case: str) -> None:
    header, values = VALID[case]
    http = http_outcome(old_post(gateway.http, "simple", header, NUMBERS))
    assert http.code == "SUCCESS", http
    assert http.body.startswith(values + b'model_name: "simple"\n')
    outcome = grpc_outcome(call(rpc, old_message("simple", header=header), OLD_INFER))
    assert (outcome.code, outcome.body) == ("SUCCESS", values)


@pytest.mark.parametrize(
    ("count", "returned"), [("1", 1), ("16", 16), ("17", 16), ("4294967295", 16)]
)
def test_32_bit_class_counts_are_accepted(gateway: Infergate, count: str, returned: int) -> None:
    header = f'batch_size: 1 {INPUTS} output {{ name: "OUTPUT0" cls {{ count: {count} }} }}'
    answer = old_post(gateway.http, "simple", header, NUMBERS)
    assert http_outcome(answer).code == "SUCCESS"
    headers = answer.headers["nv-inferresponse"]
    assert headers.count("cls {") == returned
    assert "batch_classes { cls { idx: 15 value: 16 }" in headers
    assert answer.body.startswith(b"model_name")


@pytest.mark.parametrize("count", ["-1", "4294967296"])
def test_class_counts_beyond_32_bits_are_rejected(gateway: Infergate, count: str) -> None:
    header = f'batch_size: 1 {INPUTS} output {{ name: "OUTPUT0" cls {{ count: {count} }} }}'
    assert_bare(old_post(gateway.http, "simple", header, NUMBERS))


@pytest.mark.parametrize(
    ("query", "binary"),
    [
        ("", False),
        ("?format=binary", True),
        ("?format=text", False),
        ("?format=json", False),
        ("?format=BINARY", False),
        ("?format=", False),
        ("?format", False),
        ("?x=y&format=binary&z", True),
        ("?format=text&format=binary", False),
        ("?%66ormat=binary", False),
        ("?format=binary;", False),
    ],
)
def test_the_format_parameter_selects_the_trailer(
    gateway: Infergate, query: str, binary: bool
) -> None:
    path = f"/api/infer/simple{query}"
    answer = post(gateway.http, path, NUMBERS, {"NV-InferRequest": SIMPLE})
    assert http_outcome(answer).code == "SUCCESS"
    trailer = answer.body.removeprefix(SUM + DIFFERENCE)
    if binary:
        assert OLD.InferResponseHeader.FromString(trailer).model_name == "simple"
    else:
        assert trailer.startswith(
            b'model_name: "simple"\nmodel_version: 1\nbatch_size: 1\noutput {\n'
        )


# ---- models, versions, paths and methods -----------------------------------------------------


@pytest.mark.parametrize("path", ["nosuch", "simple/2", "simple/0", f"simple/{2**70}"])
def test_unknown_http_models_are_rejected(gateway: Infergate, path: str) -> None:
    name = path.partition("/")[0]
    assert_rejected(
        gateway, SIMPLE, f"Inference request for unknown model '{name}'",
        model=path, code="UNAVAILABLE",
    )  # fmt: skip


def test_percent_encoded_names_are_not_decoded(gateway: Infergate) -> None:
    error = "the model name contains the percent-escape '%70'"
    assert_rejected(gateway, SIMPLE, error, model="sim%70le", code="INVALID_ARG")


@pytest.mark.parametrize("version", ["1", "001"])
def test_versions_with_leading_zeros_are_accepted(gateway: Infergate, version: str) -> None:
    outcome = http_outcome(old_post(gateway.http, f"simple/{version}", SIMPLE, NUMBERS))
    assert outcome.code == "SUCCESS"


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("POST /api", 400),
        ("GET /api/", 400),
        ("POST /api/infer", 400),
        ("POST /api/infer/", 400),
        ("POST /api/infer/simple/", 400),
        ("POST /api/infer/simple/x", 400),
        ("POST /api/infer/simple/-1", 400),
        ("POST /api/infer/simple/1/2", 400),
        ("POST /api/infer//simple", 400),
        ("POST /api//infer/simple", 400),
        ("POST /api/../api/infer/simple", 400),
        ("POST /api/infer/simple%2f1/x", 400),
        ("GET /api/health", 400),
        ("GET /api/health/", 400),
        ("GET /api/health/foo", 400),
        ("GET /api/health/live/", 400),
        ("GET /api/repository", 400),
        ("GET /api/nosuch", 400),
        ("POST /api/modelcontrol/reload/simple", 400),
        ("POST /api/sharedmemorycontrol/register/a/b/c/d", 400),
        ("GET /api/infer/simple", 405),
        ("PUT /api/infer/simple", 405),
        ("HEAD /api/health/live", 405),
        ("POST /api/health/live", 405),
        ("DELETE /api/status", 405),
        ("GET /api/modelcontrol/load/simple", 405),
        ("OPTIONS /api/repository/index", 405),
        ("PATCH /api/status/simple", 405),
    ],
)
def test_unknown_paths_and_methods_are_rejected(gateway: Infergate, line: str, status: int) -> None:
    with Client(gateway.http) as client:
        client.send(f"{line} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
        if line.startswith("HEAD"):
            assert client.until(b"\r\n\r\n").startswith(b"HTTP/1.1 405 ")
            return
        assert_bare(client.answer(), status)
        client.send(b"GET /api/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.answer().status == 200  # the connection stays open


@pytest.mark.parametrize(
    "model", ["nosuch", "simple/", "simple/1", "sim%70le", "x" * 1000, "x" * 5000, "a b"]
)
def test_an_unknown_models_status_is_an_error(gateway: Infergate, model: str) -> None:
    with Client(gateway.http) as client:
        client.send(f"GET /api/status/{model} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        answer = client.answer()
    assert answer.status == 400
    if " " not in model:  # such a line is not HTTP
        outcome = http_outcome(answer)
        assert outcome.code == "INVALID_ARG"
        assert outcome.error.startswith(f"no status available for unknown model '{model[:1000]}")


# ---- HTTP ------------------------------------------------------------------------------------

REQUEST_HEAD = f"POST /api/infer/simple HTTP/1.1\r\nHost: x\r\nNV-InferRequest: {SIMPLE}\r\n"
CHUNKS = b"40\r\n%b\r\n40\r\n%b\r\n0\r\n\r\n" % (NUMBERS[:64], NUMBERS[64:])


def exchange(gateway: Infergate, whole: bytes) -> tuple[Answer, bytes]:
    """Return the response, and the bytes that follow it when the client has closed its side."""
    with Client(gateway.http) as client:
        client.send(whole)
        answer = client.answer()
        client.socket.shutdown(1)
        return answer, client.read_to_end()


def test_a_chunked_body_is_accepted(gateway: Infergate) -> None:
    """The legacy servers crash on such a request. The gateway serves it."""
    answer, _ = exchange(
        gateway, f"{REQUEST_HEAD}Transfer-Encoding: chunked\r\n\r\n".encode() + CHUNKS
    )
    assert http_outcome(answer).body.startswith(SUM + DIFFERENCE)


def test_a_client_that_waits_for_100_continue_is_served(gateway: Infergate) -> None:
    with Client(gateway.http) as client:
        head = f"{REQUEST_HEAD}Content-Length: {len(NUMBERS)}\r\nExpect: 100-continue\r\n\r\n"
        client.send(head.encode())
        assert client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(NUMBERS)
        assert http_outcome(client.answer()).code == "SUCCESS"


@pytest.mark.parametrize("more", ["Connection: close\r\n", ""])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_connections_close_when_requested(gateway: Infergate, version: str, more: str) -> None:
    head = f"{REQUEST_HEAD}{more}Content-Length: {len(NUMBERS)}\r\n\r\n".replace("1.1", version)
    with Client(gateway.http) as client:
        client.send(head.encode() + NUMBERS)
        assert http_outcome(client.answer()).code == "SUCCESS"
        if more or version == "1.0":
            assert client.read_to_end() == b""
        else:
            client.send(head.encode() + NUMBERS)
            assert http_outcome(client.answer()).code == "SUCCESS"


def test_pipelined_requests_are_not_lost(gateway: Infergate) -> None:
    infer = f"{REQUEST_HEAD}Content-Length: {len(NUMBERS)}\r\n\r\n".encode() + NUMBERS
    live = b"GET /api/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
    with Client(gateway.http) as client:
        client.send((live + infer) * 10)
        assert [client.answer().status for _ in range(20)] == [200] * 20


def test_a_body_over_the_limit_is_rejected(gateway: Infergate) -> None:
    with watch.limited_growth(gateway.pid, 16 * MIB), Client(gateway.http) as client:
        client.send(f"{REQUEST_HEAD}Content-Length: {MIB + 1}\r\n\r\n".encode())
        outcome = http_outcome(client.answer())
    assert outcome.code == "INVALID_ARG"
    assert str(MIB) in outcome.error


def test_connection_resets_do_not_affect_other_clients(gateway: Infergate) -> None:
    whole = f"{REQUEST_HEAD}Content-Length: {len(NUMBERS)}\r\n\r\n".encode() + NUMBERS
    for end in (10, 60, len(whole) - 1, len(whole)):
        with Client(gateway.http) as client:
            client.send(whole[:end])
            client.reset()
    good(gateway)


def test_expensive_headers_are_rejected_with_little_memory(gateway: Infergate) -> None:
    with watch.limited_growth(gateway.pid, 32 * MIB):
        for unit in ("input{}", "output{cls{}}", "input{dims:[1,2,3]}", "#", '"', "input:[{},{}]"):
            header = f"batch_size: 1 {unit * (15_000 // len(unit))}"
            assert old_post(gateway.http, "simple", header, b"").status == 400
            good(gateway)


# ---- gRPC ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["Infer", "Status", "Health", "ModelControl", "Repository"])
@pytest.mark.parametrize(
    "message", [b"\xff", b"\x0a\xff", b"\x0b", b"\x0a\x05ab", b"\x0a\x02\xff\xfe"]
)
def test_malformed_messages_are_rejected(rpc: grpc.Channel, method: str, message: bytes) -> None:
    status = call(rpc, message, f"/{SERVICE}/{method}")
    if method == "Repository" and message == b"\x0a\x02\xff\xfe":
        # either code is accepted for a text that is not UTF-8
        assert status.code in {grpc.StatusCode.OK, grpc.StatusCode.INTERNAL}
        return
    assert (status.code, status.details) == (grpc.StatusCode.INTERNAL, "Unable to parse request")


@pytest.mark.parametrize("method", ["Profile", "infer", "Nosuch"])
def test_unknown_grpc_methods_are_unimplemented(rpc: grpc.Channel, method: str) -> None:
    assert call(rpc, b"", f"/{SERVICE}/{method}").code is grpc.StatusCode.UNIMPLEMENTED


def test_empty_raw_inputs_are_rejected(rpc: grpc.Channel) -> None:
    outcome = grpc_outcome(call(rpc, old_message("simple", raw=[b"", b""]), OLD_INFER))
    words = "unexpected size 0 for input 'INPUT0', expecting 64 for model 'simple'"
    assert (outcome.code, outcome.error) == ("INVALID_ARG", words)


def test_surplus_raw_inputs_are_ignored(rpc: grpc.Channel) -> None:
    raw = [NUMBERS[:64], NUMBERS[64:], b"more"]
    outcome = grpc_outcome(call(rpc, old_message("simple", raw=raw), OLD_INFER))
    assert (outcome.code, outcome.body) == ("SUCCESS", SUM + DIFFERENCE)


@pytest.mark.parametrize("version", [0, 2, -2, 2**63 - 1])
def test_unknown_versions_are_rejected(rpc: grpc.Channel, version: int) -> None:
    outcome = grpc_outcome(call(rpc, old_message("simple", version=version), OLD_INFER))
    words = "Inference request for unknown model 'simple'"
    assert (outcome.code, outcome.error) == ("UNAVAILABLE", words)


def test_very_many_fields_are_rejected(rpc: grpc.Channel, gateway: Infergate) -> None:
    """The gateway uses little memory and serves other clients."""
    for unit in (b"\x22\0", b"\x1a\x02\x1a\0", b"\x1a\x02\x22\0", b"\x78\0"):
        with watch.limited_growth(gateway.pid, 64 * MIB):
            status = call(rpc, unit * (900_000 // len(unit)), OLD_INFER)
        if status.code is grpc.StatusCode.OK:
            assert grpc_outcome(status).code in {"INVALID_ARG", "UNAVAILABLE"}
        else:
            assert status.code is grpc.StatusCode.INTERNAL
        good(gateway)


def test_a_long_message_is_rejected(rpc: grpc.Channel) -> None:
    message = old_message("simple", raw=[bytes(2 * MIB)])
    assert call(rpc, message, OLD_INFER).code is grpc.StatusCode.RESOURCE_EXHAUSTED


OTHER_ERRORS = [
    ("Health", OLD.HealthRequest(mode="foo"), "UNKNOWN", "unknown health mode 'foo'"),
    ("Repository", OLD.RepositoryRequest(), "UNKNOWN", "request type is not specified"),
    (
        "SharedMemoryControl", OLD.SharedMemoryControlRequest(),
        "UNKNOWN", "unknown sharedmemorycontrol request type",
    ),
    (
        "Status", OLD.StatusRequest(model_name="nosuch"),
        "INVALID_ARG", "no status available for unknown model 'nosuch'",
    ),
    (
        "ModelControl", OLD.ModelControlRequest(model_name="simple", type=1),
        "UNAVAILABLE", "explicit model load / unload is not allowed if polling is enabled",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("method", "message", "code", "words"), OTHER_ERRORS)
def test_other_methods_reject_invalid_requests(
    rpc: grpc.Channel, method: str, message: Any, code: str, words: str
) -> None:
    status = call(rpc, message.SerializeToString(), f"/{SERVICE}/{method}")
    assert status.code is grpc.StatusCode.OK
    response_class = getattr(OLD, f"{method}Response")
    request_status = response_class.FromString(status.message).request_status
    assert (code_name(request_status), request_status.msg) == (code, words)


# ---- streams ---------------------------------------------------------------------------------


def streamed(rpc: grpc.Channel, *messages: bytes) -> tuple[list[str], Status]:
    """Return the codes of the responses in order, and the end of the stream."""
    answers = rpc.stream_stream(STREAM)(iter(messages), timeout=watch.SECONDS)
    codes = []
    try:
        for each in answers:
            codes.append(code_name(OLD.InferResponse.FromString(each).request_status))  # noqa: PERF401
    except grpc.RpcError as error:
        return codes, Status(error.code(), error.details() or "")
    return codes, Status(answers.code(), answers.details())


def test_an_empty_stream_ends_with_ok(rpc: grpc.Channel) -> None:
    assert streamed(rpc) == ([], Status(grpc.StatusCode.OK, ""))


def test_errors_and_responses_keep_their_order(rpc: grpc.Channel) -> None:
    good, bad = old_message("simple"), old_message("simple", raw=[])
    unknown = old_message("nosuch")
    codes, status = streamed(rpc, good, bad, good, unknown, unknown, good)
    assert codes == [
        "SUCCESS", "INVALID_ARG", "SUCCESS", "UNAVAILABLE", "UNAVAILABLE", "SUCCESS",
    ]  # fmt: skip
    assert status.code is grpc.StatusCode.OK


def test_a_malformed_message_ends_the_stream(rpc: grpc.Channel) -> None:
    """The requests before it get their responses first."""
    good = old_message("simple")
    codes, status = streamed(rpc, good, good, b"\xff", good)
    assert codes == ["SUCCESS", "SUCCESS"]
    assert (status.code, status.details) == (grpc.StatusCode.INTERNAL, "Unable to parse request")


def test_a_stream_ends_when_its_client_cancels(rpc: grpc.Channel, gateway: Infergate) -> None:
    release = threading.Event()

    def messages() -> Iterator[bytes]:
        yield old_message("simple")
        release.wait(watch.SECONDS)

    answers = rpc.stream_stream(STREAM)(messages(), timeout=watch.SECONDS)
    assert OLD.InferResponse.FromString(next(answers)).raw_output[0] == SUM
    watch.until(lambda: "infergate_open_streams 1.0" in gateway.metrics(), "the stream is open")
    answers.cancel()
    release.set()
    watch.until(lambda: "infergate_open_streams 0.0" in gateway.metrics(), "the stream has ended")


def test_a_sequence_over_a_stream_keeps_its_state(rpc: grpc.Channel) -> None:
    def step(number: int, flags: int) -> bytes:
        header = (
            f'batch_size: 1 correlation_id: 5 flags: {flags} input {{ name: "INPUT" }} '
            'output { name: "OUTPUT" }'
        )
        return old_message("accumulate", header=header, raw=[number.to_bytes(4, "little")])

    messages = iter([step(5, 1), step(6, 0), step(7, 2), step(8, 0)])
    answers = [OLD.InferResponse.FromString(each) for each in rpc.stream_stream(STREAM)(messages)]
    assert [int.from_bytes(each.raw_output[0], "little") for each in answers[:3]] == [5, 11, 18]
    assert code_name(answers[3].request_status) == "INVALID_ARG"
    assert "must specify the START flag" in answers[3].request_status.msg
