"""The codecs for MLflow's scoring API and for Vertex AI's instances."""

import math
import pickle
from typing import Any

import numpy as np
import pytest
from envelope_kit import assert_refused, body, get, parse, post

from gateway_errors import raises_kind
from infergate.codecs.envelopes import vertex
from infergate.codecs.envelopes.frames import MAX_CELLS, MAX_COLUMNS
from infergate.codecs.envelopes.mlflow import MlflowCodec
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import (
    DEFAULT_LIMITS,
    Limits,
    NeedsOffloadError,
    event_loop_limits,
)
from infergate.core.messages import (
    HealthStatus,
    InferRequest,
    InferResponse,
    ModelMetadata,
    ServerMetadata,
    ServerMetadataRequest,
    ServerReadyRequest,
    TensorMetadata,
)
from infergate.core.tensor import Tensor, pack_bytes, tensor_from_array

CODEC = MlflowCodec({}, "m")
HEALTH, PREDICT = "/health-route", "/predict-route"
VERTEX: Any = vertex.create({}, "m", HEALTH, PREDICT, "instances")
JSON, CSV = "application/json", "text/csv"


def model(**inputs: Any) -> ModelMetadata:
    return ModelMetadata(
        "m",
        inputs=tuple(TensorMetadata(name, kind, shape) for name, (kind, shape) in inputs.items()),
    )


MATRIX = model(x=("FP32", (-1, 3)))
COLUMNS = model(a=("INT32", (-1,)), b=("FP64", (-1, 1)), c=("BYTES", (-1,)))


def tensors(wire: Any, metadata: ModelMetadata, codec: Any = CODEC) -> dict[str, Any]:
    operation = parse(codec, wire, metadata).operation
    assert isinstance(operation, InferRequest)
    assert operation.model == "m"
    return {tensor.name: tensor.numpy().tolist() for tensor in operation.inputs}


def invocation(body: Any, content_type: str = JSON) -> Any:
    return post("/invocations", body, content_type=content_type)


def json_tensors(form: str, value: Any, metadata: ModelMetadata, **members: Any) -> dict[str, Any]:
    return tensors(invocation({form: value, **members}), metadata)


def csv_tensors(text: str, metadata: ModelMetadata) -> dict[str, Any]:
    return tensors(invocation(text.encode(), CSV), metadata)


# ---- MLflow


ROWS = [[1, 2, 3], [4.5, 5, 6]]
RECORDS = [{"p": 1, "q": 2, "r": 3}, {"p": 4.5, "q": 5, "r": 6}]
COLUMN_VALUES = {"a": [1, 2], "b": [[0.5], [2.0]], "c": [b"x", "ü".encode()]}


@pytest.mark.parametrize(
    ("form", "value"),
    [
        ("instances", ROWS),
        ("inputs", ROWS),
        ("inputs", {"x": ROWS}),
        ("dataframe_split", {"columns": ["p", "q", "r"], "index": [7, 8], "data": ROWS}),
        ("dataframe_records", RECORDS),
    ],
)
def test_forms_of_a_matrix(form: str, value: Any) -> None:
    assert json_tensors(form, value, MATRIX) == {"x": ROWS}


@pytest.mark.parametrize(
    ("form", "value"),
    [
        ("instances", [{"a": 1, "b": [0.5], "c": "x"}, {"c": "ü", "b": [2], "a": 2}]),
        ("inputs", {"a": [1, 2], "b": [[0.5], [2]], "c": ["x", "ü"]}),
        ("dataframe_records", [{"a": 1, "b": 0.5, "c": "x"}, {"a": 2, "b": 2, "c": "ü"}]),
        ("dataframe_split", {"columns": ["c", "a", "b"], "data": [["x", 1, 0.5], ["ü", 2, 2]]}),
    ],
)
def test_forms_of_named_inputs(form: str, value: Any) -> None:
    assert json_tensors(form, value, COLUMNS) == COLUMN_VALUES


