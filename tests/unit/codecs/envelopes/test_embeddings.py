"""The codec for OpenAI's embeddings API."""

import base64
import json
import pickle
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from envelope_kit import assert_refused, body, get, parse, post

from gateway_errors import raises_kind
from infergate.codecs.envelopes.embeddings import MAX_INPUTS, PATH, EmbeddingsCodec
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, UnauthenticatedError
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import (
    InferRequest,
    InferResponse,
    ModelMetadata,
    RequestedOutput,
    TensorMetadata,
)
from infergate.core.tensor import Tensor, tensor_from_array, unpack_bytes

CODEC = EmbeddingsCodec(
    {},
    {
        "e": {"input": "text", "output": "vector"},
        "counted": {"input": "text", "output": "vector", "tokens": "num_input_tokens"},
    },
)


def metadata(datatype: str = "BYTES", shape: tuple[int, ...] = (-1, 1)) -> ModelMetadata:
    return ModelMetadata("e", inputs=(TensorMetadata("text", datatype, shape),))


TEXTS = metadata()
TOKENS = metadata("INT32", (-1, -1))


def request(model: str = "e", **members: Any) -> Any:
    return post(PATH, {"input": "a", "model": model, **members})


def input_tensor(wire: Any, model: ModelMetadata = TEXTS) -> Tensor:
    operation = parse(CODEC, wire, model).operation
    assert isinstance(operation, InferRequest)
    (tensor,) = operation.inputs
    return tensor


def response_document(
    vectors: Any, datatype: Datatype = Datatype.FP32, *, count: int = 2, **members: Any
) -> Any:
    """Return the JSON response to ``count`` texts, for which the backend returns ``vectors``."""
    parsed = parse(CODEC, request(input=["a"] * count, **members), TEXTS)
    if not isinstance(vectors, Tensor):
        vectors = tensor_from_array("vector", datatype, vectors)
    return body(CODEC.build_response(InferResponse("e", outputs=(vectors,)), parsed))


def floats(*rows: Any) -> npt.NDArray[np.float32]:
    return np.array(rows, np.float32)


@pytest.mark.parametrize("texts", ["größe", ["größe"]])
def test_one_text(texts: Any) -> None:
    tensor = input_tensor(request(input=texts, user="u", encoding_format=None, dimensions=None))
    assert (tensor.name, tensor.datatype, tensor.shape) == ("text", Datatype.BYTES, (1, 1))
    assert [bytes(text) for text in unpack_bytes(tensor.data)] == ["größe".encode()]


@pytest.mark.parametrize("shape", [(-1,), (-1, 1), (-1, -1), (2, 1)])
def test_several_texts_get_the_rank_of_the_model(shape: tuple[int, ...]) -> None:
    tensor = input_tensor(request(input=["a", ""]), metadata(shape=shape))
    assert tensor.shape == (2, 1)[: len(shape)]
    assert [bytes(text) for text in unpack_bytes(tensor.data)] == [b"a", b""]


@pytest.mark.parametrize(
    ("tokens", "rows"), [([1, 2], [[1, 2]]), ([[1, 2]], [[1, 2]]), ([[1], [2]], [[1], [2]])]
)
@pytest.mark.parametrize("datatype", ["INT32", "INT64", "UINT16"])
def test_tokens_become_an_integer_tensor(tokens: Any, rows: Any, datatype: str) -> None:
    tensor = input_tensor(request(input=tokens), metadata(datatype, (-1, -1)))
    assert tensor.datatype.value == datatype
    assert tensor.numpy().tolist() == rows


def test_only_the_configured_outputs_are_requested() -> None:
    operation = parse(CODEC, request(), TEXTS).operation
    vector = RequestedOutput("vector")
    assert operation == InferRequest("e", inputs=operation.inputs, outputs=(vector,))
    counted = parse(CODEC, request("counted"), TEXTS).operation
    assert [output.name for output in counted.outputs] == ["vector", "num_input_tokens"]


@pytest.mark.parametrize("padding", ["", "x" * 20_000, '\\"model\\":\\"other\\"'])
@pytest.mark.parametrize("order", ["{{{model},{input}}}", "{{{input},{model}}}"])
def test_the_model_is_found_at_either_end_of_the_body(padding: str, order: str) -> None:
    data = order.format(model='"model" : "e"', input=f'"input":"{padding}"').encode()
    assert CODEC.summarize(post(PATH, data)).model == "e"
    assert input_tensor(post(PATH, data)).shape == (1, 1)


def test_escapes_in_the_models_name() -> None:
    assert CODEC.summarize(post(PATH, b'{"model":"\\u0065","input":"a"}')).model == "e"


