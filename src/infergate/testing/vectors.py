r"""Test vectors: wire messages with their canonical form, for checks of codecs.

A case is a folder ``<protocol>/<case>/`` with a wire file and ``case.json``::

    {"about": "the purpose of the case",
     "source": "the origin of the bytes",
     "side": "request" | "response",
     "canonical": {"type": "InferRequest", ...}         # or, for a message that must be rejected:
     "error": {"kind": "BAD_REQUEST", "mentions": ["INPUT0"]},
     "both_ways": true,          # the codec builds the bytes of the wire file (default false)
     "asks": {"type": ...},      # for a response: the operation of the request
     "profile": "triton",        # for building a request: the kind of server (default triton)
     "model": {"type": "ModelMetadata", ...},   # for protocols that need the model's metadata
     "options": {}}              # the options of the codec

``wire.http`` is an HTTP/1.1 message: start line, header lines, an empty line, each ending in CRLF,
then the body up to the end of the file (Content-Length is ignored). ``wire.rpc`` is a gRPC message:
first ``/package.Service/Method`` for a request or ``code N details`` for a response, then metadata
lines ``name: value``, an empty line, then the message up to the end of the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from infergate.codecs.base import Codec, ParsedRequest, PartialInferRequest
from infergate.codecs.profiles import PROFILES
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS, Limits
from infergate.core.messages import ModelMetadata, Operation, Response
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpRequest, HttpResponse, RpcRequest, RpcResponse, join_parts
from infergate.testing.canonical import from_json, to_text

Wire = HttpRequest | HttpResponse | RpcRequest | RpcResponse
_CASE_KEYS: Final = frozenset((
    "about", "source", "side", "canonical", "error",
    "both_ways", "asks", "profile", "model", "options",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class ExpectedError:
    """The expected error of a case, and the strings that the public message must contain."""

    kind: Kind
    mentions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Vector:
    """A test vector, read from the folder of a case. Exactly one of ``canonical`` and ``error``
    is set. ``operation`` is set only for responses."""

    protocol: str
    name: str
    about: str
    source: str
    wire: Wire
    canonical: Operation | Response | None = None
    error: ExpectedError | None = None
    both_ways: bool = False
    operation: Operation | None = None
    profile: str = "triton"
    model: ModelMetadata | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.protocol}/{self.name}"


def load(folder: Path) -> list[Vector]:
    """Return all cases in the folder of a protocol, sorted by name. Raises ValueError."""
    return [load_case(path.parent) for path in sorted(folder.glob("*/case.json"))]


def load_case(folder: Path) -> Vector:
    """Return the case in ``folder``. Raises ValueError."""
    try:
        case = json.loads((folder / "case.json").read_text("utf-8"))
        return _vector(folder, case)
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise ValueError(f"{folder.parent.name}/{folder.name}: {error!r}") from error


def _vector(folder: Path, case: dict[str, Any]) -> Vector:
    if unknown := case.keys() - _CASE_KEYS:
        raise ValueError(f"unknown keys {sorted(unknown)}")
    if ("canonical" in case) == ("error" in case):
        raise ValueError("a case must have either 'canonical' or 'error'")
    if (case["side"] == "response") != ("asks" in case):
        raise ValueError("'asks' is required for side 'response', and allowed only there")
    files = [folder / name for name in _READERS if (folder / name).exists()]
    if len(files) != 1:
        raise ValueError(f"a case must have exactly one of the wire files {sorted(_READERS)}")
    return Vector(
        protocol=folder.parent.name,
        name=folder.name,
        about=case["about"],
        source=case["source"],
        wire=_READERS[files[0].name][case["side"]](files[0].read_bytes()),
        canonical=from_json(case["canonical"]) if "canonical" in case else None,
        error=_parse_error(case["error"]) if "error" in case else None,
        both_ways=case.get("both_ways", False),
        operation=from_json(case["asks"]) if "asks" in case else None,
        profile=case.get("profile", "triton"),
        model=from_json(case["model"]) if "model" in case else None,
        options=case.get("options", {}),
    )


def _parse_error(error: Mapping[str, Any]) -> ExpectedError:
    return ExpectedError(Kind[error["kind"]], tuple(error["mentions"]))


# ---- wire files


def _split_head(data: bytes) -> tuple[str, dict[str, str], tuple[bytes, ...]]:
    head, separator, body = data.partition(b"\r\n\r\n")
    if not separator:
        raise ValueError("the head of the wire file does not end with an empty line (CRLF CRLF)")
    start, *lines = head.decode("latin-1").split("\r\n")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise ValueError(f"header line {line!r} has no colon")
        name, value = name.strip().lower(), value.strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return start, headers, (body,) if body else ()


def _http_request(data: bytes) -> HttpRequest:
    start, headers, body = _split_head(data)
    method, target, _ = start.split(" ")
    path, _, query = target.partition("?")
    return HttpRequest(method, path, query, headers, body)


def _http_response(data: bytes) -> HttpResponse:
    start, headers, body = _split_head(data)
    return HttpResponse(int(start.split(" ")[1]), headers, body)


def _rpc_request(data: bytes) -> RpcRequest:
    start, metadata, message = _split_head(data)
    return RpcRequest(start, message, metadata)


def _rpc_response(data: bytes) -> RpcResponse:
    start, metadata, message = _split_head(data)
    word, _, rest = start.partition(" ")
    code, _, details = rest.partition(" ")
    if word != "code":
        raise ValueError(f"a response must start with 'code N details', not {start!r}")
    return RpcResponse(message, int(code), details.encode("latin-1").decode(), metadata)


_READERS: Final[Mapping[str, Mapping[str, Callable[[bytes], Wire]]]] = {
    "wire.http": {"request": _http_request, "response": _http_response},
    "wire.rpc": {"request": _rpc_request, "response": _rpc_response},
}


# ---- running the vectors


def check_vector(codec: Codec[Any, Any], vector: Vector, limits: Limits = DEFAULT_LIMITS) -> None:
    """Parse the message as a whole and in pieces, and build it if ``both_ways`` is set.

    Raises AssertionError, which names the difference. ``codec`` must have been created
    with ``vector.options``."""
    for label, wire in _splits(vector.wire):
        result = _parse(codec, vector, wire, limits)
        expected = to_text(vector.canonical) if vector.canonical is not None else vector.error
        location = f"{vector} {label}"
        if isinstance(result, GatewayError):
            assert isinstance(expected, ExpectedError), f"{location}: rejected with {result!r}"
            assert result.kind is expected.kind, f"{location}: {result!r} is not {expected.kind}"
            for mention in expected.mentions:
                assert mention in result.public, f"{location}: {result!r} lacks {mention!r}"
        else:
            assert to_text(result) == expected, f"{location}: {to_text(result)} is not {expected}"
    if vector.both_ways:
        _check_built(codec, vector)


def _parse(
    codec: Codec[Any, Any], vector: Vector, wire: Wire, limits: Limits
) -> Operation | Response | GatewayError:
    try:
        if vector.operation is None:
            return completed(codec.parse_request(wire, limits), vector.model).operation
        return codec.parse_response(wire, vector.operation, limits, vector.model)
    except GatewayError as error:
        return error


T = TypeVar("T")


def completed(parsed: T | PartialInferRequest[T], model: ModelMetadata | None) -> T:
    """Return ``parsed``, completed with ``model`` if it is a partial request. Raises GatewayError
    if the request does not fit the model."""
    if not isinstance(parsed, PartialInferRequest):
        return parsed
    assert model is not None, f"the message for '{parsed.model}' needs the model's metadata"
    return parsed.complete(model)


def _splits(wire: Wire) -> Iterable[tuple[str, Wire]]:
    """Yield ``wire`` with its body split in different ways, as transports may deliver it."""
    body = bytes(join_parts(body_of(wire)))
    middle = len(body) // 2
    yield "whole", wire
    yield "in halves", with_body(wire, (body[:middle], body[middle:]))
    yield "byte by byte", with_body(wire, [body[i : i + 1] for i in range(len(body))])
    yield "as a memoryview", with_body(wire, (memoryview(body),))


def body_of(wire: Wire) -> Sequence[Buffer]:
    """Return the body or message of any wire type."""
    return wire.body if isinstance(wire, HttpRequest | HttpResponse) else wire.message


def with_body(wire: Wire, body: Sequence[Buffer]) -> Wire:
    """Return ``wire`` with ``body`` as its body or message."""
    if isinstance(wire, HttpRequest | HttpResponse):
        return replace(wire, body=body)
    return replace(wire, message=body)


def _check_built(codec: Codec[Any, Any], vector: Vector) -> None:
    built: Wire
    if vector.error is not None:
        raise AssertionError(f"{vector}: an error cannot be built")
    if vector.operation is None:
        profile = PROFILES[vector.profile]
        built = codec.build_request(vector.canonical, profile, vector.model)  # type: ignore[arg-type]
    else:
        built = codec.build_response(vector.canonical, ParsedRequest(vector.operation))  # type: ignore[arg-type]
    expected = _start_fields(vector.wire)
    assert _start_fields(built) == expected, (
        f"{vector}: built {_start_fields(built)}, not {expected}"
    )
    body, expected_body = bytes(join_parts(body_of(built))), bytes(join_parts(body_of(vector.wire)))
    assert body == expected_body, f"{vector}: built {body!r}, not {expected_body!r}"
    for name, value in _headers(built).items():
        expected_value = _headers(vector.wire).get(name)
        assert value == expected_value, f"{vector}: built {name}: {value!r}, not {expected_value!r}"


def _start_fields(wire: Wire) -> tuple[Any, ...]:
    match wire:
        case HttpRequest():
            return wire.method, wire.path, wire.query
        case HttpResponse():
            return (wire.status,)
        case RpcRequest():
            return (wire.method,)
        case RpcResponse():
            return wire.code, wire.details


def _headers(wire: Wire) -> Mapping[str, str]:
    return wire.headers if isinstance(wire, HttpRequest | HttpResponse) else wire.metadata
