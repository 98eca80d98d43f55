"""GraphPipe over a raw socket: a listener, valid frames, and functions that read responses."""

from __future__ import annotations

import struct

from faults.peer import Client
from faults.watch import MIB
from infergate.codecs.base import Profile
from infergate.codecs.graphpipe import PLUGIN
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import InferRequest, ModelMetadata, Response, TensorMetadata
from infergate.core.tensor import Tensor
from infergate.core.wire import HttpResponse, join_parts
from peers.support.process import free_ports

CODEC = PLUGIN.create({})


def raw_listener(model: str = "identity") -> tuple[str, str]:
    """Return a ``graphpipe`` section for ``listeners`` with a raw socket for ``model``, and the
    ``host:port`` of the socket."""
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    listener = f'{{{{address: "tcp://{address}", model: {model}, framing: size-prefixed}}}}'
    return f"  graphpipe: [{listener}]\n", address


MODEL = ModelMetadata(
    "identity",
    inputs=(TensorMetadata("INPUT0", "UINT8", (-1,)),),
    outputs=(TensorMetadata("OUTPUT0", "UINT8", (-1,)),),
)


def request_message(elements: int) -> tuple[InferRequest, bytes]:
    """Return an inference request with ``elements`` elements, and its frame."""
    tensor = Tensor("INPUT0", Datatype.UINT8, (elements,), bytes(elements))
    request = InferRequest("identity", inputs=(tensor,))
    body = bytes(join_parts(CODEC.build_request(request, Profile("any"), MODEL).body))
    return request, struct.pack("<I", len(body)) + body


REQUEST, FRAME = request_message(3)
LONG, LONG_FRAME = request_message(6 * MIB)


def read_response(client: Client, request: InferRequest = REQUEST) -> Response:
    (length,) = struct.unpack("<I", client.exactly(4))
    wire = HttpResponse(200, {}, [client.exactly(length)])
    return CODEC.parse_response(wire, request, DEFAULT_LIMITS, MODEL)


def error_in(client: Client, request: InferRequest = REQUEST) -> str:
    try:
        read_response(client, request)
    except GatewayError as error:
        return error.public
    return ""
