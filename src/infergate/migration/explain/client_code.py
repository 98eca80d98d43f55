"""Writes an inference as a program for each of several clients.

Every program sends the tensors bit for bit and prints the outputs. The programs read possible
credentials from environment variables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from infergate.codecs.tfs.datatypes import TYPES
from infergate.codecs.tfs.messages import DTYPES
from infergate.core.classification import CLASSIFICATION
from infergate.core.credential_names import may_hold_credentials
from infergate.core.datatypes import Datatype
from infergate.core.messages import InferRequest
from infergate.core.sequences import SEQUENCE_ID
from infergate.core.tensor import Tensor
from infergate.migration.explain.array_code import READ_STRINGS, ArraySource
from infergate.migration.explain.client_inference import (
    ClientInference,
    NoClientCodeError,
    variable_name,
)
from infergate.migration.explain.curl_code import curl_code
from infergate.migration.recorded import quoted_model

_ARGUMENTS: Final = (SEQUENCE_ID, "sequence_start", "sequence_end", "priority", "timeout")
"""Parameters for which tritonclient's ``infer`` has arguments of the same name."""
_TF_TYPES: Final = {number: name for name, number in DTYPES.items()}
"""The names of TensorFlow's datatypes, by number."""


def code_of(clients: Iterable[str], inference: ClientInference) -> dict[str, str]:
    """Return the source text for each of ``clients``, which are keys of ``CLIENTS``. If a client
    cannot send the inference, the text is a comment with the reason."""
    code: dict[str, str] = {}
    for client in clients:
        try:
            code[client] = CLIENTS[client](inference)
        except NoClientCodeError as error:
            code[client] = f"# not possible: {error}\n"
    return code


class _Program:
    """A Python program that is written line by line."""

    def __init__(self, inference: ClientInference, *imports: str) -> None:
        self.arrays: Final = ArraySource(inference.folder)
        self._headers: Final = inference.own_headers()
        self._imports: Final = list(imports)
        self._lines: Final[list[str]] = []

    def add(self, *lines: str) -> None:
        self._lines.extend(lines)

    def add_inputs(
        self, request: InferRequest, constructor: str, array_source: Callable[[Tensor], str]
    ) -> None:
        """Add code for a list ``inputs`` with objects of a client's class ``constructor``."""
        self.add("inputs = []")
        for tensor in request.inputs:
            arguments = f"{tensor.name!r}, {list(tensor.shape)}, {tensor.datatype.value!r}"
            self.add(
                f"tensor = {constructor}({arguments})",
                f"tensor.set_data_from_numpy({array_source(tensor)})",
                "inputs.append(tensor)",
            )

    def headers(self) -> str:
        """Return an expression for a dict of the user's headers, or an empty string if there are
        none."""
        entries = []
        for name, value in self._headers.items():
            secret = may_hold_credentials(name)
            if secret:
                self.arrays.imports.add("os")
            source = f'os.environ["{variable_name(name)}"]' if secret else repr(value)
            entries.append(f"{name!r}: {source}")
        return f"{{{', '.join(entries)}}}" if entries else ""

    def text(self) -> str:
        standard = [f"import {name}" for name in sorted(self.arrays.imports)]
        missing = [f"# write {file} with --save FOLDER" for file in self.arrays.missing]
        helper = [READ_STRINGS] if self.arrays.reads_strings else [""]
        lines = [*missing, *standard, *self._imports, *helper, *self._lines]
        return "\n".join(lines) + "\n"


def _tritonclient(inference: ClientInference, module: str) -> str:
    request, addresses = inference.request, inference.addresses
    is_http = module == "http"
    address = addresses.http if is_http and addresses.http_url() else addresses.grpc_address()
    program = _Program(inference, "import numpy as np", f"import tritonclient.{module} as client")
    program.add_inputs(request, "client.InferInput", partial(_triton_array, program))
    arguments = [repr(request.model), "inputs"]
    if request.version:
        arguments.append(f"model_version={request.version!r}")
    if request.outputs:
        program.add("outputs = [")
        for output in request.outputs:
            count = output.parameters.get(CLASSIFICATION)
            classes = f", class_count={count!r}" if count else ""
            program.add(f"    client.InferRequestedOutput({output.name!r}{classes}),")
        program.add("]")
        arguments.append("outputs=outputs")
    if request.id:
        arguments.append(f"request_id={request.id!r}")
    arguments += [
        f"{name}={request.parameters[name]!r}" for name in _ARGUMENTS if name in request.parameters
    ]
    rest = {name: value for name, value in request.parameters.items() if name not in _ARGUMENTS}
    if rest:
        arguments.append(f"parameters={rest!r}")
    if headers := program.headers():
        arguments.append(f"headers={headers}")
    tls = ", ssl=True" if (addresses.http_tls if is_http else addresses.grpc_tls) else ""
    as_json = "" if is_http else "as_json=True"
    program.add(
        f"with client.InferenceServerClient({address!r}{tls}) as server:",
        f"    result = server.infer({', '.join(arguments)})",
        f'    for output in result.get_response({as_json})["outputs"]:',
        '        print(output["name"], result.as_numpy(output["name"]).tolist())',
    )
    return program.text()


