"""Import and export of perf_analyzer's input files."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_errors import raises_kind
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.exchange import Exchange, Outcome
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, TensorMetadata
from infergate.core.tensor import Tensor, pack_bytes, tensor_from_array
from infergate.recording import perf_analyzer
from infergate.recording.perf_analyzer import export_perf_analyzer, import_perf_analyzer
from infergate.testing.strategies import tensors

INT = TensorMetadata("x", "INT32", (2, 2))
TEXT = TensorMetadata("t", "BYTES", (-1,))
SUM = TensorMetadata("sum", "INT64", (1,))
MODEL = ModelMetadata("m", inputs=(INT, TEXT), outputs=(SUM,))
MATRIX = np.array([[1, 2], [3, 4]], np.int32)
X = tensor_from_array("x", Datatype.INT32, MATRIX)
T = Tensor("t", Datatype.BYTES, (2,), pack_bytes([b"a", b"\xff"]))
Y = tensor_from_array("sum", Datatype.INT64, np.array([10]))


def exchange(*inputs: Tensor, outputs: tuple[Tensor, ...] = (Y,), **parameters: Any) -> Exchange:
    response = InferResponse("m", outputs=outputs, is_last=True)
    return Exchange(InferRequest("m", parameters=parameters, inputs=inputs), Outcome((response,)))


def read(folder: Path, document: Any, model: ModelMetadata = MODEL) -> list[Exchange]:
    file = folder / "data.json"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    return list(import_perf_analyzer(file, model))


def b64(data: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(data).decode()}


@pytest.mark.parametrize(
    "value",
    [
        [1, 2, 3, 4],
        [[1, 2], [3, 4]],
        {"content": [1, 2, 3, 4]},
        {"content": [1, 2, 3, 4], "shape": [2, 2]},
        b64(bytes(X.data)),
        {"content": b64(bytes(X.data)), "shape": [2, 2]},
    ],
    ids=["flat", "nested", "content", "content-shape", "b64", "b64-shape"],
)
def test_every_form_of_a_tensor_is_read(tmp_path: Path, value: Any) -> None:
    (loaded,) = read(tmp_path, {"data": [{"x": value}]})
    assert loaded == Exchange(InferRequest("m", inputs=(X,)), Outcome())


def test_validation_data_becomes_the_response(tmp_path: Path) -> None:
    document = {"data": [{"x": [1, 2, 3, 4]}], "validation_data": [{"sum": [10]}]}
    (loaded,) = read(tmp_path, document)
    assert loaded.outcome == Outcome((InferResponse("m", outputs=(Y,), is_last=True),))


def test_nested_lists_are_sequences(tmp_path: Path) -> None:
    step = {"x": [1, 2, 3, 4]}
    loaded = read(tmp_path, {"data": [[step, step, step], [step]]})
    assert [each.request.parameters for each in loaded] == [
        {"sequence_id": 1, "sequence_start": True},
        {"sequence_id": 1},
        {"sequence_id": 1, "sequence_end": True},
        {"sequence_id": 2, "sequence_start": True, "sequence_end": True},
    ]


def test_a_batch_dimension_is_added(tmp_path: Path) -> None:
    model = replace(MODEL, inputs=(TensorMetadata("x", "INT32", (-1, 2, 2)),), max_batch_size=8)
    (loaded,) = read(tmp_path, {"data": [{"x": [1, 2, 3, 4]}]}, model)
    assert loaded.request.inputs[0].shape == (1, 2, 2)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("[", "invalid JSON"),
        ([], "the file must be an object"),
        ({}, "no member 'data'"),
        ({"data": 1}, "data must be an array"),
        ({"data": [1]}, r"data\[0\] must be an object"),
        ({"data": [{"y": [1]}]}, r"data\[0\]: the model has no tensor 'y'; it has x, t"),
        ({"data": [{}, {"x": [1]}]}, r"data\[1\].x.*requires 4 elements"),
        ({"data": [{"x": "1"}]}, r"data\[0\].x must be an object"),
        ({"data": [{"x": {"shape": [2, 2]}}]}, "must be an array, or have 'content' or 'b64'"),
        ({"data": [{"x": {"b64": "?"}}]}, r"data\[0\].x.b64 is not base64"),
        ({"data": [{"x": b64(b"abc")}]}, "needs 16 bytes, but the data holds 3"),
        ({"data": [{"x": {"content": [1], "shape": ["1"]}}]}, "shape has '1'"),
        ({"data": [{"x": {"content": [1], "shape": [-2]}}]}, "shape has -2"),
        ({"data": [{"t": ["a"]}]}, r"data\[0\].t needs a 'shape'"),
        ({"data": [[{"x": 1.5}]]}, r"data\[0\]\[0\].x"),
        (
            {"data": [{}], "validation_data": []},
            "validation_data has 0 entries; expected 1, as in 'data'",
        ),
        ({"data": [[{}]], "validation_data": [[{}, {}]]}, r"validation_data\[0\] has 2 entries"),
        ({"data": [{}], "validation_data": [{"x": [1]}]}, r"validation_data\[0\]: the model"),
    ],
)
def test_errors_name_the_position_in_the_file(tmp_path: Path, document: Any, message: str) -> None:
    with pytest.raises(GatewayError, match=message) as caught:
        read(tmp_path, document)
    assert caught.value.kind is Kind.BAD_REQUEST


def test_a_long_file_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perf_analyzer, "MAX_FILE_BYTES", 10)
    with raises_kind(Kind.TOO_LARGE, "the limit is 10"):
        read(tmp_path, {"data": [{}]})


# ---- export -------------------------------------------------------------------------------------


def test_an_export_can_be_imported(tmp_path: Path) -> None:
    file, originals = tmp_path / "data.json", [exchange(X, T), exchange(T, X)]
    summary = export_perf_analyzer(originals, file)
    assert (summary.requests, summary.has_outputs, summary.skipped_errors) == (2, True, 0)
    assert list(import_perf_analyzer(file, MODEL)) == originals
    assert sorted(tmp_path.iterdir()) == [file]


@given(st.lists(st.lists(tensors(), max_size=3, unique_by=lambda t: t.name), max_size=3))
def test_tensors_are_exported_exactly(tmp_path_factory: Any, requests: list[list[Tensor]]) -> None:
    file = tmp_path_factory.mktemp("export") / "data.json"
    for inputs in requests:
        plain = [replace(each, parameters={}) for each in inputs if each.name != "model"]
        specs = tuple(TensorMetadata(t.name, t.datatype.value, (-1,)) for t in plain)
        export_perf_analyzer([exchange(*plain)], file)
        (loaded,) = import_perf_analyzer(file, ModelMetadata("m", inputs=specs, outputs=(SUM,)))
        assert [bytes(t.data) for t in loaded.request.inputs] == [bytes(t.data) for t in plain]
        assert loaded == exchange(*plain)


def test_rows_of_a_batch_become_requests(tmp_path: Path) -> None:
    model = ModelMetadata(
        "m",
        inputs=(TensorMetadata("x", "INT32", (-1, 2)), TensorMetadata("t", "BYTES", (-1,))),
        outputs=(TensorMetadata("sum", "INT64", (-1,)),),
        max_batch_size=4,
    )
    sums = tensor_from_array("sum", Datatype.INT64, np.array([3, 7]))
    file = tmp_path / "data.json"
    assert export_perf_analyzer([exchange(X, T, outputs=(sums,))], file, model).requests == 2
    written = json.loads(file.read_text())
    assert [each["x"]["shape"] for each in written["data"]] == [[2], [2]]
    first, second = import_perf_analyzer(file, model)
    assert [each.numpy().tolist() for each in first.request.inputs] == [[[1, 2]], [b"a"]]
    assert [each.numpy().tolist() for each in second.request.inputs] == [[[3, 4]], [b"\xff"]]
    assert second.outcome.responses[0].outputs[0].numpy().tolist() == [7]


def test_interleaved_sequences_are_exported_one_after_another(tmp_path: Path) -> None:
    def step(id_: Any, value: int, **marks: bool) -> Exchange:
        tensor = tensor_from_array("x", Datatype.INT32, np.full((2, 2), value, np.int32))
        return exchange(tensor, sequence_id=id_, **marks)

    file = tmp_path / "data.json"
    export_perf_analyzer(
        [
            step(7, 1, sequence_start=True),
            step("b", 10, sequence_start=True),
            step(7, 2, sequence_end=True),
            step("b", 11),
            step(7, 3, sequence_start=True),
        ],
        file,
    )
    loaded = list(import_perf_analyzer(file, MODEL))
    assert [
        (each.request.parameters["sequence_id"], each.request.inputs[0].numpy().flat[0])
        for each in loaded
    ] == [(1, 1), (1, 2), (2, 10), (2, 11), (3, 3)]


def test_failed_inferences_are_skipped_and_streams_have_no_expected_outputs(
    tmp_path: Path,
) -> None:
    file = tmp_path / "data.json"
    failed = replace(exchange(X), outcome=Outcome((), GatewayError(Kind.TIMEOUT, "late")))
    response = exchange(X).outcome.responses[0]
    stream = replace(exchange(X), outcome=Outcome((response, response)))
    summary = export_perf_analyzer([failed, stream, exchange(X)], file)
    assert (summary.requests, summary.skipped_errors, summary.has_outputs) == (2, 1, False)
    assert json.loads(file.read_text()).keys() == {"data"}


def test_an_export_that_fails_keeps_the_previous_file(tmp_path: Path) -> None:
    file = tmp_path / "data.json"
    file.write_text("previous")
    other = replace(exchange(X), request=InferRequest("other"))
    with raises_kind(Kind.BAD_REQUEST, "there are requests of 'm' and 'other'"):
        export_perf_analyzer([exchange(X), other], file)
    assert file.read_text() == "previous"
    assert sorted(tmp_path.iterdir()) == [file]


def test_the_number_of_requests_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perf_analyzer, "MAX_ENTRIES", 2)
    with raises_kind(Kind.TOO_LARGE, "more than 2 requests"):
        export_perf_analyzer([exchange(X)] * 3, tmp_path / "data.json")


def test_exporting_no_exchanges_writes_a_file_without_requests(tmp_path: Path) -> None:
    file = tmp_path / "data.json"
    export_perf_analyzer([], file)
    assert list(import_perf_analyzer(file, MODEL)) == []
