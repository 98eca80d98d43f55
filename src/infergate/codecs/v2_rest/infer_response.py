"""The inference response, in JSON or with binary tensors after it.

*Rule 1.* Outputs are written in the form that each was asked for. BYTES that are not UTF-8 go into
JSON as base64, the whole tensor, marked by the parameter ``content_type: base64`` (rest-proxy and
MLServer mark it so). BYTES that a backend marked so in JSON are decoded, and the mark is left out.
*Rule 2.* A backend's answer is judged by its body: content types are not looked at.
"""

from __future__ import annotations

import math
from typing import Any, Final

from infergate.codecs.base import Parsed
from infergate.codecs.v2_rest.document import Node, members, read_tolerantly, string
from infergate.codecs.v2_rest.elements import (
    ANSWER,
    BASE64,
    write_base64,
    write_numbers,
    write_strings,
)
from infergate.codecs.v2_rest.encodings import accepted, decoded, encoded, is_plain
from infergate.codecs.v2_rest.errors import JSON_TYPE, LONGEST, backend_error
from infergate.codecs.v2_rest.infer_request import Wanted
from infergate.codecs.v2_rest.tensors import (
    BINARY_SIZE,
    BINARY_TYPE,
    HEADER,
    Blobs,
    Side,
    Source,
    dump,
    read_parameters,
    read_tensor,
    read_tensors,
    split,
    write_parameters,
    write_tensor,
)
from infergate.core.datatypes import BY_NAME, Datatype
from infergate.core.errors import GatewayError, Kind, Origin, bad_request, garbage
from infergate.core.inflation import RATIO
from infergate.core.json_size import json_size
from infergate.core.limits import Limits, check_loop
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.tensor import NO_PARAMETERS, Buffer, Parameters, Tensor
from infergate.core.wire import HttpResponse, size

_FIELDS: Final = ("model_name", "model_version", "id", "parameters", "outputs")
_PLAIN: Final = Wanted({}, otherwise=False, accept_encoding="")

# ---- write ------------------------------------------------------------------------------------


def write_response(
    answer: InferResponse, parsed: Parsed, spelling: tuple[bytes, bytes, bytes], compress_min: int
) -> HttpResponse:
    """The answer in the form that ``parsed.reply`` notes; JSON where it notes nothing."""
    wanted = parsed.reply if isinstance(parsed.reply, Wanted) else _PLAIN
    head: dict[str, Any] = {}
    if answer.id:
        head["id"] = answer.id
    head["model_name"] = answer.model
    if answer.version:
        head["model_version"] = answer.version
    if answer.parameters and (parameters := write_parameters(answer.parameters, "response")):
        head["parameters"] = parameters
    outputs: list[dict[str, Any]] = []
    blobs: list[Buffer] = []
    for tensor in answer.outputs:
        if tensor.place is not None:
            outputs.append(_placed(tensor))
        elif wanted.is_binary(tensor.name):
            outputs.append(write_tensor(tensor, {BINARY_SIZE: len(tensor.data)}))
            blobs.append(tensor.data)
        else:
            outputs.append(_in_json(tensor, spelling))
    head["outputs"] = outputs
    text = dump(head)
    if not blobs:
        return compressed({"content-type": JSON_TYPE}, [text], wanted.accept_encoding, compress_min)
    headers = {"content-type": BINARY_TYPE, HEADER: str(len(text))}
    return compressed(headers, [text, *blobs], wanted.accept_encoding, compress_min)


def text_size(answer: InferResponse, parsed: Parsed) -> int:
    """Bytes of those tensors that ``write_response`` writes as JSON, or compresses."""
    wanted = parsed.reply if isinstance(parsed.reply, Wanted) else _PLAIN
    compresses = bool(wanted.accept_encoding and accepted(wanted.accept_encoding))
    size = 0
    for tensor in answer.outputs:
        if compresses or not wanted.is_binary(tensor.name):
            size += len(tensor.data)
    return size


def _placed(tensor: Tensor) -> dict[str, Any]:
    """The object of an output in shared memory, without parameters, as Triton writes it:
    perf_analyzer looks for ``binary_data_size`` in any that there are."""
    return {"name": tensor.name, "datatype": tensor.datatype.spelling, "shape": tensor.shape}


