"""Real tritonclient → infergate → a legacy server that knows nothing of V2.

The gateway serves two names for each of the server's models: ``http.M`` reaches M by the legacy
HTTP API, ``grpc.M`` by its gRPC service. The server is as v1.15.0, whose outputs come in an order
of their own and which closes connections where v1.9.0 says what is wrong.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass
from http.client import HTTPConnection
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from e2e.clients import ARRAYS, FORMS, Client, client
from e2e.running import Infergate, started_infergate
from faults.peer import post
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
BAD, MISSING = {"400", "StatusCode.INVALID_ARGUMENT"}, {"404", "StatusCode.NOT_FOUND"}
LATE, LARGE = {"504", "StatusCode.DEADLINE_EXCEEDED"}, {"413", "StatusCode.RESOURCE_EXHAUSTED"}
AWAY = {"503", "StatusCode.UNAVAILABLE"}
LACKING = {"501", "StatusCode.UNIMPLEMENTED"}
BROKEN = {"500", "StatusCode.INTERNAL"}

ONE = np.array([[1]], np.int32)

both_backends = pytest.mark.parametrize("backend", BACKENDS)


@dataclass(frozen=True)
class Site:
    server: LegacyServer
    gateway: Infergate

    def calls(self, *parts: str) -> int:
        """How often the server was asked for something that holds one of ``parts``."""
        asked = [str(told.get("target") or told.get("rpc")) for told in self.server.asked()]
        return sum(any(part in each for part in parts) for each in asked)

    def inferences(self) -> int:
        return self.calls("/api/infer/", "/Infer")

    def descriptions(self) -> int:
        return self.calls("/api/status/", "/Status")


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with (
        started_legacy("--level", "1.15", "--hazard", "long_names") as server,
        started_infergate(config(server)) as gateway,
    ):
        yield Site(server, gateway)


def config(server: LegacyServer) -> str:
    return CONFIG.format(http=server.http, grpc=server.grpc)


@pytest.fixture(scope="module")
def clients(site: Site) -> Iterator[dict[str, Client]]:
    with ExitStack() as stack:
        yield {form: stack.enter_context(client_of(form, site.gateway)) for form in FORMS}


def client_of(form: str, gateway: Infergate) -> AbstractContextManager[Client]:
    return client(form, gateway.http, gateway.grpc)


@pytest.fixture(params=FORMS[:2])
def asked(request: pytest.FixtureRequest, clients: dict[str, Client]) -> Client:
    return clients[request.param]


@pytest.fixture(params=FORMS)
def any_form(request: pytest.FixtureRequest, clients: dict[str, Client]) -> Client:
    return clients[request.param]


def pair(batch: int = 1, datatype: str = "INT32") -> tuple[Any, Any]:
    dtype = ARRAYS[datatype].dtype
    left = np.arange(16 * batch).reshape(batch, 16).astype(dtype)
    return left, np.ones_like(left)


def simple(asked: Client, batch: int = 1) -> list[Any]:
    return [asked.input(f"INPUT{i}", each, "INT32") for i, each in enumerate(pair(batch))]


def told(answer: Any, name: str) -> Any:
    response = answer.get_response()
    return response[name] if isinstance(response, dict) else getattr(response, name)


def fails(statuses: set[str], words: str) -> Any:
    return pytest.raises(
        InferenceServerException, match=words, check=lambda e: e.status() in statuses
    )


# ---- tensors ---------------------------------------------------------------------------------


@both_backends
@pytest.mark.parametrize("batch", [1, 2, 8])
def test_simple(any_form: Client, backend: str, batch: int) -> None:
    a, b = pair(batch)
    answer = any_form.infer(f"{backend}.simple", simple(any_form, batch), request_id="the id")
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), a + b)
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT1"), a - b)
    assert told(answer, "model_name") == f"{backend}.simple"
    assert told(answer, "model_version") == "1"
    assert told(answer, "id") == "the id"
    assert [each["name"] if any_form.http else each.name for each in told(answer, "outputs")] == [
        "OUTPUT0",
        "OUTPUT1",
    ]


@both_backends
def test_inputs_in_any_order(asked: Client, backend: str) -> None:
    a, b = pair()
    answer = asked.infer(f"{backend}.simple", simple(asked)[::-1])
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT1"), a - b)


@both_backends
@pytest.mark.parametrize("names", [["OUTPUT1"], ["OUTPUT0"], ["OUTPUT1", "OUTPUT0"]])
def test_requested_outputs_in_the_order_asked(
    asked: Client, backend: str, names: list[str]
) -> None:
    outputs = [asked.output(name) for name in names]
    answer = asked.infer(f"{backend}.simple", simple(asked), outputs=outputs)
    given = told(answer, "outputs")
    assert [each["name"] if asked.http else each.name for each in given] == names
    a, b = pair()
    for name, expected in (("OUTPUT0", a + b), ("OUTPUT1", a - b)):
        if name in names:
            np.testing.assert_array_equal(answer.as_numpy(name), expected)


@both_backends
def test_a_model_without_batches_and_its_versions(asked: Client, backend: str) -> None:
    a, b = np.array([1, 2.5, -3, 4], np.float32), np.array([2, 2.5, -3, 4], np.float32)
    inputs = [asked.input(f"INPUT{i}", each, "FP32") for i, each in enumerate((a, b))]
    for version, real in (("", "3"), ("1", "1"), ("3", "3")):
        answer = asked.infer(f"{backend}.simple_nobatch", inputs, model_version=version)
        np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), a + b)
        assert answer.as_numpy("OUTPUT0").shape == (4,)
        assert told(answer, "model_version") == real


@both_backends
def test_strings_of_any_bytes(asked: Client, backend: str) -> None:
    array = np.array([[b"a\0b", b"", b"\xff\xfe"], [b"\x80", "é".encode(), b'"\\\n']], np.object_)
    answer = asked.infer(f"{backend}.identity_string", [asked.input("INPUT0", array, "BYTES")])
    assert answer.as_numpy("OUTPUT0").tolist() == array.tolist()


@both_backends
def test_strings_as_json(clients: dict[str, Client], backend: str) -> None:
    over_http = clients["http"]
    array = np.array([[b"a\0b", "é".encode()]], np.object_)
    tensor = over_http.input("INPUT0", array, "BYTES", binary=False)
    outputs = [over_http.output("OUTPUT0", binary=False)]
    answer = over_http.infer(f"{backend}.identity_string", [tensor], outputs=outputs)
    assert answer.as_numpy("OUTPUT0").tolist() == [["a\0b", "é"]]


@both_backends
def test_strings_that_spell_numbers(asked: Client, backend: str) -> None:
    """The test server gives each INPUT back as the OUTPUT of its number."""
    a = np.array([[str(i).encode() for i in range(16)]] * 2, np.object_)
    inputs = [asked.input(f"INPUT{i}", a, "BYTES") for i in range(2)]
    answer = asked.infer(f"{backend}.simple_string", inputs)
    assert answer.as_numpy("OUTPUT1").tolist() == a.tolist()


@both_backends
def test_each_datatype_comes_back_bit_for_bit(any_form: Client, backend: str) -> None:
    """``identity_all`` has one input of each of the 13, in the order of their numbers."""
    arrays = [np.stack([ARRAYS[name][1:], ARRAYS[name][:2]]) for name in _IN_ORDER]
    inputs = [
        any_form.input(f"INPUT{i}", array, name)
        for i, (array, name) in enumerate(zip(arrays, _IN_ORDER, strict=True))
    ]
    answer = any_form.infer(f"{backend}.identity_all", inputs)
    for i, array in enumerate(arrays):
        result = answer.as_numpy(f"OUTPUT{i}")
        assert result.dtype == array.dtype
        assert result.tolist() == array.tolist()


_IN_ORDER = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "FP32", "FP64", "BYTES",
)  # fmt: skip


@both_backends
def test_no_elements(asked: Client, backend: str) -> None:
    for model, datatype, shape in (
        ("identity_fp32", "FP32", (2, 0, 3)),
        ("identity_string", "BYTES", (1, 0)),
        ("identity_nobatch", "INT32", (0,)),
    ):
        array = np.zeros(shape, ARRAYS[datatype].dtype)
        answer = asked.infer(f"{backend}.{model}", [asked.input("INPUT0", array, datatype)])
        assert answer.as_numpy("OUTPUT0").shape == shape


@both_backends
def test_a_large_tensor(asked: Client, backend: str) -> None:
    array = np.random.default_rng(1).random((8, 50_000, 3), np.float32)
    answer = asked.infer(f"{backend}.identity_fp32", [asked.input("INPUT0", array, "FP32")])
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), array)


# ---- classes and sequences -------------------------------------------------------------------

SCORES = np.array([[0.1, 0.7, 0.05, 0.15], [4, 3, 2, 1e9]], np.float32)


def classes(answer: Any) -> Any:
    told = answer.as_numpy("OUTPUT0")
    return [[x if isinstance(x, str) else x.decode() for x in row] for row in told]


@both_backends
def test_classes(any_form: Client, backend: str) -> None:
    outputs = [any_form.output("OUTPUT0", classes=2)]
    tensor = any_form.input("INPUT0", SCORES, "FP32")
    answer = any_form.infer(f"{backend}.classify", [tensor], outputs=outputs)
    assert classes(answer) == [
        ["0.700000:1:dog", '0.150000:3:fish "q"'],
        ['1000000000.000000:3:fish "q"', "4.000000:0:cat"],
    ]


@both_backends
def test_classes_without_labels_and_more_than_there_are(asked: Client, backend: str) -> None:
    tensor = asked.input("INPUT0", np.array([[3, 9, 1, 7]], np.int32), "INT32")
    outputs = [asked.output("OUTPUT0", classes=99)]
    answer = asked.infer(f"{backend}.classify_nolabel", [tensor], outputs=outputs)
    assert classes(answer) == [["9:1", "7:3", "3:0", "1:2"]]


@both_backends
def test_classes_beside_values(asked: Client, backend: str) -> None:
    a = np.array([1, 2, 3, 4], np.float32)
    inputs = [asked.input(f"INPUT{i}", a, "FP32") for i in range(2)]
    outputs = [asked.output("OUTPUT0", classes=1), asked.output("OUTPUT1")]
    answer = asked.infer(f"{backend}.simple_nobatch", inputs, outputs=outputs)
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT1"), np.zeros(4))
    top = answer.as_numpy("OUTPUT0")
    assert top.shape == (1,)
    assert top[0] in (b'8.000000:3:fish "q"', b"8.000000:3")


@both_backends
def test_classes_of_strings(asked: Client, backend: str) -> None:
    tensor = asked.input("INPUT0", np.array([[b"a"]], np.object_), "BYTES")
    with fails(BAD, "class result not available for output 'OUTPUT0'"):
        asked.infer(
            f"{backend}.identity_string", [tensor], outputs=[asked.output("OUTPUT0", classes=1)]
        )


@both_backends
def test_sequences(any_form: Client, backend: str) -> None:
    one, other = 2**62 + 1, 77
    totals = []
    for number, sequence, start, end in (
        (5, one, True, False),
        (1, other, True, True),
        (6, one, False, False),
        (7, one, False, True),
    ):
        tensor = any_form.input("INPUT", np.array([[number]], np.int32), "INT32")
        answer = any_form.infer(
            f"{backend}.sequence",
            [tensor],
            sequence_id=sequence,
            sequence_start=start,
            sequence_end=end,
        )
        totals.append(answer.as_numpy("OUTPUT").item())
    assert totals == [5, 1, 11, 18]


@both_backends
def test_sequences_that_do_not_begin_are_the_servers_to_refuse(asked: Client, backend: str) -> None:
    tensor = asked.input("INPUT", ONE, "INT32")
    with fails(BAD, "must specify a non-zero correlation ID"):
        asked.infer(f"{backend}.sequence", [tensor])
    with fails(BAD, "must specify the START flag"):
        asked.infer(f"{backend}.sequence", [tensor], sequence_id=4040404)


@both_backends
def test_a_sequence_named_by_text(asked: Client, site: Site, backend: str) -> None:
    before = site.inferences()
    tensor = asked.input("INPUT", ONE, "INT32")
    with fails(BAD, "parameter 'sequence_id' is 'mine': the backend only supports numbers"):
        asked.infer(f"{backend}.sequence", [tensor], sequence_id="mine", sequence_start=True)
    assert site.inferences() == before


# ---- what the server tells of itself ---------------------------------------------------------


@both_backends
def test_model_metadata(any_form: Client, backend: str) -> None:
    extra: dict[str, Any] = {} if any_form.http else {"as_json": True}
    described = any_form.get_model_metadata(f"{backend}.simple", **extra)
    assert described["name"] == f"{backend}.simple"
    assert described["versions"] == ["1"]
    assert described["platform"] == "custom"
    for names, kind in (("inputs", "INPUT"), ("outputs", "OUTPUT")):
        assert [
            (each["name"], each["datatype"], [int(size) for size in each["shape"]])
            for each in described[names]
        ] == [(f"{kind}{i}", "INT32", [-1, 16]) for i in range(2)]
    single = any_form.get_model_metadata(f"{backend}.simple_nobatch", "3", **extra)
    assert sorted(single["versions"]) == ["1", "3"]
    assert [int(size) for size in single["inputs"][0]["shape"]] == [4]
    text = any_form.get_model_metadata(f"{backend}.identity_string", **extra)
    assert text["inputs"][0]["datatype"] == "BYTES"


@both_backends
def test_metadata_of_what_is_not_there(asked: Client, backend: str) -> None:
    with fails(MISSING, "unknown model 'nosuch'"):
        asked.get_model_metadata(f"{backend}.nosuch")
    with fails(MISSING, "no version 9"):
        asked.get_model_metadata(f"{backend}.simple", "9")


@both_backends
@pytest.mark.parametrize("name", ["simple/", "simple/1"])
def test_names_that_are_no_models_in_the_old_words(site: Site, backend: str, name: str) -> None:
    """All after /api/status/ is the name."""
    connection = HTTPConnection(site.gateway.http)
    with closing(connection):
        connection.request("GET", f"/api/status/{backend}.{name}")
        answer = connection.getresponse()
        assert answer.status == 400
        assert answer.headers["NV-Status"].startswith(
            'code: INVALID_ARG msg: "no status available for unknown model '
            f"\\'{backend}.{name}\\'\" "
        )


def test_server_metadata_and_health(any_form: Client) -> None:
    extra: dict[str, Any] = {} if any_form.http else {"as_json": True}
    assert any_form.get_server_metadata(**extra)["name"] == "infergate"
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
    """HTTP says so with 400 and NV-Status SUCCESS. By one of the backends being ready, the gateway
    were ready too."""
    with (
        started_legacy("--hazard", "not_ready") as server,
        started_infergate(config(server)) as gateway,
    ):
        for form in FORMS[:2]:
            with client_of(form, gateway) as asked:
                assert asked.is_server_live()
                assert not asked.is_server_ready()
                for backend in BACKENDS:  # not ready, and yet they answer
                    answer = asked.infer(f"{backend}.simple", simple(asked))
                    np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), sum(pair()))


def test_the_index_is_the_servers(clients: dict[str, Client]) -> None:
    """Those called ``simple*`` are asked for over gRPC, the others over HTTP."""
    listed = clients["http"].get_model_repository_index()
    same = clients["grpc"].get_model_repository_index(as_json=True)["models"]
    of = {(each["name"], each.get("version", "")): each for each in listed}
    assert set(of) == {(each["name"], each.get("version", "")) for each in same}
    # By their own names and by those of each pattern that rewrites; and the routes to one model.
    assert len(of) == 17 * (1 + len(BACKENDS)) + len(BACKENDS)
    for name in ("simple", "classify"):
        assert of[name, "1"]["state"] == "READY"
    assert {version for name, version in of if name == "simple_nobatch"} == {"1", "3"}
    assert of["broken", "1"]["state"] == "UNAVAILABLE"
    assert "Initialization failed" in of["broken", "1"]["reason"]


# ---- errors ----------------------------------------------------------------------------------


@both_backends
def test_unknown_models_and_versions(any_form: Client, backend: str) -> None:
    with fails(MISSING, "unknown model"):
        any_form.infer(f"{backend}.nosuch", simple(any_form))
    with fails(MISSING, "version 99|unknown model"):
        any_form.infer(f"{backend}.simple", simple(any_form), model_version="99")


@both_backends
def test_a_model_that_is_not_ready(any_form: Client, site: Site, backend: str) -> None:
    """Which is said before its tensors are looked at."""
    before = site.inferences()
    for name in ("WRONG0", "nosuch"):
        with fails(AWAY, "Request for unknown model: 'broken' has no available versions"):
            any_form.infer(f"{backend}.broken", [any_form.input(name, pair()[0], "INT32")])
    assert site.inferences() == before


@both_backends
def test_a_version_that_is_no_number(asked: Client, site: Site, backend: str) -> None:
    before = site.inferences()
    with fails(BAD | MISSING, "version '?new'?"):
        asked.infer(f"{backend}.simple", simple(asked), model_version="new")
    assert site.inferences() == before


@both_backends
def test_what_contradicts_the_metadata_is_not_sent(asked: Client, site: Site, backend: str) -> None:
    a, b = pair()
    before = site.inferences()

    def infer(*inputs: tuple[str, Any, str], outputs: Any = None) -> None:
        given = [asked.input(name, array, datatype) for name, array, datatype in inputs]
        asked.infer(f"{backend}.simple", given, outputs=outputs)

    good = ("INPUT1", b, "INT32")
    with fails(BAD, "tensor 'INPUT0' is FP32, model 'simple' expects INT32"):
        infer(("INPUT0", a.astype("f4"), "FP32"), good)
    with fails(LACKING, "input 'INPUT0' is BF16, which the protocol trtis-.* cannot carry"):
        infer(("INPUT0", a.astype(ARRAYS["BF16"].dtype), "BF16"), good)
    with fails(BAD, "tensor 'INPUT1': batch size 1, another input has 2"):
        infer(("INPUT0", np.concatenate([a, a]), "INT32"), good)
    with fails(BAD, "unexpected inference input 'OTHER' for model 'simple'"):
        infer(("OTHER", a, "INT32"), good)
    with fails(BAD, "unexpected inference output 'OTHER' for model 'simple'"):
        infer(("INPUT0", a, "INT32"), good, outputs=[asked.output("OTHER")])
    with fails(BAD, r"tensor 'INPUT0': shape \[\] has no batch"):
        infer(("INPUT0", np.array(1, np.int32), "INT32"), good)
    assert site.inferences() == before


@both_backends
def test_what_the_server_refuses(any_form: Client, backend: str) -> None:
    def infer(*shapes: tuple[int, ...]) -> None:
        given = [
            any_form.input(f"INPUT{i}", np.zeros(shape, np.int32), "INT32")
            for i, shape in enumerate(shapes)
        ]
        any_form.infer(f"{backend}.simple", given)

    with fails(BAD, r"unexpected shape for input 'INPUT0'.* Expected \[16\], got \[4\]"):
        infer((1, 4), (1, 4))
    with fails(BAD, r"unexpected shape for input 'INPUT1'.* Expected \[16\], got \[4,4\]"):
        infer((1, 16), (1, 4, 4))
    with fails(BAD, "expected 2 inputs but got 1 inputs for model 'simple'"):
        infer((1, 16))
    with fails(BAD, "batch-size must be <= 8 for 'simple'"):
        infer((9, 16), (9, 16))
    with fails(BAD, "batch-size must be >= 1 for 'simple'"):
        infer((0, 16), (0, 16))


@both_backends
def test_a_failing_model(asked: Client, backend: str) -> None:
    with fails(BROKEN, r"payload error for 'failing_0_0_cpu': \(7\) deliberate failure"):
        asked.infer(f"{backend}.failing", [asked.input("INPUT0", ONE, "INT32")])


@both_backends
def test_a_header_that_the_server_would_not_take(asked: Client, site: Site, backend: str) -> None:
    """Refused before it is sent over HTTP; gRPC has no such limit."""
    array = np.ones((1, 2, 3), np.float32)
    inputs = [asked.input(f"INPUT{name}", array, "FP32") for name in LONG_NAMES]
    before = site.inferences()
    if backend == "grpc":
        answer = asked.infer("grpc.identity_long", inputs)
        for name in LONG_NAMES:
            np.testing.assert_array_equal(answer.as_numpy(f"OUTPUT{name}"), array)
        return
    with fails(LARGE, r"take 10\d\d\d bytes of the header NV-InferRequest.* accept 8190"):
        asked.infer("http.identity_long", inputs)
    assert site.inferences() == before
    asked.infer("http.simple", simple(asked))


@both_backends
def test_a_model_that_takes_too_long(asked: Client, site: Site, backend: str) -> None:
    """The client is told once, and the server asked once."""
    tensor = asked.input("INPUT0", ONE, "INT32")
    asked.get_model_metadata(f"{backend}-hurried")
    before = site.inferences()
    with fails(LATE, f"backend '{backend}'"):
        asked.infer(f"{backend}-hurried", [tensor])
    assert site.inferences() == before + 1
    answer = asked.infer(f"{backend}.slow", [tensor])
    assert answer.as_numpy("OUTPUT0").tolist() == [[1]]


@both_backends
def test_a_clients_own_deadline(clients: dict[str, Client], backend: str) -> None:
    asked = clients["grpc"]
    tensor = asked.input("INPUT0", ONE, "INT32")
    with fails(LATE, "."):
        asked.infer(f"{backend}.slow", [tensor], client_timeout=0.1)


# ---- metadata, asked for and remembered ------------------------------------------------------


@both_backends
def test_many_ask_and_the_server_is_asked_once(site: Site, backend: str) -> None:
    together = threading.Barrier(8)
    inferences, descriptions = site.inferences(), site.descriptions()

    def ask(number: int) -> None:
        with client_of(FORMS[number % 2], site.gateway) as asked:
            given = zip("AB", pair(), strict=True)
            inputs = [asked.input(name, array, "INT32") for name, array in given]
            together.wait()
            for _ in range(5):
                asked.infer(f"{backend}.ensemble_simple", inputs)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(8)))
    assert site.inferences() == inferences + 40
    assert site.descriptions() == descriptions + 1


@both_backends
def test_unknown_models_are_not_remembered(
    site: Site, clients: dict[str, Client], backend: str
) -> None:
    counts = [site.descriptions()]
    for _ in range(3):
        with fails(MISSING, "unknown model"):
            clients["http"].infer(f"{backend}.nosuch", simple(clients["http"]))
        counts.append(site.descriptions())
    assert all(after > before for before, after in pairwise(counts))


@pytest.fixture(scope="module")
def changing() -> Iterator[Site]:
    with (
        started_legacy("--hazard", "explicit", "--hazard", "changes") as server,
        started_infergate(config(server)) as gateway,
    ):
        yield Site(server, gateway)


def load(site: Site, model: str) -> None:
    """Loaded again it takes FP32, and one more element."""
    assert post(site.server.http, f"/api/modelcontrol/load/{model}", b"").status == 200


def test_a_model_that_was_replaced(changing: Site) -> None:
    """A request that fits the new one is served, and one that does not is refused in its words."""
    longer = np.arange(17, dtype=np.float32).reshape(1, 17)
    with client_of("http", changing.gateway) as asked:
        new = [asked.input(f"INPUT{i}", longer, "FP32") for i in range(2)]

        def served(backend: str) -> bool:
            """What is a second old is asked for again."""
            try:
                answer = asked.infer(f"{backend}.simple", new)
            except InferenceServerException as error:
                refusals.add(error.message())
                return False
            np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), longer * 2)
            return True

        refusals: set[str] = set()
        for backend in BACKENDS:
            with fails(MISSING, "unknown model"):
                asked.infer(f"{backend}.simple", simple(asked))
        load(changing, "simple")
        for backend in BACKENDS:
            asked.infer(f"{backend}.simple", simple(asked))
        load(changing, "simple")
        until(lambda: all(served(backend) for backend in BACKENDS), "the new model is known")
        assert refusals <= {"tensor 'INPUT0' is FP32, model 'simple' expects INT32"}
        known = changing.descriptions()
        for backend in BACKENDS:
            with fails(BAD, "tensor 'INPUT0' is INT32, model 'simple' expects FP32"):
                asked.infer(f"{backend}.simple", simple(asked))
            assert served(backend)
        assert changing.descriptions() <= known + len(BACKENDS)  # asked once a second at most


def test_a_model_that_was_replaced_by_one_of_another_shape(changing: Site) -> None:
    """Which only the server can tell: the gateway doubts what it knows."""
    with client_of("grpc", changing.gateway) as asked:

        def infer(backend: str, size: int) -> Any:
            array = np.ones((1, size), np.float32)
            tensor = asked.input("INPUT0", array, "FP32")
            return asked.infer(f"{backend}.reshape_scalar", [tensor]).as_numpy("OUTPUT0").shape

        load(changing, "reshape_scalar")
        for backend in BACKENDS:
            assert infer(backend, 1) == (1, 1)
        known = changing.descriptions()
        load(changing, "reshape_scalar")
        for backend in BACKENDS:
            with fails(BAD, r"Expected \[2\], got \[1\]"):
                infer(backend, 1)

        def learnt() -> bool:
            assert all(infer(backend, 2) == (1, 2) for backend in BACKENDS)
            return changing.descriptions() == known + 2

        until(learnt, "both ask about the model again")
