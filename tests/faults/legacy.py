"""Clients that send one inference over the V2 and legacy protocols, and scripted legacy servers
that respond to an inference as a test specifies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from google.protobuf import text_format
from tritonclient.grpc import service_pb2 as pb

from faults.payloads import document, tensor
from faults.peer import Answer, Backend, Connection, Script, post
from faults.rpc import INFER, Status, call
from faults.watch import SECONDS
from legacy.messages import SERVICE, Messages, short_debug_string

OLD = Messages("1.9")
OLD_INFER = f"/{SERVICE}/Infer"
LEFT = np.arange(16, dtype="<i4")
NUMBERS = LEFT.tobytes() + np.ones(16, "<i4").tobytes()
SUM = (LEFT + 1).tobytes()
DIFFERENCE = (LEFT - 1).tobytes()
SIMPLE = (
    'batch_size: 1 input { name: "INPUT0" dims: 16 } input { name: "INPUT1" dims: 16 } '
    'output { name: "OUTPUT0" } output { name: "OUTPUT1" }'
)
PROTOCOLS = ("v2-rest", "v2-grpc", "trtis-http", "trtis-grpc")


@dataclass(frozen=True)
class Outcome:
    """The outcome of an inference. ``code`` is an HTTP status, a gRPC code or a
    RequestStatusCode."""

    code: int | str
    error: str
    body: bytes = b""


@dataclass(frozen=True)
class ProtocolClients:
    """Clients of one gateway. All send the same inference to models like ``simple``."""

    http: str
    channel: grpc.Channel

    def send_request(self, protocol: str, model: str) -> Outcome:
        match protocol:
            case "v2-rest":
                inputs = (
                    tensor(name=f"INPUT{i}", datatype="INT32", shape=[1, 16], data=each.tolist())
                    for i, each in enumerate((LEFT, np.ones(16, "<i4")))
                )
                answer = post(self.http, f"/v2/models/{model}/infer", document(*inputs))
                error = answer.error if answer.status != 200 else ""
                return Outcome(answer.status, error, answer.body)
            case "v2-grpc":
                message = pb.ModelInferRequest(model_name=model)
                for i in range(2):
                    message.inputs.add(name=f"INPUT{i}", datatype="INT32", shape=[1, 16])
                    message.raw_input_contents.append(NUMBERS[64 * i :][:64])
                status = call(self.channel, message.SerializeToString(), INFER)
                return Outcome(status.code.name, status.details, status.message)
            case "trtis-http":
                return http_outcome(old_post(self.http, model, SIMPLE, NUMBERS))
            case _:
                return grpc_outcome(call(self.channel, old_message(model), OLD_INFER))


def old_post(address: str, model: str, header: str, body: bytes) -> Answer:
    return post(address, f"/api/infer/{model}", body, {"NV-InferRequest": header})


def http_outcome(answer: Answer) -> Outcome:
    """Return the outcome in NV-Status. The HTTP status must be 200 for SUCCESS, or else 400."""
    status = text_format.Parse(answer.headers["nv-status"], OLD.RequestStatus())
    code = code_name(status)
    assert answer.status == (200 if code == "SUCCESS" else 400)
    return Outcome(code, status.msg, answer.body)


def old_message(model: str, *, version: int = -1, header: str = SIMPLE, raw: Any = None) -> bytes:
    request = OLD.InferRequest(model_name=model, model_version=version)
    text_format.Parse(header, request.meta_data)
    request.raw_input.extend([NUMBERS[:64], NUMBERS[64:]] if raw is None else raw)
    return bytes(request.SerializeToString())


def grpc_outcome(status: Status) -> Outcome:
    assert status.code is grpc.StatusCode.OK, status
    response = OLD.InferResponse.FromString(status.message)
    return Outcome(
        code_name(response.request_status),
        response.request_status.msg,
        b"".join(response.raw_output),
    )


def code_name(status: Any) -> str:
    return str(OLD.pool.FindEnumTypeByName("nvidia.inferenceserver.RequestStatusCode")
               .values_by_number[status.code].name)  # fmt: skip


# ---- responses of a legacy server ------------------------------------------------------------

Action = Callable[[Connection], None]


def status(model: str = "m", version: int = 1) -> Any:
    response = OLD.ServerStatus(id="old", version="1.9.0", ready_state=2)
    config = response.model_status[model].config
    config.name, config.max_batch_size = model, 8
    for i in range(2):
        config.input.add(name=f"INPUT{i}", data_type="TYPE_INT32", dims=[16])
        config.output.add(name=f"OUTPUT{i}", data_type="TYPE_INT32", dims=[16])
    response.model_status[model].version_status[version].ready_state = 1
    return response


def output_header(name: str, dims: list[int], size: int = 64) -> dict[str, Any]:
    """Return an output of an InferResponseHeader."""
    return {"name": name, "raw": {"dims": dims, "batch_byte_size": size}}


OUTPUTS = output_header("OUTPUT0", [16]), output_header("OUTPUT1", [16])


def ok_header(*outputs: Any, **more: Any) -> Any:
    """Return an InferResponseHeader. The defaults are those of a successful response."""
    fields = {"model_name": "m", "model_version": 1, "batch_size": 1, **more}
    return OLD.InferResponseHeader(output=outputs or OUTPUTS, **fields)


def request_status(code: str = "SUCCESS", msg: str = "") -> Any:
    return OLD.RequestStatus(code=code, msg=msg, server_id="old", request_id=7)


def old_response(
    body: bytes,
    *,
    line: str = "200 OK",
    status: Any = None,
    header: Any = None,
    more: Mapping[str, str] | None = None,
) -> bytes:
    """Return an HTTP response. A ``header`` or ``status`` that is text is sent unchanged."""
    nv_headers = {
        "NV-InferResponse": header,
        "NV-Status": request_status() if status is None else status,
    }
    lines = [f"HTTP/1.1 {line}"]
    for name, value in nv_headers.items():
        if value is not None and value != "":
            text = value if isinstance(value, str) else short_debug_string(value).decode()
            lines.append(f"{name}: {text}")
    framing = {"Content-Length": str(len(body)), **(more or {})}
    lines += [f"{name}: {value}" for name, value in framing.items() if value]
    return "\r\n".join([*lines, "", ""]).encode() + body


def ok_response() -> bytes:
    header = ok_header()
    return old_response(SUM + DIFFERENCE + bytes(header.SerializeToString()), header=header)


def ok_status_response(request: bytes) -> bytes:
    """Return the response to a status request for any model."""
    _, _, model = request.split(b" ")[1].partition(b"?")[0].decode().rpartition("/")
    return old_response(status(model).SerializeToString())


def old_http(infer: Action, status_response: bytes = b"") -> Script:
    """Return the script of a server that records each inference and runs ``infer``. Its response to
    other requests is ``status_response`` or, if that is empty, ``ok_status_response``."""

    def script(connection: Connection, backend: Backend) -> None:
        while True:
            request = connection.request()
            if request.startswith(b"POST /api/infer/"):
                backend.requests.append(request)
                infer(connection)
            else:
                connection.write(status_response or ok_status_response(request))

    return script


def write(*parts: bytes, then: Action | None = None) -> Action:
    """Return an action that writes ``parts``, and then runs ``then``."""

    def infer(connection: Connection) -> None:
        for each in parts:
            connection.write(each)
        if then is not None:
            then(connection)

    return infer


@dataclass
class OldRpcServer:
    """A gRPC server that records each inference, and responds as ``infer`` specifies."""

    address: str = ""
    infer: Callable[[bytes, grpc.ServicerContext], bytes] = lambda message, context: valid_message()
    status: Callable[[bytes, grpc.ServicerContext], bytes] = lambda message, context: valid_status(
        message
    )
    requests: list[bytes] = field(default_factory=list)

    def serve(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        self.requests.append(message)
        return self.infer(message, context)


def valid_message(**changes: Any) -> bytes:
    response = OLD.InferResponse(
        request_status=request_status(), meta_data=ok_header(), raw_output=[SUM, DIFFERENCE]
    )
    for name, value in changes.items():
        response.ClearField(name)
        if isinstance(value, list):
            getattr(response, name).extend(value)
        elif value is not None:
            getattr(response, name).CopyFrom(value)
    return bytes(response.SerializeToString())


def valid_status(request: bytes) -> bytes:
    model = OLD.StatusRequest.FromString(request).model_name
    response = OLD.StatusResponse(request_status=request_status(), server_status=status(model))
    return bytes(response.SerializeToString())


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, server: OldRpcServer) -> None:
        self._server = server

    def service(self, handler_call_details: Any) -> Any:
        if handler_call_details.method == OLD_INFER:
            return grpc.unary_unary_rpc_method_handler(self._server.serve)
        return grpc.unary_unary_rpc_method_handler(self._server.status)


@contextmanager
def old_rpc() -> Iterator[OldRpcServer]:
    """Run a gRPC server on a free port."""
    backend = OldRpcServer()
    with ThreadPoolExecutor(16) as threads:
        server = grpc.server(threads, options=[("grpc.so_reuseport", 0)])
        server.add_generic_rpc_handlers((_Methods(backend),))
        backend.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            yield backend
        finally:
            server.stop(0).wait(SECONDS)
