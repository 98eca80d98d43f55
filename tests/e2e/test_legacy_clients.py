"""Tests handwritten clients for the legacy API with infergate, which serves the models of a real
Triton and the embedded models.

``rest.M`` is Triton's model M over V2 REST, ``grpc.M`` is the same model over V2 gRPC, and ``M`` is
an embedded model. ``peers.test_legacy_client`` tests NVIDIA's own client."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf import text_format

from e2e.clients import ARRAYS
from e2e.running import Infergate, started_infergate
from faults.legacy import OLD, OLD_INFER, code_name, old_message
from faults.peer import get, post
from faults.rpc import call, channel
from faults.watch import SECONDS
from legacy.messages import SERVICE
from peers.models.triton.models import LABELS
from peers.support.triton import Triton

CONFIG = """
backends:
  rest: {{protocol: v2-rest, endpoints: ["http://{http}"]}}
  grpc: {{protocol: v2-grpc, endpoints: ["grpc://{grpc}"]}}
  embedded: {{protocol: builtin}}
routes:
  - {{model: '/rest\\.(.+)/', backend: rest, rewrite: {{model: '\\1'}}}}
  - {{model: '/grpc\\.(.+)/', backend: grpc, rewrite: {{model: '\\1'}}}}
  - {{model: '*', backend: embedded}}
