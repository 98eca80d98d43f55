"""Tests of unmodified clients for TensorFlow Serving's APIs through infergate, of a server of its
gRPC API behind infergate, and of TensorProtos with TensorFlow as the reference."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as client
from hypothesis import example, given, settings
from tritonclient.utils import InferenceServerException

from e2e.running import Infergate, started_infergate
from infergate.codecs.protos.wire_scanner import FieldBudget
from infergate.codecs.tfs.datatypes import TYPES
from infergate.codecs.tfs.tensor_reader import TensorProtoReader
from infergate.codecs.tfs.tensor_writer import tensor_parts
from infergate.core.datatypes import Datatype
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.tensor import Tensor
from infergate.testing import strategies
from peers.support.mlserver import MLServer
from peers.support.tfserving import TensorFlow, ovmsclient_report, tfserving_api_report
from peers.support.triton import Triton

pytestmark = pytest.mark.peers

NAMES = """
tensorflow_serving:
  models:
    simple:
      labels: {stable: "1"}
      signatures: {add: simple}
"""
EMBEDDED = f"""
backends:
  b: {{protocol: builtin}}
routes:
  - {{model: simple, backend: b}}
  - {{model: "/simple_identity|id_.*/", backend: b, rewrite: {{model: identity}}}}
{NAMES}
"""
BEHIND = f"""
backends:
  b: {{protocol: PROTOCOL, endpoints: ["SERVER"]}}
routes:
  - {{model: "*", backend: b}}
{NAMES}
"""


@pytest.fixture(scope="module")
def embedded() -> Iterator[Infergate]:
    with started_infergate(EMBEDDED) as running:
        yield running


@pytest.fixture(scope="module")
def two_hops(embedded: Infergate) -> Iterator[Infergate]:
    """Yield a gateway in front of another gateway, over TensorFlow Serving's gRPC API."""
    config = BEHIND.replace("SERVER", f"grpc://{embedded.grpc}").replace("PROTOCOL", "tfs-grpc")
    with started_infergate(config) as running:
        yield running


@pytest.fixture(scope="module")
def two_rest_hops(embedded: Infergate) -> Iterator[Infergate]:
    """Yield a gateway in front of another gateway, over TensorFlow Serving's REST API."""
    config = BEHIND.replace("SERVER", f"http://{embedded.http}").replace("PROTOCOL", "tfs-rest")
    with started_infergate(config) as running:
        yield running


@pytest.fixture(scope="module")
def before_triton(triton: Triton) -> Iterator[Infergate]:
    config = BEHIND.replace("SERVER", f"grpc://{triton.grpc}").replace("PROTOCOL", "v2-grpc")
    with started_infergate(config) as running:
        yield running


@pytest.fixture(params=["embedded", "two_hops", "before_triton"])
def gateway(request: pytest.FixtureRequest) -> Infergate:
    running: Infergate = request.getfixturevalue(request.param)
    return running


SUM, DIFFERENCE = list(range(1, 17)), list(range(-1, 15))
ARRAYS = {
    "OUTPUT0": ["int32", [1, 16], [float(value) for value in SUM]],
    "OUTPUT1": ["int32", [1, 16], [float(value) for value in DIFFERENCE]],
}
SHAPE = {"dtype": "DT_INT32", "shape": [-1, 16]}
NOT_FOUND = "ModelNotFoundError: Error occurred during handling the request: "
OVMSCLIENT: dict[str, Any] = {
    "simple": {"ok": ARRAYS},
    "simple_version": {"ok": ARRAYS},
    "strings": {"ok": ["a", "\xff\1"]},
    "an_unknown_model": {"error": f"{NOT_FOUND}Servable not found for request: Latest(nosuch)"},
    "status": {"ok": {"1": ["AVAILABLE", 0]}},
    "status_of_an_unknown_model": {
        "error": f"{NOT_FOUND}Could not find any versions of model nosuch"
    },
    "metadata": {
        "ok": {
            "model_version": 1,
            "inputs": {"INPUT0": SHAPE, "INPUT1": SHAPE},
            "outputs": {"OUTPUT0": SHAPE, "OUTPUT1": SHAPE},
        }
    },
}


def test_ovmsclient_over_grpc(gateway: Infergate, ovmsclient: None) -> None:
    report = ovmsclient_report(gateway.grpc)
    assert "InvalidInputError" in report.pop("a_wrong_input")["error"]
    assert report == OVMSCLIENT


ENCODING_ERROR = "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff"
"""ovmsclient cannot write nested lists of bytes as JSON."""
WITHOUT_DATATYPES = {"ok": {name: ["int64", *rest] for name, (_, *rest) in ARRAYS.items()}}
OVMSCLIENT_REST = OVMSCLIENT | {"simple": WITHOUT_DATATYPES, "simple_version": WITHOUT_DATATYPES}


