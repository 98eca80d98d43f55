"""Identifies servers by their responses in each protocol (docs/decisions/0060).

*Rule.* A protocol counts as detected only after a response that is specific to this protocol. A web
server that answers every path with JSON must not match any protocol. No inference is sent, and
nothing on the server is changed."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from infergate.backends.remote import RemoteBackend
from infergate.core.errors import GatewayError, Kind, backend_garbage
from infergate.core.messages import (
    ModelIndex,
    ModelIndexEntry,
    ModelIndexRequest,
    ModelMetadata,
    ModelMetadataRequest,
    ServerMetadata,
    ServerMetadataRequest,
    ServerStatus,
    ServerStatusRequest,
)
from infergate.core.request_context import RequestContext

_UNKNOWN_MODEL: Final = "infergate-probe"
"""A model name that no server is expected to have. The server's error shows whether the server
speaks the protocol."""
_TFS_REST_ERROR: Final = re.compile(
    "Could not find any versions of model|Servable not found|Model with requested name is not found"
)
"""The errors of TensorFlow Serving and of the OpenVINO model server for an unknown model. The
status alone proves nothing, because every web server returns 404."""
_TFS_GRPC_ERROR: Final = re.compile("")
"""Matches any text, because only servers with this protocol return NOT_FOUND. Other servers return
UNIMPLEMENTED."""


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """The server behind an address. ``index`` lists its models, or is None if the server cannot
    list them."""

    name: str
    version: str = ""
    index: ModelIndex | None = None


Identify = Callable[[RemoteBackend[Any, Any], RequestContext], Awaitable[ServerIdentity]]
"""Returns the identity of a server that speaks the backend's protocol. Raises GatewayError if the
server does not speak this protocol."""


async def _identify_v2(backend: RemoteBackend[Any, Any], context: RequestContext) -> ServerIdentity:
    server = await backend.perform(ServerMetadataRequest(), context)
    assert isinstance(server, ServerMetadata)
    if not server.name:
        raise backend_garbage("the response is not the metadata of a V2 server: it has no name")
    index = await _index(backend, context)
    try:
        await backend.perform(ModelMetadataRequest(_UNKNOWN_MODEL), context)
    except GatewayError:
        return ServerIdentity(server.name, server.version, index)
    raise backend_garbage("the server returns the metadata of a model that does not exist")


async def _index(backend: RemoteBackend[Any, Any], context: RequestContext) -> ModelIndex | None:
    try:
        index = await backend.perform(ModelIndexRequest(), context)
    except GatewayError:  # KServe over gRPC and the OpenVINO model server have no index
        return None
    assert isinstance(index, ModelIndex)
    return index


async def _identify_trtis(
    backend: RemoteBackend[Any, Any], context: RequestContext
) -> ServerIdentity:
    status = await backend.perform(ServerStatusRequest(), context)
    assert isinstance(status, ServerStatus)
    entries = [
        entry
        for model in status.models
        for entry in model.versions or (ModelIndexEntry(model.metadata.name),)
    ]
    return ServerIdentity("TensorRT Inference Server", status.version, ModelIndex(tuple(entries)))


async def _identify_tfs(
    expected_error: re.Pattern[str], backend: RemoteBackend[Any, Any], context: RequestContext
) -> ServerIdentity:
    try:
        await backend.perform(ModelIndexRequest(model=_UNKNOWN_MODEL), context)
    except GatewayError as error:
        if error.kind is not Kind.NOT_FOUND or not expected_error.search(error.public):
            raise
        return ServerIdentity("TensorFlow Serving")
    raise backend_garbage("the server returns the status of a model that does not exist")


async def _identify_kserve_v1(
    backend: RemoteBackend[Any, Any], context: RequestContext
) -> ServerIdentity:
    index = await backend.perform(ModelIndexRequest(), context)
    assert isinstance(index, ModelIndex)
    return ServerIdentity("KServe V1", index=index)


async def _identify_graphpipe(
    backend: RemoteBackend[Any, Any], context: RequestContext
) -> ServerIdentity:
    try:
        model = await backend.perform(ModelMetadataRequest(""), context)
    except GatewayError as error:  # the text is written for clients of a gateway
        raise error.reworded("the server returns no GraphPipe metadata") from None
    assert isinstance(model, ModelMetadata)
    if not (model.inputs and model.outputs):
        raise backend_garbage("the response is not the metadata of a model: it has no tensors")
    entry = ModelIndexEntry(model.name or "model", state="READY")
    name = model.server or "GraphPipe"
    return ServerIdentity(name, model.server_version, ModelIndex((entry,)))


IDENTIFY: Final[Mapping[str, Identify]] = {
    "v2-rest": _identify_v2,
    "v2-grpc": _identify_v2,
    "trtis-http": _identify_trtis,
    "trtis-grpc": _identify_trtis,
    "tfs-rest": partial(_identify_tfs, _TFS_REST_ERROR),
    "tfs-grpc": partial(_identify_tfs, _TFS_GRPC_ERROR),
    "kserve-v1": _identify_kserve_v1,
    "graphpipe": _identify_graphpipe,
}
"""The function that identifies servers of each protocol."""


def identification_of(protocol: str) -> Identify:
    """Return the function for ``protocol``. Protocols of other packages use V2's function."""
    return IDENTIFY.get(protocol, _identify_v2)
