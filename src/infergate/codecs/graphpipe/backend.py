"""Builds requests to GraphPipe servers and parses their responses.

Each server has one model and one address. Inferences become an InferRequest, and health and
metadata operations become a MetadataRequest. Other operations are unsupported. Some servers return
metadata only for a GET, which ``codec`` builds as the alternative request. The example servers of
graphpipe-py have no metadata, and drop the connection of a client that requests metadata.
"""

from __future__ import annotations

from typing import Final

import flatbuffers

from infergate.codecs.base import no_request
from infergate.codecs.graphpipe import metadata
from infergate.codecs.graphpipe.errors import error_of_status
from infergate.codecs.graphpipe.fields import METADATA, REQ, REQ_TYPE
from infergate.codecs.graphpipe.flatbuffer_reader import FlatbufferMessage
from infergate.codecs.graphpipe.flatbuffer_writer import write_table
from infergate.codecs.graphpipe.infer_request import write_request
from infergate.codecs.graphpipe.infer_response import read_response
from infergate.core import messages
from infergate.core.errors import GatewayError, Kind, Origin, backend_garbage
from infergate.core.limits import Limits, check_loop_cost
from infergate.core.messages import InferRequest, ModelMetadata, Operation, Response
from infergate.core.wire import HttpRequest, HttpResponse, join_parts

_PROXY_STATUSES: Final = frozenset({401, 403, 404})
"""Statuses with which a proxy denies access or reports that there is no server."""
_GET_NOT_IMPLEMENTED: Final = 501
"""The status that graphpipe-py's servers return for a GET. It shows that the server is alive."""


def _metadata_request() -> bytes:
    builder = flatbuffers.Builder(64)
    empty = write_table(builder, {})
    builder.StartObject(2)
    builder.PrependUint8Slot(REQ_TYPE.slot, METADATA, 0)
    builder.PrependUOffsetTRelativeSlot(REQ.slot, empty, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


METADATA_REQUEST: Final = _metadata_request()


def build_request(operation: Operation, model: ModelMetadata | None) -> HttpRequest:
    """Build the request for ``operation``. Raises UNSUPPORTED, BAD_REQUEST and TOO_LARGE."""
    match operation:
        case InferRequest():
            assert model is not None
            return HttpRequest("POST", "", body=write_request(operation, model))
        case (
            messages.ServerLiveRequest()
            | messages.ServerReadyRequest()
            | messages.ServerMetadataRequest()
            | messages.ModelReadyRequest()
            | messages.ModelMetadataRequest()
        ):
            return HttpRequest("POST", "", body=[METADATA_REQUEST])
    raise no_request("GraphPipe", operation)


def parse_response(
    wire: HttpResponse, operation: Operation, limits: Limits, model: ModelMetadata | None
) -> Response:
    """Parse the response to ``operation``. Raises the backend's error, BACKEND_GARBAGE, TOO_LARGE
    and NeedsOffloadError."""
    if isinstance(
        operation,
        messages.ServerLiveRequest | messages.ServerReadyRequest | messages.ModelReadyRequest,
    ):
        if wire.status in _PROXY_STATUSES:
            raise error_of_status(wire)
        return messages.HealthStatus(ok=wire.status < 500 or wire.status == _GET_NOT_IMPLEMENTED)
    if wire.status != 200:
        raise error_of_status(wire)
    try:
        return _read(wire, operation, limits, model)
    except GatewayError as error:
        if error.origin is Origin.BACKEND:
            raise
        public = f"invalid response from the backend: {error.public}"
        if error.kind is Kind.TOO_LARGE:
            raise GatewayError(Kind.TOO_LARGE, public, origin=Origin.BACKEND) from None
        raise backend_garbage(public) from None


def _read(
    wire: HttpResponse, operation: Operation, limits: Limits, model: ModelMetadata | None
) -> Response:
    body = join_parts(wire.body)
    if isinstance(operation, InferRequest):
        assert model is not None
        return read_response(
            FlatbufferMessage(body).root("InferResponse"), operation, model, limits
        )
    media_type = wire.headers.get("content-type", "").partition(";")[0]
    if media_type.strip().lower() == "application/json":
        document = metadata.read_json(bytes(body), limits)
        if isinstance(operation, messages.ModelMetadataRequest):
            return metadata.metadata_from_json(document, operation.model, limits)
        return metadata.server_from_json(document)
    check_loop_cost(limits, len(body), metadata.MAX_BYTES_ON_LOOP)
    table = FlatbufferMessage(body).root("MetadataResponse")
    if isinstance(operation, messages.ModelMetadataRequest):
        return metadata.read_metadata(table, operation.model, limits)
    return metadata.read_server(table)