def _triton_array(program: _Program, tensor: Tensor) -> str:
    source = program.arrays.source(tensor)
    if tensor.datatype is not Datatype.BF16:
        return source
    program.arrays.imports.add("ml_dtypes")  # tritonclient before 26.06 expects FP32
    return f"{source}.astype(ml_dtypes.bfloat16)"


def _kserve(inference: ClientInference) -> str:
    request, addresses = inference.request, inference.addresses
    _refuse(request.inputs, {Datatype.BF16}, "kserve's InferInput")
    program = _Program(
        inference,
        "import asyncio",
        "import numpy as np",
        "from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig",
        "from kserve.protocol.infer_type import RequestedOutput",
    )
    program.add_inputs(request, "InferInput", program.arrays.source)
    arguments = [repr(request.model), "inputs"]
    if request.id:
        arguments.append(f"request_id={request.id!r}")
    if request.parameters:
        arguments.append(f"parameters={dict(request.parameters)!r}")
    if request.outputs:
        outputs = ", ".join(
            f"RequestedOutput({output.name!r}, {dict(output.parameters)!r})"
            for output in request.outputs
        )
        arguments.append(f"request_outputs=[{outputs}]")
    headers = program.headers()
    more = f", headers={headers}" if headers else ""
    program.add(
        f"request = InferRequest({', '.join(arguments)})",
        "",
        "",
        "async def main():",
        '    server = InferenceRESTClient(RESTConfig(protocol="v2"))',
        f"    response = await server.infer({addresses.http_url()!r}, request, "
        f"model_name={quoted_model(request)!r}{more})",
        "    for output in response.outputs:",
        "        print(output.name, output.as_numpy().tolist())",
        "    await server.close()",
        "",
        "",
        "asyncio.run(main())",
    )
    return program.text()


def _tensorflow_serving(inference: ClientInference) -> str:
    request, addresses = inference.request, inference.addresses
    _refuse(request.inputs, {Datatype.BF16}, "this program")
    _refuse_sequences(request, "TensorFlow Serving's API")
    program = _Program(
        inference,
        "import grpc",
        "import numpy as np",
        "from tensorflow.core.framework import tensor_pb2, types_pb2",
        "from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc",
    )
    program.add(
        "request = predict_pb2.PredictRequest()",
        f"request.model_spec.name = {request.model!r}",
    )
    if request.version.isdecimal():
        program.add(f"request.model_spec.version.value = {int(request.version)}")
    elif request.version:
        program.add(f"request.model_spec.version_label = {request.version!r}")
    for tensor in request.inputs:
        datatype = _TF_TYPES[TYPES[tensor.datatype].number]
        fill = "tensor.tensor_content = array.tobytes()"
        if tensor.datatype is Datatype.BYTES:
            fill = "tensor.string_val.extend(array.ravel().tolist())"
        program.add(
            f"array = {program.arrays.source(tensor)}",
            f"tensor = tensor_pb2.TensorProto(dtype=types_pb2.{datatype})",
            fill,
            "for size in array.shape:",
            "    tensor.tensor_shape.dim.add(size=size)",
            f"request.inputs[{tensor.name!r}].CopyFrom(tensor)",
        )
    if request.outputs:
        program.add(f"request.output_filter.extend({[o.name for o in request.outputs]!r})")
    address = addresses.grpc_address()
    open_channel = f"grpc.insecure_channel({address!r})"
    if addresses.grpc_tls:
        open_channel = f"grpc.secure_channel({address!r}, grpc.ssl_channel_credentials())"
    headers = program.headers()
    more = f", metadata=list({headers}.items())" if headers else ""
    program.add(
        f"with {open_channel} as channel:",
        "    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)",
        f"    response = stub.Predict(request{more})",
        "for name, output in response.outputs.items():",
        '    print(name, str(output).replace("\\n", " "))',
    )
    return program.text()