@pytest.mark.parametrize("running", ["embedded", "two_hops", "two_rest_hops", "before_triton"])
def test_ovmsclient_over_rest(
    running: str, request: pytest.FixtureRequest, ovmsclient: None
) -> None:
    report = ovmsclient_report(request.getfixturevalue(running).http, "http")
    assert report.pop("strings")["error"].startswith(ENCODING_ERROR)
    assert "Missing named input: INPUT1" in report.pop("a_wrong_input")["error"]
    # The client returns the metadata document of TensorFlow Serving unchanged.
    signatures = report.pop("metadata")["ok"]["metadata"]["signature_def"]["signature_def"]
    (signature,) = signatures.values()
    assert signature["inputs"]["INPUT0"]["dtype"] == "DT_INT32"
    others = {"strings", "a_wrong_input", "metadata"}
    assert report == {name: OVMSCLIENT_REST[name] for name in OVMSCLIENT_REST.keys() - others}


SIMPLE = """
models:
  simple:
    inputs:
      - {name: INPUT0, datatype: INT32, shape: [-1, 16]}
      - {name: INPUT1, datatype: INT32, shape: [-1, 16]}
    outputs:
      - {name: OUTPUT0, datatype: INT32, shape: [-1, 16]}
      - {name: OUTPUT1, datatype: INT32, shape: [-1, 16]}
"""


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_ovmsclient_to_mlserver(transport: str, mlserver: MLServer, ovmsclient: None) -> None:
    address = f"{transport}://{getattr(mlserver, transport)}"
    protocol = "v2-grpc" if transport == "grpc" else "v2-rest"
    config = BEHIND.replace("SERVER", address).replace("PROTOCOL", protocol)
    with started_infergate(f"{config}{SIMPLE}") as running:
        report = ovmsclient_report(getattr(running, transport), transport)
    expected = OVMSCLIENT if transport == "grpc" else OVMSCLIENT_REST
    for name in ("simple", "an_unknown_model", "status"):
        assert report[name] == expected[name]
    assert "INPUT1" in report["a_wrong_input"]["error"]


def values(field: str, *numbers: Any, dtype: str) -> dict[str, Any]:
    return {"OUTPUT0": [dtype, [len(numbers)], field, list(numbers)]}


ALL_TYPES = {
    "UINT8": values("int_val", 0, 255, dtype="DT_UINT8"),
    "UINT16": values("int_val", 0, 65535, dtype="DT_UINT16"),
    "UINT32": values("uint32_val", 0, 2**32 - 1, dtype="DT_UINT32"),
    "UINT64": values("uint64_val", 0, 2**64 - 1, dtype="DT_UINT64"),
    "INT8": values("int_val", -128, 127, dtype="DT_INT8"),
    "INT16": values("int_val", -32768, 32767, dtype="DT_INT16"),
    "INT32": values("int_val", -(2**31), 2**31 - 1, dtype="DT_INT32"),
    "INT64": values("int64_val", -(2**63), 2**63 - 1, dtype="DT_INT64"),
    "FP32": values("float_val", 1.5, -2.0, dtype="DT_FLOAT"),
    "FP64": values("double_val", 0.1, -2.0, dtype="DT_DOUBLE"),
    "BOOL": values("bool_val", True, False, dtype="DT_BOOL"),
    "FP16": values("half_val", 0x3E00, 0xC000, dtype="DT_HALF"),
    "BF16": values("half_val", 0x3FC0, 0xC000, dtype="DT_BFLOAT16"),
    "BYTES": values("string_val", "a", "\xff\0", dtype="DT_STRING"),
}
VALUES = {
    "OUTPUT0": ["DT_INT32", [1, 16], "int_val", SUM],
    "OUTPUT1": ["DT_INT32", [1, 16], "int_val", DIFFERENCE],
}
LIMIT = (
    "tensor parsing error: INPUT0: with shape [1099511627776] of INT32, "
    "the tensors of the message have 4398046511104 bytes"
)
STUBS: dict[str, Any] = {
    "simple": {"ok": [["simple", 1, "serving_default"], VALUES]},
    "one_output": {
        "ok": [["simple", 1, "serving_default"], {"OUTPUT1": VALUES["OUTPUT1"]}],
    },
    "all_types": {"ok": ALL_TYPES},
    "a_label": {"ok": [["simple", 1, "serving_default"], VALUES]},
    "a_signature": {"ok": [["simple", 1, "add"], VALUES]},
    "an_unknown_label": {
        "error": ["INVALID_ARGUMENT", "Unrecognized servable version label: canary"]
    },
    "an_unknown_signature": {
        "error": ["FAILED_PRECONDITION", 'Serving signature key "other" not found.']
    },
    "an_unknown_model": {
        "error": ["NOT_FOUND", "Servable not found for request: Specific(nosuch, 7)"]
    },
    "complex_numbers": {
        "error": [
            "INVALID_ARGUMENT",
            "tensor parsing error: INPUT0: datatype DT_COMPLEX64 is not supported",
        ]
    },
    "metadata": {
        "ok": {
            "serving_default": [
                "tensorflow/serving/predict",
                {"INPUT0": ["DT_INT32", [-1, 16]], "INPUT1": ["DT_INT32", [-1, 16]]},
                ["OUTPUT0", "OUTPUT1"],
            ]
        }
    },
}