"""
TYPE_INT32 = 8
TRANSPORTS = ("http", "grpc")
TRITON_PREFIXES = ("rest.", "grpc.")
ALL_PREFIXES = (*TRITON_PREFIXES, "")

with_triton = pytest.mark.parametrize("prefix", TRITON_PREFIXES)
with_every_backend = pytest.mark.parametrize("prefix", ALL_PREFIXES)


@dataclass(frozen=True)
class Outcome:
    """The outcome of an inference. ``raw`` has the bytes of each output, or none for classes."""

    code: str
    error: str
    header: Any
    raw: list[bytes]


@dataclass(frozen=True)
class LegacyClient:
    transport: str
    http: str
    channel: grpc.Channel

    def infer(self, model: str, header: str, *raw: bytes, version: int = -1) -> Outcome:
        if self.transport == "grpc":
            message = old_message(model, version=version, header=header, raw=raw)
            result = OLD.InferResponse.FromString(call(self.channel, message, OLD_INFER).message)
            status = result.request_status
            return Outcome(code_name(status), status.msg, result.meta_data, list(result.raw_output))
        path = f"/api/infer/{model}" + (f"/{version}" if version >= 0 else "") + "?format=binary"
        http_response = post(self.http, path, b"".join(raw), {"NV-InferRequest": header})
        status = text_format.Parse(http_response.headers["nv-status"], OLD.RequestStatus())
        result = text_format.Parse(
            http_response.headers["nv-inferresponse"], OLD.InferResponseHeader()
        )
        if http_response.status != 200:
            return Outcome(code_name(status), status.msg, result, [])
        rest, outputs = http_response.body, []
        for output in result.output:
            size = output.raw.batch_byte_size
            outputs.append(rest[:size])
            rest = rest[size:]
        assert OLD.InferResponseHeader.FromString(rest) == result
        return Outcome(code_name(status), status.msg, result, outputs)

    def status(self, model: str = "") -> tuple[Any, Any]:
        """Return RequestStatus and ServerStatus."""
        if self.transport == "grpc":
            request = OLD.StatusRequest(model_name=model).SerializeToString()
            response = OLD.StatusResponse.FromString(
                call(self.channel, request, f"/{SERVICE}/Status").message
            )
            return response.request_status, response.server_status
        path = f"/api/status/{model}" if model else "/api/status"
        http_response = get(self.http, f"{path}?format=binary")
        status = text_format.Parse(http_response.headers["nv-status"], OLD.RequestStatus())
        return status, OLD.ServerStatus.FromString(http_response.body)


@pytest.fixture(scope="module")
def gateway(triton: Triton) -> Iterator[Infergate]:
    with started_infergate(CONFIG.format(http=triton.http, grpc=triton.grpc)) as running:
        yield running


@pytest.fixture(scope="module")
def rpc(gateway: Infergate) -> Iterator[grpc.Channel]:
    with channel(gateway.grpc) as rpc_channel:
        yield rpc_channel


@pytest.fixture(params=TRANSPORTS)
def old(request: pytest.FixtureRequest, gateway: Infergate, rpc: grpc.Channel) -> LegacyClient:
    return LegacyClient(request.param, gateway.http, rpc)


def request_header(batch: int, *outputs: str, size: int = 0, dims: int = 16) -> str:
    """Return a header with two inputs. ``size`` is their size in bytes, which strings require."""
    size_field = f"batch_byte_size: {size}" if size else ""
    inputs = " ".join(f'input {{ name: "INPUT{i}" dims: {dims} {size_field} }}' for i in range(2))
    return f"batch_size: {batch} {inputs} {' '.join(outputs)}"


BOTH_OUTPUTS = 'output { name: "OUTPUT0" }', 'output { name: "OUTPUT1" }'


@with_every_backend
@pytest.mark.parametrize("batch", [1, 2, 8])
def test_sum_and_difference(old: LegacyClient, prefix: str, batch: int) -> None:
    a = np.arange(16 * batch, dtype="<i4")
    b = np.full_like(a, 3)
    response = old.infer(
        f"{prefix}simple", f"id: 9 {request_header(batch, *BOTH_OUTPUTS)}", a.tobytes(), b.tobytes()
    )
    assert response.code == "SUCCESS", response
    assert response.raw == [(a + b).tobytes(), (a - b).tobytes()]
    header = response.header
    assert (header.model_name, header.model_version) == (f"{prefix}simple", 1)
    assert (header.batch_size, header.id) == (batch, 9)
    assert [(each.name, list(each.raw.dims)) for each in header.output] == [
        ("OUTPUT0", [16]),
        ("OUTPUT1", [16]),
    ]


@with_every_backend
def test_selected_outputs_and_no_outputs(old: LegacyClient, prefix: str) -> None:
    a = np.arange(16, dtype="<i4").tobytes()
    response = old.infer(f"{prefix}simple", request_header(1, BOTH_OUTPUTS[1]), a, a)
    assert (response.code, response.raw) == ("SUCCESS", [bytes(64)])
    response = old.infer(f"{prefix}simple", request_header(1), a, a)
    assert (response.code, response.raw, len(response.header.output)) == ("SUCCESS", [], 0)


@with_every_backend
def test_numeric_strings(old: LegacyClient, prefix: str) -> None:
    numbers = range(32)
    elements = b"".join(len(s).to_bytes(4, "little") + s for s in (b"%d" % n for n in numbers))
    header = request_header(2, *BOTH_OUTPUTS, size=len(elements))
    response = old.infer(f"{prefix}simple_string", header, elements, elements)
    assert response.code == "SUCCESS", response
    sums = [b"%d" % (2 * n) for n in numbers]
    assert response.raw[0] == b"".join(len(s).to_bytes(4, "little") + s for s in sums)
    assert response.raw[1] == b"\1\0\0\0000" * 32
    assert list(response.header.output[0].raw.dims) == [16]


@with_triton
def test_arbitrary_strings(old: LegacyClient, prefix: str) -> None:
    elements = b"\3\0\0\0a\0b" + b"\0\0\0\0" + b"\2\0\0\0\xff\xfe"
    header = (
        f'batch_size: 1 input {{ name: "INPUT0" dims: 3 batch_byte_size: {len(elements)} }} '
        'output { name: "OUTPUT0" }'
    )
    response = old.infer(f"{prefix}simple_identity", header, elements)
    assert (response.code, response.raw) == ("SUCCESS", [elements])
    assert list(response.header.output[0].raw.dims) == [3]


@with_triton
@pytest.mark.parametrize("datatype", [name for name in ARRAYS if name not in {"BF16", "BYTES"}])
def test_each_datatype(old: LegacyClient, prefix: str, datatype: str) -> None:
    data = ARRAYS[datatype].tobytes()
    header = 'batch_size: 1 input { name: "INPUT0" dims: 3 } output { name: "OUTPUT0" }'
    response = old.infer(f"{prefix}id_{datatype}", header, data)
    assert (response.code, response.raw) == ("SUCCESS", [data])
    empty = old.infer(f"{prefix}id_{datatype}", header.replace("3", "0"), b"")
    assert (empty.code, empty.raw) == ("SUCCESS", [b""])
    assert list(empty.header.output[0].raw.dims) == [0]


@with_triton
def test_an_unsupported_datatype(old: LegacyClient, prefix: str) -> None:
    header = 'batch_size: 1 input { name: "INPUT0" dims: 3 } output { name: "OUTPUT0" }'
    response = old.infer(f"{prefix}id_BF16", header, ARRAYS["BF16"].tobytes())
    assert response.code == "UNSUPPORTED"
    assert "'OUTPUT0': datatype 'BF16'" in response.error


@with_triton
def test_classes_have_tritons_labels(old: LegacyClient, prefix: str) -> None:
    scores = np.array([0, 9, 1, 8, 2, 7, 3, 6, 4, 5], "<f4")
    request = 'output { name: "OUTPUT0" cls { count: 2 } }'
    header = f'batch_size: 1 input {{ name: "INPUT0" dims: 10 }} {request}'
    response = old.infer(f"{prefix}classify", header, scores.tobytes())
    assert (response.code, response.raw) == ("SUCCESS", [b""])
    (row,) = response.header.output[0].batch_classes
    assert [(each.idx, each.value, each.label) for each in row.cls] == [
        (1, 9.0, LABELS[1]),
        (3, 8.0, LABELS[3]),
    ]


@with_every_backend
def test_classes_of_a_batch_together_with_values(old: LegacyClient, prefix: str) -> None:
    a = np.arange(32, dtype="<i4").reshape(2, 16)
    a[1] = a[1, ::-1]
    classes = 'output { name: "OUTPUT0" cls { count: 2 } }'
    response = old.infer(
        f"{prefix}simple", request_header(2, classes, BOTH_OUTPUTS[1]), a.tobytes(), bytes(128)
    )
    assert (response.code, response.raw) == ("SUCCESS", [b"", a.tobytes()])
    rows = response.header.output[0].batch_classes
    assert [[(each.idx, each.value) for each in row.cls] for row in rows] == [
        [(15, 15.0), (14, 14.0)],
        [(0, 31.0), (1, 30.0)],
    ]


@with_every_backend
def test_the_status_of_a_model(old: LegacyClient, prefix: str) -> None:
    """Triton's configuration has the maximum batch size; V2 metadata does not."""
    status, response = old.status(f"{prefix}simple")
    assert code_name(status) == "SUCCESS"
    assert list(response.model_status) == [f"{prefix}simple"]
    model = response.model_status[f"{prefix}simple"]
    assert (model.config.name, model.config.max_batch_size) == (f"{prefix}simple", 8)
    for tensors, kind in ((model.config.input, "INPUT"), (model.config.output, "OUTPUT")):
        assert [(each.name, each.data_type, list(each.dims)) for each in tensors] == [
            (f"{kind}{i}", TYPE_INT32, [16]) for i in range(2)
        ]
    assert {number: each.ready_state for number, each in model.version_status.items()} == {1: 1}