def test_csv_of_named_inputs() -> None:
    assert csv_tensors("c,a,b\r\nx,1,0.5\r\nü,2,2\r\n", COLUMNS) == COLUMN_VALUES
    assert csv_tensors('\ufeffa,b,c\n1,,"x, ""y""\nz"\n', COLUMNS)["c"] == [b'x, "y"\nz']
    (empty,) = csv_tensors("a,b,c\n1,,\n", COLUMNS)["b"][0]
    assert math.isnan(empty)


def test_csv_of_a_matrix() -> None:
    assert csv_tensors("p,q,r\n1,2,3\n\n4.5,5,6", MATRIX) == {"x": ROWS}
    first, second = csv_tensors("p,q,r\nnan,-inf,1e3\n1,Infinity, 2\n", MATRIX)["x"]
    assert math.isnan(first[0])
    assert first[1:] == [-math.inf, 1000.0]
    assert second == [1.0, math.inf, 2.0]


def test_csv_of_booleans() -> None:
    assert csv_tensors("x,y\nTrue,false\n", model(m=("BOOL", (-1, 2)))) == {"m": [[True, False]]}


def test_the_only_column_may_be_the_only_input() -> None:
    one_input = model(x=("INT64", (-1, 1)))
    assert csv_tensors("x\n1\n2\n", one_input) == {"x": [[1], [2]]}
    assert csv_tensors("other\n1\n2\n", one_input) == {"x": [[1], [2]]}
    pairs = model(x=("INT64", (-1, 2)))
    assert json_tensors("dataframe_records", [{"x": [1, 2]}], pairs) == {"x": [[1, 2]]}


def test_records_of_texts_as_a_matrix() -> None:
    texts = model(x=("BYTES", (-1, 2)))
    assert json_tensors("dataframe_records", [{"p": "a", "q": "b"}], texts) == {"x": [[b"a", b"b"]]}


def test_params_become_parameters() -> None:
    params = {"t": 0.5, "n": 3, "s": "x", "on": True, "no": None}
    operation = parse(CODEC, invocation({"inputs": ROWS, "params": params}), MATRIX).operation
    assert operation.parameters == {"t": 0.5, "n": 3, "s": "x", "on": True}
    assert json_tensors("inputs", ROWS, MATRIX, params=None) == {"x": ROWS}
    wire = invocation({"inputs": ROWS, "params": {"l": []}})
    assert_refused(CODEC, wire, "params.l must be", metadata=MATRIX)


@pytest.mark.parametrize(
    "content_type", ["application/json; charset=utf-8", 'Application/JSON;charset="UTF-8"']
)
def test_supported_content_types(content_type: str) -> None:
    assert tensors(invocation({"instances": ROWS}, content_type), MATRIX) == {"x": ROWS}


@pytest.mark.parametrize(
    "content_type",
    ["", "text/plain", "application/json; charset=latin-1", "text/csv; header=present"],
)
def test_unsupported_content_types_are_refused(content_type: str) -> None:
    wire = invocation({"instances": ROWS}, content_type)
    response = assert_refused(CODEC, wire, "content type", Kind.UNSUPPORTED_ENCODING)
    assert (response.status, response.headers["content-type"]) == (415, "text/plain")