@pytest.mark.parametrize(
    ("data", "mentions"),
    [
        (b"", 'the member "model" must be a string'),
        (b"[]", 'the member "model" must be a string'),
        (b'{"input":"a"}', 'the member "model" must be a string'),
        (b'{"model":7,"input":"a"}', 'the member "model" must be a string'),
        (b'{"model":"\\x","input":"a"}', 'the member "model" must be a string'),
        (b'{"a":"' + b"x" * 20_000 + b'","model":"e","b":"' + b"x" * 20_000 + b'"}', "first or"),
        (b'{"model":"e","input":"a"', "invalid JSON"),
        (b'[{"model":"e","input":"a"}]', "must be an object"),
        (b'{"input":{"model":"e"}}', '"model" occurs exactly once'),
        (b'{"mod\\u0065l":"counted","user":"","input":{"model":"e"}}', '"model" occurs exactly'),
        (b'{"model":"e","model":"counted","input":"a"}', "'model' twice"),
        (b'{"model":"e"}', "input is missing"),
        (b'{"model":"e","input":null}', "input is missing"),
        (b'{"model":"e","input":[]}', "input is empty"),
        (b'{"model":"e","input":{}}', "not an object"),
        (b'{"model":"e","input":1}', "not a number"),
        (b'{"model":"e","input":["a",1]}', "input[1] must be a string"),
        (b'{"model":"e","input":[null]}', "INT64 takes integers"),
        (b'{"model":"e","input":[1,"a"]}', "element 1 is a string"),
        (b'{"model":"e","input":[1.5]}', "INT64 takes integers"),
        (b'{"model":"e","input":[[1],[1,2]]}', "input[1] must have 1 tokens"),
        (b'{"model":"e","input":[[1],"a"]}', "input[1] must have 1 tokens"),
        (b'{"model":"e","input":[1,[2]]}', "input has an array among its tokens"),
        (b'{"model":"e","input":[1,[2,3],[]]}', "input has an array among its tokens"),
        (b'{"model":"e","input":[[1,2],[[3],4]]}', "input[1] has an array among its tokens"),
        (b'{"model":"e","input":[[[1]]]}', "input[0] has an array among its tokens"),
        (b'{"model":"e","input":"a","dimensions":3}', "dimensions is not supported"),
        (b'{"model":"e","input":"a","truncate":"END"}', "unknown member 'truncate'"),
        (b'{"model":"e","input":"a","encoding_format":"int8"}', "must be float or base64"),
        (b'{"model":"e","input":"a","encoding_format":[]}', "must be float or base64"),
    ],
)
def test_invalid_requests(data: bytes, mentions: str) -> None:
    response = assert_refused(CODEC, post(PATH, data), mentions, metadata=TEXTS)
    assert response.status == 400
    assert body(response)["error"]["type"] == "invalid_request_error"


def test_the_number_of_texts_is_limited() -> None:
    assert input_tensor(request(input=["a"] * MAX_INPUTS)).shape == (MAX_INPUTS, 1)
    assert_refused(CODEC, request(input=["a"] * (MAX_INPUTS + 1)), "limit is 2048", metadata=TEXTS)
    assert_refused(CODEC, request(input=[[1]] * (MAX_INPUTS + 1)), "limit is 2048", metadata=TOKENS)


@pytest.mark.parametrize(
    ("input_", "model", "mentions"),
    [
        ("a", TOKENS, "takes INT32 tokens, not text"),
        ([1], TEXTS, "takes text, not tokens"),
        ([2**40], TOKENS, "does not fit into INT32"),
        ("a", metadata(shape=(1, -1, 16)), "has the shape [1, -1, 16]"),
        (["a", "b"], metadata(shape=(1, 1)), "has the shape [1, 1]; the request has [2, 1]"),
        ([1], metadata("INT64", (-1,)), "has the shape [-1]; the request has [1, 1]"),
    ],
)
def test_requests_that_do_not_fit_the_model(
    input_: Any, model: ModelMetadata, mentions: str
) -> None:
    assert_refused(CODEC, request(input=input_), mentions, metadata=model)


def test_the_error_for_a_wrong_configuration_names_the_inputs() -> None:
    model = ModelMetadata("e", inputs=(TensorMetadata("INPUT0", "BYTES", (-1,)),))
    mentions = "no input 'text', only INPUT0"
    response = assert_refused(CODEC, request(), mentions, Kind.UNSUPPORTED, model)
    assert response.status == 400  # OpenAI's clients would retry after a 501


def test_vectors_as_numbers() -> None:
    assert response_document(floats([1, 0.1], [-2.5, 0])) == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [1.0, 0.1]},
            {"object": "embedding", "index": 1, "embedding": [-2.5, 0.0]},
        ],
        "model": "e",
        "usage": {"prompt_tokens": 0, "total_tokens": 0},
    }