@with_every_backend
def test_the_status_marks_models_with_sequences(old: LegacyClient, prefix: str) -> None:
    for model, expected in (("accumulate", True), ("simple", False)):
        _, status = old.status(f"{prefix}{model}")
        config = status.model_status[f"{prefix}{model}"].config
        assert config.HasField("sequence_batching") == expected


@with_triton
def test_the_status_has_versions_and_marks_unknown_datatypes(
    old: LegacyClient, prefix: str
) -> None:
    _, status = old.status(f"{prefix}versions")
    model = status.model_status[f"{prefix}versions"]
    assert {number: each.ready_state for number, each in model.version_status.items()} == {
        1: 1,
        3: 1,
    }
    assert model.config.max_batch_size == 0
    _, status = old.status(f"{prefix}id_BF16")
    assert status.model_status[f"{prefix}id_BF16"].config.input[0].data_type == 0


def test_the_status_of_all_models(old: LegacyClient) -> None:
    """The status lists the backends' models under the names that clients use."""
    status, response = old.status()
    assert code_name(status) == "SUCCESS"
    assert response.ready_state == 2
    assert {"simple", "simple_string", "identity"} <= set(response.model_status)
    assert {"rest.simple", "grpc.simple"} <= set(response.model_status)


@with_triton
def test_requested_versions_are_used(old: LegacyClient, prefix: str) -> None:
    header = 'batch_size: 1 input { name: "INPUT0" dims: 1 } output { name: "VERSION" }'
    for version, actual in ((-1, 3), (1, 1), (3, 3)):
        response = old.infer(f"{prefix}versions", header, bytes(4), version=version)
        assert (response.code, response.raw) == ("SUCCESS", [actual.to_bytes(4, "little")])
        assert response.header.model_version == actual
    response = old.infer(f"{prefix}versions", header, bytes(4), version=2)
    assert response.code == "UNAVAILABLE"


