"""OpenAI's ``POST /v1/embeddings``. A request contains texts or tokens, and the response contains a
vector for each text or token list.

*Rule 1.* A request has ``model`` and ``input``, and optionally ``encoding_format`` and ``user``.
``user`` is ignored. All other members are rejected, including ``dimensions``, because the size of a
model's vectors is fixed. *Rule 2.* The configured input contains texts as BYTES, or tokens as
integers, with one row for each text or token list. The model's metadata determines the integer
datatype of tokens, and the number of dimensions of texts: [N], [N, 1] and so on. *Rule 3.* The
configured output has one row for each text or token list. The response contains the rows as FP32.

Source: OpenAI's API reference. Errors have the form that OpenAI's clients expect.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
import simdjson

from infergate.codecs.base import (
    Capabilities,
    ParsedRequest,
    PartialInferRequest,
    RequestSummary,
)
from infergate.codecs.encodings import is_unencoded
from infergate.codecs.envelopes.frontend_only_codec import FrontendOnlyCodec
from infergate.codecs.http_status import STATUS_BY_KIND, client_message, method_not_allowed
from infergate.codecs.json_tensors.json_data import REQUEST_RULES, read_data
from infergate.codecs.json_tensors.json_document import (
    Node,
    abbreviated,
    check_json_size,
    is_array,
    json_kind,
    parse_json,
    read_all_members,
    read_items,
    read_string,
)
from infergate.codecs.v2_rest.errors import JSON_TYPE
from infergate.core.datatypes import (
    DATATYPES_BY_NAME,
    FLOATS,
    INTEGERS,
    NUMPY_DTYPES,
    Datatype,
)
from infergate.core.errors import GatewayError, Kind, backend_garbage, bad_request, error_headers
from infergate.core.limits import KIB, Limits
from infergate.core.messages import (
    InferRequest,
    InferResponse,
    ModelMetadata,
    RequestedOutput,
    Response,
    TensorMetadata,
)
from infergate.core.records import record
from infergate.core.tensor import Buffer, Tensor, pack_bytes
from infergate.core.wire import HttpRequest, HttpResponse, join_parts

PATH: Final = "/v1/embeddings"
MAX_INPUTS: Final = 2048
"""Maximum number of texts or token lists of a request (2048 in OpenAI's API)."""
_SEARCHED_BYTES: Final = 16 * KIB
"""Number of bytes at the beginning and at the end of a body that are searched for the model's
name."""
_MODEL_MEMBER: Final = re.compile(rb'"model"\s*+:\s*+("(?:[^"\\]|\\.){1,1024}+")', re.DOTALL)
_MEMBERS: Final = ("model", "input", "encoding_format", "user", "dimensions")
_ARRAY_TYPES: Final = frozenset({simdjson.Array, list})
_ERROR_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}


@record
class EmbeddingModel:
    """The names of the tensors of an embedding model. ``tokens`` is the output with the number of
    tokens of each text, or empty if the model has no such output."""

    input: str
    output: str
    tokens: str = ""


@record
class EmbeddingRequest:
    """A parsed request with ``count`` rows, each of which is a text or ``length`` INT64 tokens."""

    model: str
    count: int
    data: Buffer
    length: int | None
    """The number of tokens of each row, or None for texts."""


@record
class EmbeddingFormat:
    """The data that ``build_response`` needs for a request."""

    tensors: EmbeddingModel
    count: int
    uses_base64: bool