@pytest.mark.parametrize("datatype", [Datatype.FP16, Datatype.BF16, Datatype.FP32, Datatype.FP64])
def test_vectors_as_base64_of_fp32(datatype: Datatype) -> None:
    document = response_document(floats([1, 0.5], [-2.5, 0]), datatype, encoding_format="base64")
    for item, row in zip(document["data"], ([1, 0.5], [-2.5, 0]), strict=True):
        assert np.frombuffer(base64.b64decode(item["embedding"]), "<f4").tolist() == row


@pytest.mark.parametrize("shape", [(3,), (1, 3), (1, 1, 3)])
def test_shapes_of_one_vector(shape: tuple[int, ...]) -> None:
    (item,) = response_document(np.ones(shape, np.float32), count=1)["data"]
    assert item["embedding"] == [1, 1, 1]


def test_usage_is_the_sum_of_the_counts() -> None:
    parsed = parse(CODEC, request("counted", input=["a", "b"]), TEXTS)
    vectors = tensor_from_array("vector", Datatype.FP32, floats([1], [2]))
    counts = tensor_from_array("num_input_tokens", Datatype.INT32, np.array([[3], [4]]))
    response = InferResponse("counted", outputs=(counts, vectors))
    usage = body(CODEC.build_response(response, parsed))["usage"]
    assert usage == {"prompt_tokens": 7, "total_tokens": 7}
    with pytest.raises(GatewayError, match="integer token counts"):
        CODEC.build_response(InferResponse("counted", outputs=(vectors,)), parsed)


@pytest.mark.parametrize(
    ("vectors", "mentions"),
    [
        (floats([1, 2]), "not one vector for each of 2"),
        (floats(1, 2), "not one vector for each of 2"),
        (np.zeros((2, 3, 4), np.float32), "not one vector for each of 2"),
        (floats([1], [np.nan]), "NaN or infinities"),
        (tensor_from_array("vector", Datatype.FP64, np.array([[1e300], [0]])), "infinities"),
        (Tensor("other", Datatype.FP32, (2, 0), b""), "does not hold vectors"),
        (Tensor("vector", Datatype.BYTES, (0,), b""), "does not hold vectors"),
    ],
)
def test_invalid_responses_of_backends(vectors: Any, mentions: str) -> None:
    with raises_kind(Kind.BACKEND_GARBAGE, match=mentions):
        response_document(vectors)


def test_unknown_models_methods_and_encodings() -> None:
    response = assert_refused(CODEC, request("x"), "'x' does not exist", Kind.NOT_FOUND)
    assert response.status == 404
    assert body(response)["error"]["code"] == "model_not_found"
    response = assert_refused(CODEC, get(PATH), "only POST", Kind.METHOD_NOT_ALLOWED)
    assert (response.status, response.headers["allow"]) == (405, "POST")
    wire = post(PATH, b"", content_encoding="gzip")
    assert assert_refused(CODEC, wire, "compressed", Kind.UNSUPPORTED_ENCODING).status == 415


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_of_error_has_openais_form(kind: Kind) -> None:
    response = CODEC.build_error(GatewayError(kind, "x" * 3000 + "\ud800", retry_after=2))
    error = body(response)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert len(error["message"]) == 2000
    assert response.headers["retry-after"] == "2"
    assert error["type"].endswith("_error")


def test_an_unauthenticated_client_is_challenged() -> None:
    response = CODEC.build_error(UnauthenticatedError("no key", "Bearer"))
    assert response.headers["www-authenticate"] == "Bearer"
    assert body(response)["error"]["type"] == "authentication_error"


def test_parsed_requests_and_codecs_can_be_pickled() -> None:
    codec = pickle.loads(pickle.dumps(CODEC))
    for input_, model in ((["a", "b"], TEXTS), ([[1], [2]], TOKENS)):
        partial = pickle.loads(
            pickle.dumps(codec.parse_request(request(input=input_), DEFAULT_LIMITS))
        )
        assert (
            partial.complete(model).operation
            == parse(CODEC, request(input=input_), model).operation
        )


def test_size_estimates() -> None:
    wire = request(input="a" * 1000)
    size = len(json.dumps({"input": "a" * 1000, "model": "e"}))
    assert CODEC.request_text_bytes(wire) == size
    assert (CODEC.json_bytes(wire, 10), CODEC.json_bytes(wire, 10_000)) == (10, size)
    parsed = parse(CODEC, wire, TEXTS)
    output = tensor_from_array("vector", Datatype.FP32, floats([1] * 100))
    response = InferResponse("e", outputs=(output,))
    assert CODEC.response_text_bytes(response, parsed) == 400 + 2  # the vector has two brackets
    low, high = CODEC.response_size(response, parsed)
    assert low <= len(body(CODEC.build_response(response, parsed))) <= high
    assert CODEC.rewrite_bytes(None, None) == 0


@pytest.mark.parametrize("method", ["build_request", "parse_response"])
def test_the_codec_does_not_support_backends(method: str) -> None:
    with pytest.raises(GatewayError, match="do not speak"):
        getattr(CODEC, method)(None, None, None)