@with_every_backend
def test_an_unknown_model(old: LegacyClient, prefix: str) -> None:
    response = old.infer(f"{prefix}nosuch", request_header(1, *BOTH_OUTPUTS), bytes(64), bytes(64))
    error = f"Inference request for unknown model '{prefix}nosuch'"
    assert (response.code, response.error) == ("UNAVAILABLE", error)
    status, _ = old.status(f"{prefix}nosuch")
    error = f"no status available for unknown model '{prefix}nosuch'"
    assert (code_name(status), status.msg) == ("INVALID_ARG", error)


@with_every_backend
def test_errors_use_the_legacy_texts(old: LegacyClient, prefix: str) -> None:
    model = f"{prefix}simple"
    response = old.infer(model, request_header(9, *BOTH_OUTPUTS), bytes(576), bytes(576))
    error = f"inference request batch-size must be <= 8 for '{model}'"
    assert (response.code, response.error) == ("INVALID_ARG", error)
    response = old.infer(model, request_header(1, *BOTH_OUTPUTS, dims=4), bytes(16), bytes(16))
    error = f"unexpected shape for input 'INPUT0' for model '{model}'. Expected [16], got [4]"
    assert (response.code, response.error) == ("INVALID_ARG", error)


@with_triton
def test_errors_of_the_model_are_returned(old: LegacyClient, prefix: str) -> None:
    header = (
        'id: 3 batch_size: 1 input {{ name: "INPUT0" dims: 1 batch_byte_size: {} }} '
        'output {{ name: "OUTPUT0" }}'
    )
    for kind, code in ((b"it broke", "INTERNAL"), (b"UNAVAILABLE", "UNAVAILABLE")):
        element = len(kind).to_bytes(4, "little") + kind
        response = old.infer(f"{prefix}fail", header.format(len(element)), element)
        assert response.code == code
        assert response.error
        assert response.header.id == 3
        assert response.raw == []


def test_sequences_of_embedded_models(old: LegacyClient) -> None:
    totals = []
    for number, flags in ((5, 1), (6, 0), (7, 2)):
        header = (
            f"batch_size: 1 correlation_id: 18446744073709551615 flags: {flags} "
            'input { name: "INPUT" } output { name: "OUTPUT" }'
        )
        response = old.infer("accumulate", header, number.to_bytes(4, "little"))
        totals.append(int.from_bytes(response.raw[0], "little"))
    assert totals == [5, 11, 18]


@with_triton
def test_stream_responses_keep_the_request_order(rpc: grpc.Channel, prefix: str) -> None:
    """The first request is slow, and the second is invalid."""
    slow = (
        'batch_size: 1 id: 1 input { name: "INPUT0" dims: 1 } input { name: "SECONDS" } '
        'output { name: "OUTPUT0" }'
    )
    ones = [np.arange(16, dtype="<i4").tobytes()] * 2
    messages = [
        old_message(f"{prefix}slow", header=slow, raw=[bytes(4), np.float32(0.2).tobytes()]),
        old_message(f"{prefix}simple", header=f"id: 2 {request_header(9)}", raw=ones),
        *(
            old_message(
                f"{prefix}simple", header=f"id: {i} {request_header(1, *BOTH_OUTPUTS)}", raw=ones
            )
            for i in (3, 4, 5)
        ),
    ]
    messages_read = rpc.stream_stream(f"/{SERVICE}/StreamInfer")(iter(messages), timeout=SECONDS)
    responses = [OLD.InferResponse.FromString(each) for each in messages_read]
    assert [each.meta_data.id for each in responses] == [1, 2, 3, 4, 5]
    assert [code_name(each.request_status) for each in responses] == [
        "SUCCESS", "INVALID_ARG", "SUCCESS", "SUCCESS", "SUCCESS",
    ]  # fmt: skip
    assert responses[4].raw_output[1] == bytes(64)