def _tensorrtserver(inference: ClientInference) -> str:
    request, addresses = inference.request, inference.addresses
    if addresses.http_url().startswith("https"):
        raise NoClientCodeError("tensorrtserver does not support TLS")
    _refuse(request.inputs, {Datatype.BF16}, "tensorrtserver")
    metadata = inference.metadata
    names = {output.name: output.parameters.get(CLASSIFICATION) for output in request.outputs}
    if not names and metadata is not None:
        names = dict.fromkeys(output.name for output in metadata.outputs)
    if not names:
        raise NoClientCodeError(
            "tensorrtserver needs the names of the outputs: declare the model, or use --metadata"
        )
    batches = bool(metadata and metadata.max_batch_size)
    program = _Program(
        inference,
        "import numpy as np",
        "from tensorrtserver.api import InferContext, ProtocolType",
    )
    program.add("inputs = {}")
    for tensor in request.inputs:
        # The client expects a list with one array per element of the batch.
        source = program.arrays.source(tensor)
        rows = f"list({source})" if batches else f"[{source}]"
        program.add(f"inputs[{tensor.name!r}] = {rows}")
    program.add("outputs = {")
    for name, count in names.items():
        kind = f"(InferContext.ResultFormat.CLASS, {count})" if count else None
        program.add(f"    {name!r}: {kind or 'InferContext.ResultFormat.RAW'},")
    program.add("}")
    version = int(request.version) if request.version.isdecimal() else None
    more = ""
    if SEQUENCE_ID in request.parameters:
        more += f", correlation_id={request.parameters[SEQUENCE_ID]!r}"
    if headers := program.headers():
        more += f", http_headers=[f'{{k}}: {{v}}' for k, v in {headers}.items()]"
    starts, ends = (bool(request.parameters.get(f"sequence_{mark}")) for mark in ("start", "end"))
    flags = starts + 2 * ends
    size = request.inputs[0].shape[0] if batches and request.inputs else 1
    program.add(
        f"context = InferContext({addresses.http!r}, ProtocolType.HTTP, {request.model!r}, "
        f"{version!r}{more})",
        f"result = context.run(inputs, outputs, {size}, {flags})",
        "for name, values in result.items():",
        "    print(name, [getattr(value, 'tolist', lambda: value)() for value in values])",
    )
    return program.text()


def _graphpipe(inference: ClientInference) -> str:
    request, addresses = inference.request, inference.addresses
    _refuse(request.inputs, {Datatype.BF16, Datatype.BOOL}, "GraphPipe")
    _refuse_sequences(request, "GraphPipe")
    program = _Program(inference, "import numpy as np", "from graphpipe import remote")
    url = f"{addresses.http_url()}/graphpipe/{quoted_model(request)}"
    sources = [
        f"{program.arrays.source(tensor)}.astype(np.bytes_)"
        if tensor.datatype is Datatype.BYTES
        else program.arrays.source(tensor)
        for tensor in request.inputs
    ]
    outputs = [output.name for output in request.outputs] or None
    program.add(
        "inputs = [",
        *(f"    {source}," for source in sources),
        "]",
        f"names = {[tensor.name for tensor in request.inputs]!r}",
        f"for output in remote.execute_multi({url!r}, inputs, names, {outputs!r}):",
        "    print(output.tolist())",
    )
    return program.text()


def _refuse(tensors: Iterable[Tensor], datatypes: set[Datatype], client: str) -> None:
    for tensor in tensors:
        if tensor.datatype in datatypes:
            raise NoClientCodeError(
                f"{client} has no {tensor.datatype.value}, the datatype of '{tensor.name}'"
            )


def _refuse_sequences(request: InferRequest, client: str) -> None:
    if SEQUENCE_ID in request.parameters:
        raise NoClientCodeError(f"{client} has no sequences")


CLIENTS: Final[Mapping[str, Callable[[ClientInference], str]]] = {
    "curl": curl_code,
    "tritonclient": lambda inference: _tritonclient(inference, "http"),
    "tritonclient-grpc": lambda inference: _tritonclient(inference, "grpc"),
    "kserve": _kserve,
    "tensorflow-serving-api": _tensorflow_serving,
    "tensorrtserver": _tensorrtserver,
    "graphpipe": _graphpipe,
}
"""Functions that write the code for a client, by the client's name."""
