"""Tests a real tritonclient with a legacy server, which does not support V2, behind infergate.

The gateway serves two names for each of the server's models: ``http.M`` reaches M over the legacy
HTTP API, and ``grpc.M`` over the gRPC service. The server imitates v1.15.0, which returns
outputs in another order and closes connections where v1.9.0 returns an error."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from e2e.clients import ARRAYS, FORMS, Client, client
from e2e.probing import models_of, probe, protocols_of, run_requests, serve_config
from e2e.running import Infergate, started_infergate
from faults.peer import get, post
from faults.watch import until
from legacy.models import LONG_NAMES
from legacy.running import LegacyServer, started_legacy

CONFIG = """
backends:
  http: {{protocol: trtis-http, endpoints: ["http://{http}"]}}
  grpc: {{protocol: trtis-grpc, endpoints: ["grpc://{grpc}"]}}
routes:
  - {{model: '/http\\.(.+)/', backend: http, rewrite: {{model: '\\1'}}}}
  - {{model: '/grpc\\.(.+)/', backend: grpc, rewrite: {{model: '\\1'}}}}
  - {{model: http-hurried, backend: http, timeout: 500ms, rewrite: {{model: slow}}}}
  - {{model: grpc-hurried, backend: grpc, timeout: 500ms, rewrite: {{model: slow}}}}
  - {{model: 'simple*', backend: grpc}}
  - {{model: '*', backend: http}}
