"""A ready-to-run inference for each model, as a curl command and as a Python program.

The inputs have the model's names, datatypes and shapes; variable dimensions are 1. Requests go to
the server itself if it speaks a protocol with JSON. Otherwise, they go to infergate in front of
it."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from infergate.codecs.base import Codec
from infergate.codecs.profiles import GENERIC
from infergate.codecs.registry import plugins
from infergate.config.values import Url
from infergate.core.datatypes import DATATYPES_BY_NAME, FLOATS, Datatype
from infergate.core.errors import GatewayError
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import InferRequest, ModelMetadata, TensorMetadata
from infergate.core.tensor import Parameters, Tensor, tensor_from_array
from infergate.core.wire import HttpRequest, join_parts
from infergate.migration.explain.client_inference import variable_name
from infergate.migration.probe.findings import ProbedModel, ProbedServer
from infergate.migration.probe.options import ProbeOptions

MAX_ELEMENTS: Final = 1 << 22
"""Maximum number of elements of an example's inputs."""
_MAX_INLINE_CHARS: Final = 600
"""Maximum length of JSON that is part of a curl command. Python writes longer JSON."""
_MIN_REPEATED: Final = 4
_GATEWAY_PROTOCOL: Final = "v2-rest"
_UNSUPPORTED_IN_JSON: Final[Mapping[str, frozenset[str]]] = {
    "v2-rest": frozenset({"FP16", "BF16"}),  # Triton requires binary data for them
    "tfs-rest": frozenset(),
    "kserve-v1": frozenset(),
}
"""The protocols whose inferences are JSON, with the datatypes that not all of their servers accept
as JSON."""


@dataclass(frozen=True, slots=True)
class ExampleRequest:
    """A request for ``model``. If ``needs_gateway``, it is sent to infergate, which must be running
    in front of the server. If no request can be written, ``problem`` says why."""

    model: str
    curl: str = ""
    python: str = ""
    needs_gateway: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """The URL of infergate's HTTP listener, and the names under which it serves models, by the URL
    of their server and their name there."""

    url: Url
    names: Mapping[tuple[Url, str], str] = field(default_factory=dict)


def example_request(
    server: ProbedServer, model: ProbedModel, options: ProbeOptions, gateway: GatewayAddress
) -> ExampleRequest:
    """Return a request for ``model`` of ``server``, directly or through ``gateway``."""
    metadata = model.metadata
    if metadata is None:
        return ExampleRequest(model.name, problem=model.problem)
    direct = _direct_protocol(server, metadata)
    protocol, url = direct or (_GATEWAY_PROTOCOL, gateway.url)
    gateway_name = gateway.names.get((server.best.url, model.name), model.name)
    name = model.name if direct else gateway_name
    try:
        request = InferRequest(
            name, parameters=_parameters(metadata), inputs=_example_inputs(metadata)
        )
        codec: Codec[Any, Any] = plugins()[protocol].create({})
        wire: HttpRequest = codec.build_request(request, GENERIC, metadata)
    except (GatewayError, ValueError) as error:
        return ExampleRequest(model.name, problem=str(error))
    if metadata.decoupled:
        wire = replace(wire, path=f"{wire.path}_stream")
    return ExampleRequest(
        model.name,
        _curl(wire, url, options),
        _python(wire, url, options),
        needs_gateway=direct is None,
    )


def _direct_protocol(server: ProbedServer, metadata: ModelMetadata) -> tuple[str, Url] | None:
    datatypes = {tensor.datatype for tensor in (*metadata.inputs, *metadata.outputs)}
    if metadata.decoupled:  # Triton has no general form of such requests in JSON
        return None
    for item in server.protocols:
        unsupported = _UNSUPPORTED_IN_JSON.get(item.protocol)
        if unsupported is not None and not (datatypes & unsupported):
            return item.protocol, item.url
    return None


def _parameters(metadata: ModelMetadata) -> Parameters:
    if metadata.sequence_batching is None:
        return {}
    return {"sequence_id": 1, "sequence_start": True, "sequence_end": True}