def test_the_stubs_of_tensorflow_serving_api(gateway: Infergate, tfserving_api: None) -> None:
    report = tfserving_api_report(gateway.grpc)
    code, text = report.pop("a_wrong_shape")["error"]
    assert code == "INVALID_ARGUMENT"
    assert "expected 2 inputs but got 1 inputs for model 'simple'" in text
    code, text = report.pop("too_many_elements")["error"]
    assert code == "RESOURCE_EXHAUSTED"
    assert text.startswith(LIMIT)
    assert report == STUBS


# ---- a server behind infergate


DECLARED = """
models:
  prices:
    inputs: [{name: a, datatype: INT64, shape: [-1, 1]}, {name: b, datatype: INT64, shape: [-1, 1]}]
    outputs: [{name: predictions, datatype: INT64, shape: [-1]}]
"""


@pytest.fixture(scope="module")
def before_pythie(pythie: str) -> Iterator[Infergate]:
    config = BEHIND.replace("SERVER", f"grpc://{pythie}").replace("PROTOCOL", "tfs-grpc")
    with started_infergate(f"{config}{DECLARED}") as running:
        yield running


def test_a_v2_client_uses_pythie_serving(before_pythie: Infergate) -> None:
    inputs = []
    for name, numbers in (("a", [1, 1]), ("b", [3, 2])):
        tensor = client.InferInput(name, [2, 1], "INT64")
        tensor.set_data_from_numpy(np.array(numbers, np.int64).reshape(2, 1))
        inputs.append(tensor)
    with client.InferenceServerClient(before_pythie.grpc) as v2:
        assert v2.is_server_ready()
        assert v2.is_model_ready("prices")
        assert [each.name for each in v2.get_model_metadata("prices").inputs] == ["a", "b"]
        with pytest.raises(InferenceServerException, match=r'models: \{"nosuch": \{inputs:'):
            v2.is_model_ready("nosuch")
        result = v2.infer("prices", inputs)
        assert result.as_numpy("predictions").tolist() == [40, 30]
        assert result.get_response().model_name == "prices"
        with pytest.raises(InferenceServerException, match="Unknown model: nosuch"):
            v2.infer("nosuch", inputs)


# ---- TensorFlow as the reference


@settings(deadline=None)
@given(tensor=strategies.tensors(name=None))
@example(tensor=Tensor("0", Datatype.FP32, (), bytes.fromhex("0000817f")))
def test_tensorflow_reads_the_tensors_of_infergate(tensorflow: TensorFlow, tensor: Tensor) -> None:
    # TensorFlow reads `float_val` as Python's floats, in which signaling NaNs become quiet.
    expected = {bytes(tensor.data)}
    if tensor.datatype is Datatype.FP32:
        with np.errstate(invalid="ignore"):
            as_floats = np.frombuffer(tensor.data, "<f4").astype("<f8")
        expected.add(as_floats.astype("<f4").tobytes())
    for contents in ("auto", "raw", "typed"):
        proto = b"".join(tensor_parts(tensor, contents))
        response = tensorflow.send({"proto": base64.b64encode(proto).decode()})
        for reader, result in response.items():
            assert base64.b64decode(result["data"]) in expected, (reader, contents, result)
            assert result["shape"] == list(tensor.shape)


@settings(deadline=None)
@given(tensor=strategies.tensors(name=None))
def test_infergate_reads_the_tensors_of_tensorflow(tensorflow: TensorFlow, tensor: Tensor) -> None:
    response = tensorflow.send(
        {
            "dtype": TYPES[tensor.datatype].number,
            "shape": list(tensor.shape),
            "data": base64.b64encode(tensor.data).decode(),
        }
    )
    for writer, proto in response.items():
        reader = TensorProtoReader(DEFAULT_LIMITS, FieldBudget(1000))
        read = reader.read("x", memoryview(base64.b64decode(proto)))
        assert (read.datatype, read.shape) == (tensor.datatype, tensor.shape), writer
        assert bytes(read.data) == bytes(tensor.data), writer


def test_tensorflow_reads_every_datatype(tensorflow: TensorFlow) -> None:
    for datatype in Datatype:
        tensor = Tensor("x", datatype, (0,), b"")
        proto = base64.b64encode(b"".join(tensor_parts(tensor, "auto"))).decode()
        assert all("data" in result for result in tensorflow.send({"proto": proto}).values()), (
            datatype
        )