def written_size(answer: InferResponse, parsed: Parsed) -> tuple[int, int]:
    """Bytes that ``write_response`` writes: at least, where it does not compress them; and at most,
    with those that are compressed."""
    wanted = parsed.reply if isinstance(parsed.reply, Wanted) else _PLAIN
    compresses = bool(wanted.accept_encoding and accepted(wanted.accept_encoding))
    least, most = json_size(t for t in answer.outputs if not wanted.is_binary(t.name))
    if compresses:
        return 0, 2 * most + sum(len(t.data) for t in answer.outputs if wanted.is_binary(t.name))
    return least, most


def _in_json(tensor: Tensor, spelling: tuple[bytes, bytes, bytes]) -> dict[str, Any]:
    if tensor.datatype is not Datatype.BYTES:
        told = write_tensor(tensor, NO_PARAMETERS)
        told["data"] = write_numbers(tensor, spelling)
    elif (texts := write_strings(tensor)) is not None:
        told = write_tensor(tensor, NO_PARAMETERS)
        told["data"] = texts
    else:
        told = write_tensor(tensor, BASE64)
        told["data"] = write_base64(tensor)
    return told


def compressed(
    headers: dict[str, str], body: list[Buffer], accept_encoding: str, compress_min: int
) -> HttpResponse:
    """A 200 with ``body``, encoded as the client prefers unless it is shorter than
    ``compress_min`` bytes."""
    if accept_encoding and size(body) >= compress_min:
        encoding = accepted(accept_encoding)
        if encoding:
            headers = {**headers, "content-encoding": encoding, "vary": "accept-encoding"}
            body = encoded(body, encoding)
    return HttpResponse(200, headers, body)


# ---- read -------------------------------------------------------------------------------------


def answer_body(wire: HttpResponse, limits: Limits) -> Buffer:
    """The body of a 200, its encoding undone. Raises the error that any other status tells, and
    CostlyError on the event loop."""
    if not is_plain(wire.headers):
        check_loop(limits, RATIO * size(wire.body), limits.json_inline)
    try:
        body = decoded(wire.headers, wire.body, limits)
    except GatewayError as error:
        raise blamed(error) from None
    if wire.status != 200:
        raise backend_error(wire.status, wire.headers, bytes(body))
    return body


def blamed(error: GatewayError) -> GatewayError:
    """What reading the backend's answer found wrong, as the backend's mistake."""
    return garbage(f"the backend's answer cannot be used: {error.public}")


def read_response(wire: HttpResponse, operation: InferRequest, limits: Limits) -> InferResponse:
    """The answer to ``operation``. Raises the backend's error, or BACKEND_GARBAGE."""
    body = answer_body(wire, limits)
    try:
        cut = split(wire.headers, body, limits)
        top = members(read_tolerantly(cut.json, limits), "the body", (*_FIELDS, "error"))
        if "outputs" not in top:
            # Triton and Seldon tell some errors under 200
            raise _told_error(top) if "error" in top else bad_request("outputs is missing")
        # Triton gives no length where every binary output is empty
        blobs = Blobs(memoryview(b"") if cut.binary is None else cut.binary)
        places = {output.name: output.place for output in operation.outputs}
        source = Source(_SIDE, blobs, limits, places)
        outputs = read_tensors(
            top["outputs"], "outputs", lambda node, path: read_tensor(node, path, source), limits
        )
        blobs.finish()
        answer = InferResponse(
            string(top.get("model_name", operation.model), "model_name"),
            string(top.get("model_version", ""), "model_version"),
            string(top.get("id", ""), "id"),
            read_parameters(top, "", source),
            outputs,
        )
    except GatewayError as error:
        if error.kind is Kind.BACKEND_ERROR:
            raise
        raise blamed(error) from None
    _check_outputs(operation, answer)
    return answer


def _told_error(top: dict[str, Node]) -> GatewayError:
    """An error under status 200, where the status tells nothing of its kind."""
    said = top["error"]
    told = (
        said if isinstance(said, str) and said else "the backend answered an error without a text"
    )
    return GatewayError(
        Kind.BACKEND_ERROR, told[:LONGEST], origin=Origin.BACKEND, detail="under HTTP 200"
    )


def _check_outputs(operation: InferRequest, answer: InferResponse) -> None:
    given = {tensor.name for tensor in answer.outputs}
    for output in operation.outputs:
        if output.name not in given:
            raise garbage(f"the backend's answer lacks output '{output.name}'")


def _any_case(spelt: str) -> Datatype | None:
    return BY_NAME.get(spelt.upper())


def _empty(name: str, shape: tuple[int, ...], parameters: Parameters) -> Buffer:
    del parameters
    if math.prod(shape) != 0:
        raise bad_request(f"tensor '{name}' has no data")
    return b""


_SIDE: Final = Side(ANSWER, _any_case, _empty)