def _example_inputs(metadata: ModelMetadata) -> tuple[Tensor, ...]:
    """Return valid inputs. Raises ValueError for an unknown datatype, and for large or too many
    inputs."""
    count = len(metadata.inputs)
    if count > DEFAULT_LIMITS.tensors:
        raise ValueError(f"the model has {count} inputs, too many for a request")
    shapes = [tuple(max(size, 1) for size in tensor.shape) for tensor in metadata.inputs]
    elements = sum(map(math.prod, shapes))
    if elements > MAX_ELEMENTS:
        raise ValueError(f"the inputs have {elements} elements, too many for an example")
    return tuple(map(_example_tensor, metadata.inputs, shapes))


def _example_tensor(tensor: TensorMetadata, shape: tuple[int, ...]) -> Tensor:
    datatype = DATATYPES_BY_NAME.get(tensor.datatype)
    if datatype is None:
        text = tensor.datatype or "not reported"
        raise ValueError(f"the datatype of input '{tensor.name}' is {text}")
    if datatype is Datatype.BYTES:  # "0" is text, and a number for models that parse numbers
        array = np.full(shape, b"0", dtype=np.object_)
    else:  # 0 is a valid index, 0.5 a valid pixel
        array = np.full(shape, 0.5 if datatype in FLOATS else 0)
    return tensor_from_array(tensor.name, datatype, array)


def _curl(wire: HttpRequest, url: Url, options: ProbeOptions) -> str:
    words = ["curl", "-sS"]
    if url.host:
        address = f"{url}{wire.path}"
        if url.scheme == "https" and options.ca is not None:
            words += ["--cacert", str(options.ca)]
        elif url.scheme == "https" and not options.verify:
            words.append("--insecure")
    else:
        words += ["--unix-socket", url.path]
        address = f"http://localhost{wire.path}"
    for name, value in wire.headers.items():
        words += ["-H", f"{name}: {value}"]
    command = shlex.join(words)
    for name in options.headers:
        command += f' -H "{name}: ${variable_name(name)}"'
    body = bytes(join_parts(wire.body)).decode()
    address = shlex.quote(address)
    if len(body) <= _MAX_INLINE_CHARS:
        return f"{command} -d {shlex.quote(body)} {address}"
    program = f"import json; print(json.dumps({_literal(json.loads(body))}))"
    return f"python3 -c {shlex.quote(program)} | {command} -d @- {address}"


def _python(wire: HttpRequest, url: Url, options: ProbeOptions) -> str:
    if not url.host:
        return "# urllib has no unix sockets: see the curl command"
    headers = [f"{name!r}: {value!r}" for name, value in wire.headers.items()]
    headers += [f"{name!r}: os.environ[{variable_name(name)!r}]" for name in options.headers]
    modules = ["json", *(["os"] if options.headers else []), "urllib.request"]
    context = ""
    if url.scheme == "https" and options.ca is not None:
        context = f", context=ssl.create_default_context(cafile={str(options.ca)!r})"
    elif url.scheme == "https" and not options.verify:
        context = ", context=ssl._create_unverified_context()"
    if context:
        modules.insert(-1, "ssl")
    body = _literal(json.loads(bytes(join_parts(wire.body))))
    return "\n".join(
        (
            f"import {', '.join(modules)}",
            f"body = {body}",
            f"request = urllib.request.Request({f'{url}{wire.path}'!r}, json.dumps(body).encode(),",
            f"                                 {{{', '.join(headers)}}})",
            f"print(urllib.request.urlopen(request{context}).read().decode())",
        )
    )


def _literal(value: Any) -> str:
    """Return JSON as a Python expression. A long list of equal elements becomes ``[0] * 10``."""
    match value:
        case dict():
            return "{" + ", ".join(f"{k!r}: {_literal(item)}" for k, item in value.items()) + "}"
        case list() if len(value) >= _MIN_REPEATED and value[1:] == value[:-1]:
            return f"[{_literal(value[0])}] * {len(value)}"
        case list():
            return f"[{', '.join(map(_literal, value))}]"
    return repr(value)
