"""Writes errors as gRPC statuses, as the V2 protocol requires ("errors are indicated by
google.rpc.Status")."""

from __future__ import annotations

from typing import Final

from infergate.codecs.protos.statuses import status_code
from infergate.core.errors import GatewayError, retry_after_headers
from infergate.core.wire import RpcResponse

_MAX_DETAILS_BYTES: Final = 2000
"""Maximum size of a status message in bytes. Percent-encoding can triple the size, and clients
reject metadata of over 8 KiB."""


def build_error(error: GatewayError) -> RpcResponse:
    """Return `error` as a status, with ``retry_after`` as trailing metadata in whole seconds."""
    details = error.public.encode("utf-8", "replace")
    if len(details) > _MAX_DETAILS_BYTES:
        details = details[:_MAX_DETAILS_BYTES] + b"..."
    return RpcResponse(
        code=status_code(error),
        details=details.decode("utf-8", "ignore"),
        metadata=retry_after_headers(error),
    )