class EmbeddingsCodec(FrontendOnlyCodec):
    """Serves OpenAI's embeddings API for the configured ``models``. The keys of ``models`` are the
    model names in requests and routes."""

    name: str = "openai-embeddings"
    claims: tuple[str, ...] = (PATH,)
    capabilities: Capabilities = Capabilities(
        datatypes=FLOATS | INTEGERS | {Datatype.BYTES}, supports_sequences=False
    )

    def __init__(self, v2: Mapping[str, Any], models: Mapping[str, Mapping[str, str]]) -> None:
        del v2
        self._models: Final = {name: EmbeddingModel(**model) for name, model in models.items()}

    # ---- requests

    def summarize(self, wire: HttpRequest) -> RequestSummary:
        """Find the model's name without parsing the body."""
        if wire.method != "POST":
            raise method_not_allowed(wire.method, "POST")
        if not is_unencoded(wire.headers):
            raise GatewayError(
                Kind.UNSUPPORTED_ENCODING, "requests for embeddings must not be compressed"
            )
        model = _find_model(join_parts(wire.body))
        if model not in self._models:
            raise GatewayError(Kind.NOT_FOUND, f"the model '{abbreviated(model)}' does not exist")
        return RequestSummary(InferRequest, model)

    def parse_request(
        self, wire: HttpRequest, limits: Limits
    ) -> PartialInferRequest[ParsedRequest]:
        summary = self.summarize(wire)
        body = join_parts(wire.body)
        check_json_size(len(body), limits.json)
        members = read_all_members(parse_json(bytes(body), limits), "the body")
        for name in members:
            if name not in _MEMBERS:
                raise bad_request(f"unknown member '{abbreviated(name)}'")
        if "dimensions" in members:
            raise bad_request("dimensions is not supported: the size of a model's vectors is fixed")
        if members.get("model") != summary.model:
            raise bad_request(
                'the body must be a JSON object in which "model" occurs exactly once, at the top '
                "level"
            )
        encoding = members.get("encoding_format", "float")
        if encoding not in ("float", "base64"):
            raise bad_request(
                f"encoding_format must be float or base64, not '{abbreviated(encoding)}'"
            )
        if "input" not in members:
            raise bad_request("input is missing")
        request = _read_input(summary.model, members["input"])
        tensors = self._models[summary.model]
        options = EmbeddingFormat(tensors, request.count, encoding == "base64")
        return PartialInferRequest(summary.model, "", partial(_complete, request, options))

    # ---- responses

    def response_size(self, response: InferResponse, parsed: ParsedRequest) -> tuple[int, int]:
        """Return 0 and the maximum size. The minimum is 0, because the response may hold only some
        of the outputs."""
        return 0, super().response_size(response, parsed)[1]

    def build_response(self, response: Response, parsed: ParsedRequest) -> HttpResponse:
        assert isinstance(response, InferResponse)
        options: EmbeddingFormat = parsed.response_options
        outputs = {tensor.name: tensor for tensor in response.outputs}
        vectors = _read_vectors(outputs, options)
        tokens = 0
        if options.tensors.tokens:
            counts = outputs.get(options.tensors.tokens)
            if counts is None or counts.datatype not in INTEGERS:
                raise backend_garbage(
                    f"output '{options.tensors.tokens}' must hold integer token counts"
                )
            tokens = int(counts.numpy().sum())
        embeddings: list[Any] = list(vectors)
        if options.uses_base64:
            embeddings = [base64.b64encode(vector).decode() for vector in vectors]
        document = {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": embedding}
                for index, embedding in enumerate(embeddings)
            ],
            "model": parsed.operation.model,  # type: ignore[union-attr]  # an InferRequest
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
        body = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
        return HttpResponse(200, {"content-type": JSON_TYPE}, [body])

    def build_error(self, error: GatewayError, wire: HttpRequest | None = None) -> HttpResponse:
        del wire
        status = STATUS_BY_KIND[error.kind]
        if error.kind is Kind.UNSUPPORTED:
            status = 400  # OpenAI's clients retry after a status of 500 or more
        error_type = _ERROR_TYPES.get(
            status, "server_error" if status >= 500 else "invalid_request_error"
        )
        message = client_message(error.public)
        code = "model_not_found" if error.kind is Kind.NOT_FOUND else None
        headers = {"content-type": JSON_TYPE, **error_headers(error)}
        if error.kind is Kind.METHOD_NOT_ALLOWED:
            headers["allow"] = "POST"
        document = {"error": {"message": message, "type": error_type, "param": None, "code": code}}
        return HttpResponse(status, headers, [orjson.dumps(document)])


def _find_model(body: Buffer) -> str:
    """Return the value of ``model`` near the beginning or the end of ``body``, where clients write
    this member. The match cannot be inside a JSON string, where the quotes would be escaped.
    ``parse_request`` checks the name again."""
    view = memoryview(body)
    for part in (view[:_SEARCHED_BYTES], view[-_SEARCHED_BYTES:]):
        match = _MODEL_MEMBER.search(part)
        if match is not None:
            try:
                return str(orjson.loads(match[1]))
            except orjson.JSONDecodeError:
                break
    raise bad_request(
        'the member "model" must be a string in the first or the last '
        f"{_SEARCHED_BYTES} bytes of the body"
    )


def _read_input(model: str, node: Node) -> EmbeddingRequest:
    """Read ``input``: a string, strings, tokens, or lists of tokens. Raises BAD_REQUEST."""
    if type(node) is str:
        return EmbeddingRequest(model, 1, _pack_texts([node]), None)
    if not is_array(node):
        raise bad_request(f"input must be a string or an array, not {json_kind(node)}")
    if not len(node):
        raise bad_request("input is empty")
    first = next(iter(node))
    if type(first) is str:
        texts = read_items(node, "input", MAX_INPUTS)
        return EmbeddingRequest(model, len(texts), _pack_texts(texts), None)
    if not is_array(first):
        return EmbeddingRequest(model, 1, _read_tokens("input", node, len(node)), len(node))
    rows = read_items(node, "input", MAX_INPUTS)
    length = len(first)
    for index, row in enumerate(rows):
        if not is_array(row) or len(row) != length:
            raise bad_request(
                f"input[{index}] must have {length} tokens, like input[0]: lists of tokens must "
                "have the same length"
            )
    data = b"".join(_read_tokens(f"input[{index}]", row, length) for index, row in enumerate(rows))
    return EmbeddingRequest(model, len(rows), data, length)