@pytest.mark.parametrize(
    ("data", "metadata", "mentions"),
    [
        (b"", MATRIX, "JSON Parse error"),
        (b"[]", MATRIX, "must be an object"),
        (b"{}", MATRIX, "it has none"),
        (b'{"messages":[]}', MATRIX, "it has none"),
        (b'{"inputs":[],"instances":[]}', MATRIX, "it has instances and inputs"),
        (b'{"inputs":[[1],[1,2]]}', MATRIX, "tensor 'x'"),
        (b'{"instances":[["a"]]}', MATRIX, "tensor 'x'"),
        (b'{"inputs":[1]}', COLUMNS, "multiple input tensors"),
        (b'{"inputs":[1],"params":[]}', MATRIX, "params must be an object"),
        (b'{"dataframe_records":{}}', MATRIX, "a list of at least one object"),
        (b'{"dataframe_records":[]}', MATRIX, "a list of at least one object"),
        (b'{"dataframe_records":[1]}', MATRIX, "a list of at least one object"),
        (b'{"dataframe_records":[{}]}', MATRIX, "0 columns"),
        (b'{"dataframe_records":[{"p":1},{"q":2}]}', MATRIX, "does not have named input: q"),
        (b'{"dataframe_records":[{"p":[1]}]}', MATRIX, "lists instead of scalars"),
        (b'{"dataframe_records":[{"a":1}]}', COLUMNS, "the model has the inputs a, b, c"),
        (b'{"dataframe_split":[]}', MATRIX, "must be an object"),
        (b'{"dataframe_split":{"data":[]}}', MATRIX, "dataframe_split.columns is missing"),
        (b'{"dataframe_split":{"columns":["p"]}}', MATRIX, "dataframe_split.data is missing"),
        (b'{"dataframe_split":{"columns":[1],"data":[]}}', MATRIX, "must be a string"),
        (b'{"dataframe_split":{"columns":["p","p"],"data":[]}}', MATRIX, "with the same name"),
        (b'{"dataframe_split":{"columns":["p"],"data":[]}}', MATRIX, "No values"),
        (b'{"dataframe_split":{"columns":["p"],"data":[[1,2]]}}', MATRIX, "1 scalars"),
        (b'{"dataframe_split":{"columns":["a","b","c"],"data":[]}}', COLUMNS, "has no rows"),
        (b'{"dataframe_split":{"columns":["a","b","c"],"data":[1]}}', COLUMNS, "row 0 does not"),
        (b'{"dataframe_split":{"columns":["a","b","c"],"data":1}}', COLUMNS, "must be an array"),
        (b'{"dataframe_split":{"columns":["a","b","c"],"data":[[1]]}}', COLUMNS, "row 0 does not"),
        (
            b'{"dataframe_split":{"columns":["a","b","c"],"data":[["x",1,"y"]]}}',
            COLUMNS,
            "tensor 'a': element 0 is a string",
        ),
    ],
)
def test_invalid_json(data: bytes, metadata: ModelMetadata, mentions: str) -> None:
    response = assert_refused(CODEC, invocation(data), mentions, metadata=metadata)
    assert response.status == 400
    assert body(response)["error_code"] == "BAD_REQUEST"
    assert mentions in body(response)["message"]


@pytest.mark.parametrize(
    ("text", "metadata", "mentions"),
    [
        (b"", MATRIX, "no header"),
        (b"\n\n", MATRIX, "no header"),
        (b"\xff\n1\n", MATRIX, "not UTF-8 at byte 0"),
        (b'p,q\n"1,2\n', MATRIX, "the CSV is invalid"),
        (b'p\n"1"2\n', MATRIX, "the CSV is invalid"),
        (b"p,p\n1,2\n", MATRIX, "two columns with the same name"),
        (b"p,q,r\n", MATRIX, "no rows"),
        (b"p,q,r\n1,2\n", MATRIX, "row 0 does not have 3 columns"),
        (b"p,q,r\n1,2,x\n", MATRIX, "column 'r': 'x' is not FP32"),
        (b"p,q,r\n1,2,1e999\n", MATRIX, "column 'r': '1e999' is not FP32"),
        (b"p,q,r\n1,2,1e39\n", MATRIX, "beyond FP32"),
        (b"p,q,r\n1,2,3\n1,2,1_0\n", MATRIX, "column 'r': '1_0' is not FP32"),
        ("p,q,r\n1,2,٣\n".encode(), MATRIX, "column 'r': '٣' is not FP32"),
        (b"a,b,c\n1_0,1,x\n", COLUMNS, "column 'a': '1_0' is not INT32"),
        (b"a,b,c\n1.5,1,x\n", COLUMNS, "column 'a': '1.5' is not INT32"),
        (b"a,b,c\n,1,x\n", COLUMNS, "column 'a': '' is not INT32"),
        (b"a,b,c\n4294967296,1,x\n", COLUMNS, "tensor 'a'"),
        (b"a,b,c\n1,1\n", COLUMNS, "row 0 does not have 3 columns"),
        (b"a,b\n1,1\n", COLUMNS, "the model has the inputs a, b, c"),
        (b"p\nyes\n", model(m=("BOOL", (-1, 1))), "'yes' is not BOOL"),
    ],
)
def test_invalid_csv(text: bytes, metadata: ModelMetadata, mentions: str) -> None:
    assert assert_refused(CODEC, invocation(text, CSV), mentions, metadata=metadata).status == 400


