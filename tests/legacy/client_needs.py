"""Checks whether a server's responses to recorded requests meet the real client's requirements.

The content must equal the recorded response of the real server. The form may differ: other headers,
header case, the order of outputs, server and request ids, statistics, and the form of the trailer
if binary was not requested. Each public function returns a line of text per difference that the
client or its user would notice.

The client rejects fields that its messages do not have, so this module parses with v1.9's messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from legacy import replay
from legacy.captures import RecordedConnection
from legacy.messages import Messages, short_debug_string
from legacy.replay import Response, Stream

_MESSAGES = Messages("1.9")


def differences_over_http(address: str, connection: RecordedConnection) -> list[str]:
    """Replay a recorded connection to the server at ``address``, and return the differences that
    the client would notice."""
    requests = list(replay.requests_of(connection.sent))
    expected = replay.responses_of(connection.received)
    return http_differences(requests, expected, replay.http(address, connection.sent))


def differences_over_grpc(address: str, connection: RecordedConnection) -> list[str]:
    """Replay a recorded connection like ``differences_over_http``."""
    calls = replay.streams(connection.sent, client=True)
    paths = {number: stream.fields[":path"] for number, stream in calls.items()}
    expected = replay.streams(connection.received, client=False)
    return grpc_differences(paths, expected, replay.grpc(address, connection.sent))


def http_differences(
    requests: list[bytes], expected: list[Response], actual: list[Response]
) -> list[str]:
    """Return the differences over HTTP. Both lists of responses have the order of the requests."""
    if len(actual) != len(expected):
        return [f"{len(actual)} responses to {len(expected)} requests"]
    return [
        f"{request.split(b' HTTP')[0].decode()}: {each}"
        for request, recorded, received in zip(requests, expected, actual, strict=True)
        for each in _response_differences(request.split(b" ")[1].decode(), recorded, received)
    ]


def _response_differences(target: str, expected: Response, actual: Response) -> Iterator[str]:
    kind = target.split("/")[2].partition("?")[0]
    if kind == "health":
        if (actual.code == 200) != (expected.code == 200):
            yield f"code {actual.code}"
        return
    status = _text(actual, "NV-Status", "RequestStatus")
    if status is None:
        yield f"unreadable NV-Status: {actual.header('NV-Status')!r}"
        return
    yield from _compare_status(_text(expected, "NV-Status", "RequestStatus"), status)
    if status.code != 1 or expected.code != 200:
        return
    if actual.code != 200:
        yield f"HTTP status {actual.code} with NV-Status SUCCESS"
    elif kind == "infer":
        yield from _http_infer_differences(expected, actual)
    elif kind in _BODIES and expected.body:
        name, differences = _BODIES[kind]
        message = _binary(name, actual.body)
        if message is None:
            yield f"unreadable {name}"
        else:
            yield from differences(_binary(name, expected.body), message)


def _http_infer_differences(expected: Response, actual: Response) -> Iterator[str]:
    header = _text(actual, "NV-InferResponse", "InferResponseHeader")
    if header is None or not header.model_name:
        yield f"unreadable NV-InferResponse: {actual.header('NV-InferResponse')!r}"
        return
    expected_header = _text(expected, "NV-InferResponse", "InferResponseHeader")
    yield from _compare_response(expected_header, header)
    actual_raw, trailer = _split_raw_outputs(header, actual.body)
    expected_raw, _ = _split_raw_outputs(expected_header, expected.body)
    yield from _compare("raw outputs", expected_raw, actual_raw)
    trailer_header = _binary("InferResponseHeader", trailer)
    if not trailer or trailer_header != header:
        yield "no trailer that equals NV-InferResponse"


def _split_raw_outputs(header: Any, body: bytes) -> tuple[dict[str, bytes], bytes]:
    raw = {}
    for output in header.output:
        size = output.raw.batch_byte_size
        raw[output.name], body = body[:size], body[size:]
    return raw, body


def grpc_differences(
    paths: dict[int, str], expected: dict[int, Stream], actual: dict[int, Stream]
) -> list[str]:
    """Return the differences over gRPC; calls are keyed by stream number."""
    return [
        f"{paths[number]} {number}: {each}"
        for number, recorded in expected.items()
        for each in _call_differences(
            paths[number].rpartition("/")[2], recorded, actual.get(number, Stream())
        )
    ]


def _call_differences(method: str, expected: Stream, actual: Stream) -> Iterator[str]:
    yield from _compare("grpc-status", expected.fields.get("grpc-status"), _end_status(actual))
    yield from _compare("messages", len(expected.messages), len(actual.messages))
    kind = f"{method.removeprefix('Stream')}Response"
    for recorded, received in zip(expected.messages, actual.messages, strict=False):
        expected_message, message = _binary(kind, recorded), _binary(kind, received)
        if message is None:
            yield f"unreadable {kind}"
            continue
        yield from _compare_status(expected_message.request_status, message.request_status)
        match kind:
            case "InferResponse":
                yield from _grpc_infer_differences(expected_message, message)
            case "StatusResponse":
                yield from _compare_models(expected_message.server_status, message.server_status)
            case "RepositoryResponse":
                yield from _compare_index(expected_message.index, message.index)
            case "HealthResponse":
                yield from _compare("health", expected_message.health, message.health)


def _end_status(stream: Stream) -> str | None:
    return stream.fields.get("grpc-status") if stream.ended else "not ended"


def _grpc_infer_differences(expected: Any, actual: Any) -> Iterator[str]:
    if expected.meta_data.model_name:
        yield from _compare_response(expected.meta_data, actual.meta_data)
    else:
        yield from _compare("id", expected.meta_data.id, actual.meta_data.id)
    yield from _compare("raw outputs", _raw_outputs(expected), _raw_outputs(actual))


def _raw_outputs(response: Any) -> dict[str, bytes]:
    """Return the raw outputs by name. Raw outputs have the order of ``meta_data.output``."""
    names = [output.name for output in response.meta_data.output]
    return dict(zip(names, response.raw_output, strict=True))


def _compare_status(expected: Any, actual: Any) -> Iterator[str]:
    yield from _compare("code", expected.code, actual.code)
    yield from _compare("msg", expected.msg, actual.msg)


def _compare_response(expected: Any, actual: Any) -> Iterator[str]:
    for name in ("model_name", "model_version", "batch_size", "id"):
        yield from _compare(name, getattr(expected, name), getattr(actual, name))
    yield from _compare("outputs", _outputs(expected), _outputs(actual))


def _outputs(header: Any) -> dict[str, bytes]:
    return {output.name: short_debug_string(output) for output in header.output}


def _compare_models(expected: Any, actual: Any) -> Iterator[str]:
    """Yield the differences in the fields of a status that the client uses: the presence of an id,
    and each model's batch limit and tensors."""
    if expected.id and not actual.id:
        yield "a status without the server's id"
    for name, recorded in expected.model_status.items():
        if name not in actual.model_status:
            yield f"no status of {name}"
            continue
        received = actual.model_status[name].config
        yield from _compare(f"{name}: tensors", _tensors(recorded.config), _tensors(received))
        yield from _compare(
            f"{name}: max_batch_size", recorded.config.max_batch_size, received.max_batch_size
        )


def _tensors(config: Any) -> list[tuple[str, int, list[int]]]:
    return [
        (tensor.name, tensor.data_type, list(tensor.dims))
        for tensor in [*config.input, *config.output]
    ]


def _compare_index(expected: Any, actual: Any) -> Iterator[str]:
    missing = {model.name for model in expected.models} - {model.name for model in actual.models}
    if missing:
        yield f"not in the index: {sorted(missing)}"


_BODIES: dict[str, tuple[str, Callable[[Any, Any], Iterator[str]]]] = {
    "status": ("ServerStatus", _compare_models),
    "repository": ("ModelRepositoryIndex", _compare_index),
}


def _compare(name: str, expected: object, actual: object) -> Iterator[str]:
    if expected != actual:
        yield f"{name} {actual!r}, not {expected!r}"


def _text(response: Response, header: str, kind: str) -> Any:
    """Return a header's message, or None if it is absent or the client cannot read it."""
    text = response.header(header)
    with suppress(text_format.ParseError):
        return None if text is None else text_format.Parse(text, getattr(_MESSAGES, kind)())
    return None


def _binary(kind: str, data: bytes) -> Any:
    with suppress(DecodeError):
        return getattr(_MESSAGES, kind).FromString(data)
    return None
