"""Each envelope codec parses any body as an inference or rejects it with a GatewayError."""

import json
from contextlib import suppress
from typing import Any

import pytest
from envelope_kit import parse, post
from hypothesis import given
from hypothesis import strategies as st

from infergate.codecs.envelopes import ENVELOPES
from infergate.core.errors import GatewayError
from infergate.core.messages import InferRequest, ModelMetadata, TensorMetadata

V2 = {"non_finite": "literal", "compress_min": 256}
ROUTES = {"health_route": "/h", "predict_route": "/p"}
PREDICT = [
    ("sagemaker", {"model": "m"}, "/invocations", ""),
    ("vertex", {"model": "m", **ROUTES, "body": "v2"}, "/p", ""),
    ("vertex", {"model": "m", **ROUTES, "body": "instances"}, "/p", ""),
    ("mlflow", {"model": "m"}, "/invocations", "application/json"),
    ("mlflow", {"model": "m"}, "/invocations", "text/csv"),
    ("embeddings", {"models": {"m": {"input": "x", "output": "y"}}}, "/v1/embeddings", ""),
]
MODELS = st.lists(
    st.builds(
        TensorMetadata,
        st.sampled_from(["x", "y"]),
        st.sampled_from(["BYTES", "FP32", "INT8", "BOOL", "FP4"]),
        st.lists(st.sampled_from([-1, 0, 1, 2]), max_size=3).map(tuple),
    ),
    max_size=2,
    unique_by=lambda tensor: tensor.name,
)
NAMES = st.sampled_from(
    ["instances", "inputs", "input", "model", "params", "parameters", "dataframe_split", "data",
     "dataframe_records", "columns", "x", "y", "b64", "name", "datatype", "shape", "", "\0"]
)  # fmt: skip
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["m", "x", "", "BYTES", "\ud800", "QQ=="]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
JSON = st.dictionaries(NAMES, VALUES, min_size=1).map(lambda value: json.dumps(value).encode())
CSV = st.lists(st.sampled_from(["x", "y", "1", "1.5", "", ",", "\n", '"', "\r\n", "nan", "true"]))
BODIES = st.binary() | JSON | CSV.map(lambda parts: "".join(parts).encode())


@pytest.mark.parametrize("api", PREDICT)
@given(body=BODIES, inputs=MODELS)
def test_any_bytes_are_read_or_refused(
    api: tuple[str, dict[str, Any], str, str], body: bytes, inputs: list[TensorMetadata]
) -> None:
    name, options, path, content_type = api
    codec = ENVELOPES[name](v2=V2, **options)
    wire = post(path, body, content_type=content_type)
    with suppress(GatewayError):
        parsed = parse(codec, wire, ModelMetadata("m", inputs=tuple(inputs)))
        assert isinstance(parsed.operation, InferRequest)