def test_tables_are_limited() -> None:
    names = [f"c{i}" for i in range(MAX_COLUMNS + 1)]
    record = dict.fromkeys(names, 1)
    for form, value in (
        ("dataframe_records", [record]),
        ("dataframe_split", {"columns": names, "data": [[1] * len(names)]}),
    ):
        with pytest.raises(GatewayError, match="1024"):
            parse(CODEC, invocation({form: value}), MATRIX)
    with raises_kind(Kind.TOO_LARGE, match=f"over {MAX_CELLS} cells"):
        csv_tensors("x\n" + "1\n" * MAX_CELLS, MATRIX)
    with pytest.raises(GatewayError, match="the limit of 10"):
        CODEC.parse_request(invocation(b"x" * 11, CSV), Limits(json=10))


def test_many_cells_are_read_by_helper_processes() -> None:
    limits = event_loop_limits(DEFAULT_LIMITS)
    split = {"columns": ["a", "b", "c"], "data": [[1, 1, ""]] * 6000}
    for wire, metadata in (
        (invocation(b"x\n" + b"1\n" * 20_000, CSV), MATRIX),
        (invocation({"dataframe_split": split}), COLUMNS),
    ):
        partial = CODEC.parse_request(wire, limits)
        assert partial.text_bytes == len(wire.body[0])
        with pytest.raises(NeedsOffloadError):
            partial.complete(metadata)
        copy = pickle.loads(pickle.dumps(partial))
        assert copy.complete(metadata).operation.inputs


def test_an_unknown_datatype_of_the_model() -> None:
    unknown = model(x=("FP4", (-1,)))
    wire = invocation({"inputs": [1]})
    assert_refused(CODEC, wire, "unknown datatype 'FP4'", Kind.UNSUPPORTED, unknown)


@pytest.mark.parametrize("path", ["/ping", "/health"])
def test_health(path: str) -> None:
    parsed = parse(CODEC, get(path))
    assert parsed.operation == ServerReadyRequest()
    assert CODEC.build_response(HealthStatus(ok=True), parsed).status == 200
    assert CODEC.build_response(HealthStatus(ok=False), parsed).status == 503
    response = assert_refused(CODEC, post(path), "only GET", Kind.METHOD_NOT_ALLOWED)
    assert (response.status, response.headers["allow"]) == (405, "GET")


def test_version() -> None:
    parsed = parse(CODEC, get("/version"))
    assert parsed.operation == ServerMetadataRequest()
    response = CODEC.build_response(ServerMetadata("infergate", "1.2"), parsed)
    assert bytes(response.body[0]) == b"1.2"
    assert response.headers["content-type"] == "text/plain"


def test_invocations_are_posted_and_not_compressed() -> None:
    response = assert_refused(CODEC, get("/invocations"), "only POST", Kind.METHOD_NOT_ALLOWED)
    assert response.headers["allow"] == "POST"
    wire = post("/invocations", b"", content_type=JSON, content_encoding="gzip")
    assert_refused(CODEC, wire, "compressed", Kind.UNSUPPORTED_ENCODING)


# ---- responses


def predictions(*outputs: Tensor) -> Any:
    parsed = parse(CODEC, invocation({"inputs": [[1]]}), MATRIX)
    document = body(CODEC.build_response(InferResponse("m", outputs=outputs), parsed))
    assert list(document) == ["predictions"]
    return document["predictions"]


def floats(name: str, values: Any) -> Tensor:
    return tensor_from_array(name, Datatype.FP32, np.array(values, np.float32))