def _pack_texts(texts: list[Node]) -> bytes:
    return pack_bytes(
        [read_string(text, f"input[{index}]").encode() for index, text in enumerate(texts)]
    )


def _read_tokens(path: str, node: Node, length: int) -> bytes:
    if not _ARRAY_TYPES.isdisjoint(map(type, node)):  # ``read_data`` accepts nested arrays
        raise bad_request(f"{path} has an array among its tokens")
    return bytes(read_data("input", Datatype.INT64, (length,), node, REQUEST_RULES))


def _complete(
    request: EmbeddingRequest, options: EmbeddingFormat, metadata: ModelMetadata
) -> ParsedRequest:
    """Return the inference with the configured input (Rule 2). Raises BAD_REQUEST and
    UNSUPPORTED."""
    tensors = options.tensors
    declared = next((item for item in metadata.inputs if item.name == tensors.input), None)
    if declared is None:
        names = ", ".join(item.name for item in metadata.inputs)
        raise GatewayError(
            Kind.UNSUPPORTED,
            f"model '{request.model}' has no input '{tensors.input}', only {abbreviated(names)}",
        )
    outputs = [RequestedOutput(tensors.output)]
    if tensors.tokens:
        outputs.append(RequestedOutput(tensors.tokens))
    inputs = (_text_tensor if request.length is None else _token_tensor)(request, declared)
    operation = InferRequest(request.model, inputs=(inputs,), outputs=tuple(outputs))
    return ParsedRequest(operation, options)


def _text_tensor(request: EmbeddingRequest, metadata: TensorMetadata) -> Tensor:
    if metadata.datatype != Datatype.BYTES.value:
        raise bad_request(f"model '{request.model}' takes {metadata.datatype} tokens, not text")
    shape = (request.count,) + (1,) * (len(metadata.shape) - 1)
    _check_shape(shape, metadata)
    return Tensor(metadata.name, Datatype.BYTES, shape, request.data)


def _token_tensor(request: EmbeddingRequest, metadata: TensorMetadata) -> Tensor:
    datatype = DATATYPES_BY_NAME.get(metadata.datatype)
    if datatype not in INTEGERS:
        raise bad_request(f"model '{request.model}' takes text, not tokens")
    shape = (request.count, request.length or 0)
    _check_shape(shape, metadata)
    tokens = np.frombuffer(request.data, "<i8")
    values = tokens.astype(NUMPY_DTYPES[datatype])
    if (values != tokens).any():
        raise bad_request(f"a token in input does not fit into {datatype.value}")
    return Tensor(metadata.name, datatype, shape, values.view(np.uint8).data)


def _check_shape(shape: tuple[int, ...], metadata: TensorMetadata) -> None:
    expected = metadata.shape
    if len(shape) != len(expected) or any(
        size not in (-1, actual) for size, actual in zip(expected, shape, strict=True)
    ):
        raise bad_request(
            f"input '{metadata.name}' has the shape {list(expected)}; the request has {list(shape)}"
        )


def _read_vectors(
    outputs: Mapping[str, Tensor], options: EmbeddingFormat
) -> npt.NDArray[np.float32]:
    """Return one vector for each text or token list (Rule 3). Raises BACKEND_GARBAGE."""
    name, count = options.tensors.output, options.count
    tensor = outputs.get(name)
    if tensor is None or tensor.datatype not in FLOATS:
        raise backend_garbage(f"output '{name}' does not hold vectors of floats")
    shape = tensor.shape
    is_batch = len(shape) >= 2 and shape[0] == count and set(shape[1:-1]) <= {1}
    if not is_batch and not (len(shape) == 1 and count == 1):
        raise backend_garbage(
            f"output '{name}' has the shape {list(shape)}, not one vector for each of {count} "
            "inputs"
        )
    with np.errstate(over="ignore"):  # an overflow becomes infinity
        vectors = tensor.numpy().reshape(count, shape[-1]).astype("<f4", copy=False)
    if not np.isfinite(vectors).all():
        raise backend_garbage(f"output '{name}' holds NaN or infinities")
    return vectors if vectors.flags.aligned else vectors.copy()