readiness: lenient
"""
BACKENDS = ("http", "grpc")
INVALID, NOT_FOUND = ({"400", "StatusCode.INVALID_ARGUMENT"}, {"404", "StatusCode.NOT_FOUND"})
TIMEOUT, TOO_LARGE = (
    {"504", "StatusCode.DEADLINE_EXCEEDED"},
    {"413", "StatusCode.RESOURCE_EXHAUSTED"},
)
UNAVAILABLE = {"503", "StatusCode.UNAVAILABLE"}
UNIMPLEMENTED = {"501", "StatusCode.UNIMPLEMENTED"}
INTERNAL = {"500", "StatusCode.INTERNAL"}

ONE = np.array([[1]], np.int32)

both_backends = pytest.mark.parametrize("backend", BACKENDS)


@dataclass(frozen=True)
class Harness:
    server: LegacyServer
    gateway: Infergate

    def calls(self, *parts: str) -> int:
        """Return the number of requests to the server that contain one of ``parts``."""
        requests = [
            str(record.get("target") or record.get("rpc")) for record in self.server.requests()
        ]
        return sum(any(part in each for part in parts) for each in requests)

    def inferences(self) -> int:
        return self.calls("/api/infer/", "/Infer")

    def metadata_requests(self) -> int:
        return self.calls("/api/status/", "/Status")


@pytest.fixture(scope="module")
def harness() -> Iterator[Harness]:
    with (
        started_legacy("--level", "1.15", "--hazard", "long_names") as server,
        started_infergate(config(server)) as gateway,
    ):
        yield Harness(server, gateway)


def config(server: LegacyServer) -> str:
    return CONFIG.format(http=server.http, grpc=server.grpc)


@pytest.fixture(scope="module")
def clients(harness: Harness) -> Iterator[dict[str, Client]]:
    with ExitStack() as stack:
        yield {form: stack.enter_context(client_of(form, harness.gateway)) for form in FORMS}


def client_of(form: str, gateway: Infergate) -> AbstractContextManager[Client]:
    return client(form, gateway.http, gateway.grpc)


@pytest.fixture(params=FORMS[:2])
def triton_client(request: pytest.FixtureRequest, clients: dict[str, Client]) -> Client:
    return clients[request.param]


@pytest.fixture(params=FORMS)
def any_form(request: pytest.FixtureRequest, clients: dict[str, Client]) -> Client:
    return clients[request.param]


def pair(batch: int = 1, datatype: str = "INT32") -> tuple[Any, Any]:
    dtype = ARRAYS[datatype].dtype
    left = np.arange(16 * batch).reshape(batch, 16).astype(dtype)
    return left, np.ones_like(left)


def simple(triton_client: Client, batch: int = 1) -> list[Any]:
    return [triton_client.input(f"INPUT{i}", each, "INT32") for i, each in enumerate(pair(batch))]


def field(result: Any, name: str) -> Any:
    response = result.get_response()
    return response[name] if isinstance(response, dict) else getattr(response, name)


def fails(statuses: set[str], text: str) -> Any:
    return pytest.raises(
        InferenceServerException, match=text, check=lambda e: e.status() in statuses
    )


# ---- tensors ---------------------------------------------------------------------------------


@both_backends
@pytest.mark.parametrize("batch", [1, 2, 8])
def test_sum_and_difference(any_form: Client, backend: str, batch: int) -> None:
    a, b = pair(batch)
    result = any_form.infer(f"{backend}.simple", simple(any_form, batch), request_id="the id")
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), a + b)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), a - b)
    assert field(result, "model_name") == f"{backend}.simple"
    assert field(result, "model_version") == "1"
    assert field(result, "id") == "the id"
    assert [each["name"] if any_form.http else each.name for each in field(result, "outputs")] == [
        "OUTPUT0",
        "OUTPUT1",
    ]


@both_backends
def test_inputs_in_any_order(triton_client: Client, backend: str) -> None:
    a, b = pair()
    result = triton_client.infer(f"{backend}.simple", simple(triton_client)[::-1])
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), a - b)


@both_backends
@pytest.mark.parametrize("names", [["OUTPUT1"], ["OUTPUT0"], ["OUTPUT1", "OUTPUT0"]])
def test_requested_outputs_keep_their_order(
    triton_client: Client, backend: str, names: list[str]
) -> None:
    outputs = [triton_client.output(name) for name in names]
    result = triton_client.infer(f"{backend}.simple", simple(triton_client), outputs=outputs)
    returned = field(result, "outputs")
    assert [each["name"] if triton_client.http else each.name for each in returned] == names
    a, b = pair()
    for name, expected in (("OUTPUT0", a + b), ("OUTPUT1", a - b)):
        if name in names:
            np.testing.assert_array_equal(result.as_numpy(name), expected)


@both_backends
def test_a_model_without_batches_and_its_versions(triton_client: Client, backend: str) -> None:
    a, b = np.array([1, 2.5, -3, 4], np.float32), np.array([2, 2.5, -3, 4], np.float32)
    inputs = [triton_client.input(f"INPUT{i}", each, "FP32") for i, each in enumerate((a, b))]
    for version, actual in (("", "3"), ("1", "1"), ("3", "3")):
        result = triton_client.infer(f"{backend}.simple_nobatch", inputs, model_version=version)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), a + b)
        assert result.as_numpy("OUTPUT0").shape == (4,)
        assert field(result, "model_version") == actual


@both_backends
def test_strings_of_any_bytes(triton_client: Client, backend: str) -> None:
    array = np.array([[b"a\0b", b"", b"\xff\xfe"], [b"\x80", "é".encode(), b'"\\\n']], np.object_)
    result = triton_client.infer(
        f"{backend}.identity_string", [triton_client.input("INPUT0", array, "BYTES")]
    )
    assert result.as_numpy("OUTPUT0").tolist() == array.tolist()


@both_backends
def test_strings_as_json(clients: dict[str, Client], backend: str) -> None:
    over_http = clients["http"]
    array = np.array([[b"a\0b", "é".encode()]], np.object_)
    tensor = over_http.input("INPUT0", array, "BYTES", binary=False)
    outputs = [over_http.output("OUTPUT0", binary=False)]
    result = over_http.infer(f"{backend}.identity_string", [tensor], outputs=outputs)
    assert result.as_numpy("OUTPUT0").tolist() == [["a\0b", "é"]]


@both_backends
def test_numeric_strings(triton_client: Client, backend: str) -> None:
    """The test server returns INPUT0 as OUTPUT0 and INPUT1 as OUTPUT1."""
    a = np.array([[str(i).encode() for i in range(16)]] * 2, np.object_)
    inputs = [triton_client.input(f"INPUT{i}", a, "BYTES") for i in range(2)]
    result = triton_client.infer(f"{backend}.simple_string", inputs)
    assert result.as_numpy("OUTPUT1").tolist() == a.tolist()


@both_backends
def test_each_datatype_round_trips_bit_for_bit(any_form: Client, backend: str) -> None:
    """``identity_all`` has an input of each of the 13 datatypes, ordered by number."""
    arrays = [np.stack([ARRAYS[name][1:], ARRAYS[name][:2]]) for name in _DATATYPES_BY_NUMBER]
    inputs = [
        any_form.input(f"INPUT{i}", array, name)
        for i, (array, name) in enumerate(zip(arrays, _DATATYPES_BY_NUMBER, strict=True))
    ]
    result = any_form.infer(f"{backend}.identity_all", inputs)
    for i, array in enumerate(arrays):
        output = result.as_numpy(f"OUTPUT{i}")
        assert output.dtype == array.dtype
        assert output.tolist() == array.tolist()


_DATATYPES_BY_NUMBER = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "FP32", "FP64", "BYTES",
)  # fmt: skip


@both_backends
def test_tensors_without_elements(triton_client: Client, backend: str) -> None:
    for model, datatype, shape in (
        ("identity_fp32", "FP32", (2, 0, 3)),
        ("identity_string", "BYTES", (1, 0)),
        ("identity_nobatch", "INT32", (0,)),
    ):
        array = np.zeros(shape, ARRAYS[datatype].dtype)
        result = triton_client.infer(
            f"{backend}.{model}", [triton_client.input("INPUT0", array, datatype)]
        )
        assert result.as_numpy("OUTPUT0").shape == shape


@both_backends
def test_a_large_tensor(triton_client: Client, backend: str) -> None:
    array = np.random.default_rng(1).random((8, 50_000, 3), np.float32)
    result = triton_client.infer(
        f"{backend}.identity_fp32", [triton_client.input("INPUT0", array, "FP32")]
    )
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), array)


# ---- classes and sequences -------------------------------------------------------------------

SCORES = np.array([[0.1, 0.7, 0.05, 0.15], [4, 3, 2, 1e9]], np.float32)


def classes(result: Any) -> Any:
    rows = result.as_numpy("OUTPUT0")
    return [[x if isinstance(x, str) else x.decode() for x in row] for row in rows]


@both_backends
def test_classes(any_form: Client, backend: str) -> None:
    outputs = [any_form.output("OUTPUT0", classes=2)]
    tensor = any_form.input("INPUT0", SCORES, "FP32")
    result = any_form.infer(f"{backend}.classify", [tensor], outputs=outputs)
    assert classes(result) == [
        ["0.700000:1:dog", '0.150000:3:fish "q"'],
        ['1000000000.000000:3:fish "q"', "4.000000:0:cat"],
    ]


@both_backends
def test_classes_without_labels_and_too_many_classes(triton_client: Client, backend: str) -> None:
    tensor = triton_client.input("INPUT0", np.array([[3, 9, 1, 7]], np.int32), "INT32")
    outputs = [triton_client.output("OUTPUT0", classes=99)]
    result = triton_client.infer(f"{backend}.classify_nolabel", [tensor], outputs=outputs)
    assert classes(result) == [["9:1", "7:3", "3:0", "1:2"]]


@both_backends
def test_classes_together_with_values(triton_client: Client, backend: str) -> None:
    a = np.array([1, 2, 3, 4], np.float32)
    inputs = [triton_client.input(f"INPUT{i}", a, "FP32") for i in range(2)]
    outputs = [triton_client.output("OUTPUT0", classes=1), triton_client.output("OUTPUT1")]
    result = triton_client.infer(f"{backend}.simple_nobatch", inputs, outputs=outputs)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), np.zeros(4))
    top = result.as_numpy("OUTPUT0")
    assert top.shape == (1,)
    assert top[0] in (b'8.000000:3:fish "q"', b"8.000000:3")


@both_backends
def test_classes_of_strings(triton_client: Client, backend: str) -> None:
    tensor = triton_client.input("INPUT0", np.array([[b"a"]], np.object_), "BYTES")
    with fails(INVALID, "class result not available for output 'OUTPUT0'"):
        triton_client.infer(
            f"{backend}.identity_string",
            [tensor],
            outputs=[triton_client.output("OUTPUT0", classes=1)],
        )


@both_backends
def test_sequences(any_form: Client, backend: str) -> None:
    first, second = 2**62 + 1, 77
    totals = []
    for number, sequence, start, end in (
        (5, first, True, False),
        (1, second, True, True),
        (6, first, False, False),
        (7, first, False, True),
    ):
        tensor = any_form.input("INPUT", np.array([[number]], np.int32), "INT32")
        result = any_form.infer(
            f"{backend}.sequence",
            [tensor],
            sequence_id=sequence,
            sequence_start=start,
            sequence_end=end,
        )
        totals.append(result.as_numpy("OUTPUT").item())
    assert totals == [5, 1, 11, 18]


@both_backends
def test_a_sequence_without_a_start_is_rejected_by_the_server(
    triton_client: Client, backend: str
) -> None:
    tensor = triton_client.input("INPUT", ONE, "INT32")
    with fails(INVALID, "must specify a non-zero correlation ID"):
        triton_client.infer(f"{backend}.sequence", [tensor])
    with fails(INVALID, "must specify the START flag"):
        triton_client.infer(f"{backend}.sequence", [tensor], sequence_id=4040404)


@both_backends
def test_a_sequence_named_by_text(triton_client: Client, harness: Harness, backend: str) -> None:
    before = harness.inferences()
    tensor = triton_client.input("INPUT", ONE, "INT32")
    with fails(INVALID, "parameter 'sequence_id' is 'mine': the backend only supports numbers"):
        triton_client.infer(
            f"{backend}.sequence", [tensor], sequence_id="mine", sequence_start=True
        )
    assert harness.inferences() == before


# ---- server metadata ---------------------------------------------------------------------------


@both_backends
def test_model_metadata(any_form: Client, backend: str) -> None:
    metadata = any_form.get_model_metadata(f"{backend}.simple", **any_form.as_json)
    assert metadata["name"] == f"{backend}.simple"
    assert metadata["versions"] == ["1"]
    assert metadata["platform"] == "custom"
    for names, kind in (("inputs", "INPUT"), ("outputs", "OUTPUT")):
        assert [
            (each["name"], each["datatype"], [int(size) for size in each["shape"]])
            for each in metadata[names]
        ] == [(f"{kind}{i}", "INT32", [-1, 16]) for i in range(2)]
    single = any_form.get_model_metadata(f"{backend}.simple_nobatch", "3", **any_form.as_json)
    assert sorted(single["versions"]) == ["1", "3"]
    assert [int(size) for size in single["inputs"][0]["shape"]] == [4]
    text = any_form.get_model_metadata(f"{backend}.identity_string", **any_form.as_json)
    assert text["inputs"][0]["datatype"] == "BYTES"


@both_backends
def test_metadata_of_unknown_models(triton_client: Client, backend: str) -> None:
    with fails(NOT_FOUND, "unknown model 'nosuch'"):
        triton_client.get_model_metadata(f"{backend}.nosuch")
    with fails(NOT_FOUND, "no version 9"):
        triton_client.get_model_metadata(f"{backend}.simple", "9")


@both_backends
@pytest.mark.parametrize("name", ["simple/", "simple/1"])
def test_invalid_model_names_get_the_legacy_error(
    harness: Harness, backend: str, name: str
) -> None:
    """Everything after /api/status/ in the path is the name."""
    response = get(harness.gateway.http, f"/api/status/{backend}.{name}")
    assert response.status == 400
    assert response.headers["nv-status"].startswith(
        f"code: INVALID_ARG msg: \"no status available for unknown model \\'{backend}.{name}\\'\" "
    )


def test_server_metadata_and_health(any_form: Client) -> None:
    assert any_form.get_server_metadata(**any_form.as_json)["name"] == "infergate"
    assert any_form.is_server_live()
    assert any_form.is_server_ready()


@both_backends
def test_model_readiness(any_form: Client, backend: str) -> None:
    assert any_form.is_model_ready(f"{backend}.simple")
    assert any_form.is_model_ready(f"{backend}.simple_nobatch", "1")
    assert not any_form.is_model_ready(f"{backend}.broken")
    assert not any_form.is_model_ready(f"{backend}.simple_nobatch", "2")
    assert not any_form.is_model_ready(f"{backend}.nosuch")


def test_a_server_that_is_not_ready() -> None:
    """Over HTTP, a server that is not ready responds with 400 and NV-Status SUCCESS. The gateway is
    ready if any backend is ready."""
    with (
        started_legacy("--hazard", "not_ready") as server,
        started_infergate(config(server)) as gateway,
    ):
        for form in FORMS[:2]:
            with client_of(form, gateway) as triton_client:
                assert triton_client.is_server_live()
                assert not triton_client.is_server_ready()
                for backend in BACKENDS:  # inferences still succeed
                    result = triton_client.infer(f"{backend}.simple", simple(triton_client))
                    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), sum(pair()))


def test_the_index_lists_the_servers_models(clients: dict[str, Client]) -> None:
    """Models called ``simple*`` are requested over gRPC, and other models over HTTP."""
    index = clients["http"].get_model_repository_index()
    grpc_index = clients["grpc"].get_model_repository_index(as_json=True)["models"]
    entries = {(each["name"], each.get("version", "")): each for each in index}
    assert set(entries) == {(each["name"], each.get("version", "")) for each in grpc_index}
    # Each model has its own name and a name for each pattern that rewrites. "slow" has two more.
    assert len(entries) == 17 * (1 + len(BACKENDS)) + len(BACKENDS)
    for name in ("simple", "classify"):
        assert entries[name, "1"]["state"] == "READY"
    assert {version for name, version in entries if name == "simple_nobatch"} == {"1", "3"}
    assert entries["broken", "1"]["state"] == "UNAVAILABLE"
    assert "Initialization failed" in entries["broken", "1"]["reason"]


# ---- errors ----------------------------------------------------------------------------------


@both_backends
def test_unknown_models_and_versions(any_form: Client, backend: str) -> None:
    with fails(NOT_FOUND, "unknown model"):
        any_form.infer(f"{backend}.nosuch", simple(any_form))
    with fails(NOT_FOUND, "version 99|unknown model"):
        any_form.infer(f"{backend}.simple", simple(any_form), model_version="99")


@both_backends
def test_a_model_that_is_not_ready(any_form: Client, harness: Harness, backend: str) -> None:
    """The gateway checks the readiness before the names of tensors."""
    before = harness.inferences()
    for name in ("WRONG0", "nosuch"):
        with fails(UNAVAILABLE, "Request for unknown model: 'broken' has no available versions"):
            any_form.infer(f"{backend}.broken", [any_form.input(name, pair()[0], "INT32")])
    assert harness.inferences() == before


@both_backends
def test_a_version_that_is_not_a_number(
    triton_client: Client, harness: Harness, backend: str
) -> None:
    before = harness.inferences()
    with fails(INVALID | NOT_FOUND, "version '?new'?"):
        triton_client.infer(f"{backend}.simple", simple(triton_client), model_version="new")
    assert harness.inferences() == before


@both_backends
def test_requests_that_contradict_the_metadata_are_not_sent(
    triton_client: Client, harness: Harness, backend: str
) -> None:
    a, b = pair()
    before = harness.inferences()

    def infer(*arrays: tuple[str, Any, str], outputs: Any = None) -> None:
        inputs = [triton_client.input(name, array, datatype) for name, array, datatype in arrays]
        triton_client.infer(f"{backend}.simple", inputs, outputs=outputs)

    valid_input = ("INPUT1", b, "INT32")
    with fails(INVALID, "tensor 'INPUT0' is FP32, but model 'simple' expects INT32"):
        infer(("INPUT0", a.astype("f4"), "FP32"), valid_input)
    with fails(
        UNIMPLEMENTED, "input 'INPUT0' is BF16, which the protocol trtis-.* does not support"
    ):
        infer(("INPUT0", a.astype(ARRAYS["BF16"].dtype), "BF16"), valid_input)
    with fails(INVALID, "tensor 'INPUT1' has batch size 1, but another input has 2"):
        infer(("INPUT0", np.concatenate([a, a]), "INT32"), valid_input)
    with fails(INVALID, "unexpected inference input 'OTHER' for model 'simple'"):
        infer(("OTHER", a, "INT32"), valid_input)
    with fails(INVALID, "unexpected inference output 'OTHER' for model 'simple'"):
        infer(("INPUT0", a, "INT32"), valid_input, outputs=[triton_client.output("OTHER")])
    with fails(INVALID, r"tensor 'INPUT0': shape \[\] has no batch"):
        infer(("INPUT0", np.array(1, np.int32), "INT32"), valid_input)
    assert harness.inferences() == before


@both_backends
def test_requests_that_the_server_rejects(any_form: Client, backend: str) -> None:
    def infer(*shapes: tuple[int, ...]) -> None:
        inputs = [
            any_form.input(f"INPUT{i}", np.zeros(shape, np.int32), "INT32")
            for i, shape in enumerate(shapes)
        ]
        any_form.infer(f"{backend}.simple", inputs)

    with fails(INVALID, r"unexpected shape for input 'INPUT0'.* Expected \[16\], got \[4\]"):
        infer((1, 4), (1, 4))
    with fails(INVALID, r"unexpected shape for input 'INPUT1'.* Expected \[16\], got \[4,4\]"):
        infer((1, 16), (1, 4, 4))
    with fails(INVALID, "expected 2 inputs but got 1 inputs for model 'simple'"):
        infer((1, 16))
    with fails(INVALID, "batch-size must be <= 8 for 'simple'"):
        infer((9, 16), (9, 16))
    with fails(INVALID, "batch-size must be >= 1 for 'simple'"):
        infer((0, 16), (0, 16))


@both_backends
def test_a_failing_model(triton_client: Client, backend: str) -> None:
    with fails(INTERNAL, r"payload error for 'failing_0_0_cpu': \(7\) deliberate failure"):
        triton_client.infer(f"{backend}.failing", [triton_client.input("INPUT0", ONE, "INT32")])


@both_backends
def test_a_header_that_is_too_long_for_the_server(
    triton_client: Client, harness: Harness, backend: str
) -> None:
    """Over HTTP, the gateway rejects such a header before sending. gRPC has no such limit."""
    array = np.ones((1, 2, 3), np.float32)
    inputs = [triton_client.input(f"INPUT{name}", array, "FP32") for name in LONG_NAMES]
    before = harness.inferences()
    if backend == "grpc":
        result = triton_client.infer("grpc.identity_long", inputs)
        for name in LONG_NAMES:
            np.testing.assert_array_equal(result.as_numpy(f"OUTPUT{name}"), array)
        return
    with fails(TOO_LARGE, r"take 10\d\d\d bytes of the header NV-InferRequest.* accept 8190"):
        triton_client.infer("http.identity_long", inputs)
    assert harness.inferences() == before
    triton_client.infer("http.simple", simple(triton_client))


@both_backends
def test_a_model_that_takes_too_long(triton_client: Client, harness: Harness, backend: str) -> None:
    tensor = triton_client.input("INPUT0", ONE, "INT32")
    triton_client.get_model_metadata(f"{backend}-hurried")
    before = harness.inferences()
    with fails(TIMEOUT, f"backend '{backend}'"):
        triton_client.infer(f"{backend}-hurried", [tensor])
    assert harness.inferences() == before + 1
    result = triton_client.infer(f"{backend}.slow", [tensor])
    assert result.as_numpy("OUTPUT0").tolist() == [[1]]


@both_backends
def test_a_clients_own_deadline(clients: dict[str, Client], backend: str) -> None:
    triton_client = clients["grpc"]
    tensor = triton_client.input("INPUT0", ONE, "INT32")
    with fails(TIMEOUT, "."):
        triton_client.infer(f"{backend}.slow", [tensor], client_timeout=0.1)


# ---- requesting and caching metadata ---------------------------------------------------------


@both_backends
def test_concurrent_callers_share_one_metadata_request(harness: Harness, backend: str) -> None:
    barrier = threading.Barrier(8)
    inferences, metadata_requests = harness.inferences(), harness.metadata_requests()

    def send_request(number: int) -> None:
        with client_of(FORMS[number % 2], harness.gateway) as triton_client:
            pairs = zip("AB", pair(), strict=True)
            inputs = [triton_client.input(name, array, "INT32") for name, array in pairs]
            barrier.wait()
            for _ in range(5):
                triton_client.infer(f"{backend}.ensemble_simple", inputs)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(send_request, range(8)))
    assert harness.inferences() == inferences + 40
    assert harness.metadata_requests() == metadata_requests + 1


@both_backends
def test_unknown_models_are_not_cached(
    harness: Harness, clients: dict[str, Client], backend: str
) -> None:
    counts = [harness.metadata_requests()]
    for _ in range(3):
        with fails(NOT_FOUND, "unknown model"):
            clients["http"].infer(f"{backend}.nosuch", simple(clients["http"]))
        counts.append(harness.metadata_requests())
    assert all(after > before for before, after in pairwise(counts))


@pytest.fixture(scope="module")
def changing() -> Iterator[Harness]:
    with (
        started_legacy("--hazard", "explicit", "--hazard", "changes") as server,
        started_infergate(config(server)) as gateway,
    ):
        yield Harness(server, gateway)


def load(harness: Harness, model: str) -> None:
    """Load a model, which expects FP32 and one more element after the second load."""
    assert post(harness.server.http, f"/api/modelcontrol/load/{model}", b"").status == 200


def test_metadata_of_a_replaced_model_is_requested_again(changing: Harness) -> None:
    """Requests that fit the new model are served; other requests get an error."""
    longer = np.arange(17, dtype=np.float32).reshape(1, 17)
    with client_of("http", changing.gateway) as triton_client:
        new_inputs = [triton_client.input(f"INPUT{i}", longer, "FP32") for i in range(2)]

        def serves_new_model(backend: str) -> bool:
            try:
                result = triton_client.infer(f"{backend}.simple", new_inputs)
            except InferenceServerException as error:
                rejected.add(error.message())
                return False
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), longer * 2)
            return True

        rejected: set[str] = set()
        for backend in BACKENDS:
            with fails(NOT_FOUND, "unknown model"):
                triton_client.infer(f"{backend}.simple", simple(triton_client))
        load(changing, "simple")
        for backend in BACKENDS:
            triton_client.infer(f"{backend}.simple", simple(triton_client))
        load(changing, "simple")
        until(
            lambda: all(serves_new_model(backend) for backend in BACKENDS),
            "the gateway has the new metadata",
        )
        assert rejected <= {"tensor 'INPUT0' is FP32, but model 'simple' expects INT32"}
        requests_before = changing.metadata_requests()
        for backend in BACKENDS:
            with fails(INVALID, "tensor 'INPUT0' is INT32, but model 'simple' expects FP32"):
                triton_client.infer(f"{backend}.simple", simple(triton_client))
            assert serves_new_model(backend)
        # Metadata is requested at most once a second.
        assert changing.metadata_requests() <= requests_before + len(BACKENDS)


def test_a_model_replaced_by_one_with_another_shape(changing: Harness) -> None:
    """Only the server can report the error, because the gateway's cached metadata may be
    outdated."""
    with client_of("grpc", changing.gateway) as triton_client:

        def infer(backend: str, size: int) -> Any:
            array = np.ones((1, size), np.float32)
            tensor = triton_client.input("INPUT0", array, "FP32")
            return (
                triton_client.infer(f"{backend}.reshape_scalar", [tensor]).as_numpy("OUTPUT0").shape
            )

        load(changing, "reshape_scalar")
        for backend in BACKENDS:
            assert infer(backend, 1) == (1, 1)
        requests_before = changing.metadata_requests()
        load(changing, "reshape_scalar")
        for backend in BACKENDS:
            with fails(INVALID, r"Expected \[2\], got \[1\]"):
                infer(backend, 1)

        def is_refreshed() -> bool:
            assert all(infer(backend, 2) == (1, 2) for backend in BACKENDS)
            return changing.metadata_requests() == requests_before + 2

        until(is_refreshed, "the gateway requests the metadata of both backends again")


def test_a_probe_finds_the_models_of_a_legacy_server_and_its_requests_run(
    harness: Harness, tmp_path: Path
) -> None:
    file, server = tmp_path / "routes.yaml", harness.server
    document = probe(server.http, server.grpc, "--write", str(file))
    assert protocols_of(document) == {server.http: {"trtis-http"}, server.grpc: {"trtis-grpc"}}
    [probed] = document["servers"]
    assert probed["server"] == "TensorRT Inference Server"
    model = models_of(document)["simple"]
    assert model["max_batch_size"] == 8
    assert model["inputs"][0] == {"name": "INPUT0", "datatype": "INT32", "shape": [-1, 16]}
    with serve_config(file):
        for response in run_requests(model):
            assert response["outputs"][0]["shape"] == [1, 16]