def test_predictions() -> None:
    texts = Tensor("t", Datatype.BYTES, (2,), pack_bytes([b"a", b"\xff"]))
    assert predictions(floats("y", [[0.1], [2]])) == [[0.1], [2.0]]
    assert predictions(floats("y", [0.5, 1]), texts) == [
        {"y": 0.5, "t": "a"},
        {"y": 1.0, "t": {"b64": "/w=="}},
    ]
    assert predictions(floats("y", 3)) == 3.0
    assert predictions(floats("y", [1, 2]), floats("z", [3])) == {"y": [1, 2], "z": [3]}
    (number,) = predictions(floats("y", [math.nan]))
    assert math.isnan(number)


@pytest.mark.parametrize("kind", Kind)
def test_errors_have_mlflows_form(kind: Kind) -> None:
    response = CODEC.build_error(GatewayError(kind, "what \ud800", retry_after=2))
    if kind is Kind.UNSUPPORTED_ENCODING:
        assert bytes(response.body[0]) == b"what ?"
    else:
        assert set(body(response)) == {"error_code", "message"}
        assert response.headers["retry-after"] == "2"
    codes = {Kind.NOT_FOUND: "RESOURCE_DOES_NOT_EXIST", Kind.INTERNAL: "INTERNAL_ERROR"}
    if kind in codes:
        assert body(response)["error_code"] == codes[kind]


# ---- Vertex AI


def test_vertex_instances() -> None:
    data = {"instances": ROWS, "parameters": {"threshold": 0.5}, "other": 1}
    wire = post(PREDICT, data)
    assert tensors(wire, MATRIX, VERTEX) == {"x": ROWS}
    parsed = parse(VERTEX, wire, MATRIX)
    assert isinstance(parsed.operation, InferRequest)
    assert parsed.operation.parameters == {"threshold": 0.5}
    response = VERTEX.build_response(InferResponse("m", outputs=(floats("y", [1, 2]),)), parsed)
    assert body(response) == {"predictions": [1.0, 2.0]}
    assert tensors(post(PREDICT, {"instances": ROWS, "parameters": None}), MATRIX, VERTEX)


def test_vertex_errors_and_health() -> None:
    assert parse(VERTEX, get(HEALTH)).operation == ServerReadyRequest()
    wire = post(PREDICT, {"inputs": 1})
    response = assert_refused(VERTEX, wire, "instances is missing", metadata=MATRIX)
    assert body(response) == {"error": "instances is missing"}
    wire = post(PREDICT, {"instances": ROWS, "parameters": {"a": {}}})
    assert_refused(VERTEX, wire, "parameters.a must be", metadata=MATRIX)
    assert pickle.loads(pickle.dumps(VERTEX)).claims == (HEALTH, PREDICT)


def test_the_form_of_vertex_bodies_is_configured() -> None:
    v2 = {"non_finite": "literal", "compress_min": 256}
    assert vertex.create(v2, "m", HEALTH, PREDICT, "v2").name == "v2-rest"
    assert VERTEX.name == "vertex"


def test_response_cost_counts_nested_lists() -> None:
    flat = Tensor("y", Datatype.INT8, (1000,), bytes(1000))
    deep = Tensor("y", Datatype.INT8, (1000, *[1] * 63), bytes(1000))
    for codec in (CODEC, VERTEX):
        costs = [
            codec.response_text_bytes(InferResponse("m", outputs=(output,)), None)
            for output in (flat, deep)
        ]
        assert costs == [1000, 1000 + 10 * 63_000]


def test_response_cost_counts_the_names_in_rows() -> None:
    outputs = tuple(
        Tensor(name * 200, Datatype.INT8, (1000,), b"\x80" * 1000) for name in ("y", "é")
    )
    response = InferResponse("m", outputs=outputs)
    for codec in (CODEC, VERTEX):
        assert codec.response_text_bytes(response, None) == 2 * 1000 + 1000 * 2 * 204
        low, high = codec.response_size(response, None)
        assert low <= sum(map(len, codec.build_response(response, None).body)) <= high
