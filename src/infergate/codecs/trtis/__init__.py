"""The legacy TensorRT Inference Server API (v1.0 to v1.15) over HTTP and gRPC, for clients and for
backends.

An inference consists of a header (a protobuf message: text over HTTP, binary over gRPC) and raw
data. Read ``http_codec``, ``http_frontend`` and ``http_backend``, ``infer_request`` and
``infer_response`` (headers, data and canonical tensors), ``header_checks``, then
``http_pass_through`` with ``validated_headers``. The gRPC modules have the same structure.
"""

from __future__ import annotations

from typing import Final

from infergate.codecs.base import CodecPlugin, TransportKind
from infergate.codecs.trtis import grpc_codec, http_codec, http_frontend
from infergate.codecs.trtis.messages import SERVICE
from infergate.core.limits import KIB

HTTP: Final = CodecPlugin(
    "trtis-http",
    TransportKind.HTTP,
    ("api",),
    http_codec.create,
    supports_shared_memory=True,
    min_header_bytes=64 * KIB,  # the header NV-InferRequest describes every tensor
    max_response_header_bytes=http_frontend.MAX_RESPONSE_HEADER,
)
GRPC: Final = CodecPlugin(
    "trtis-grpc", TransportKind.GRPC, (SERVICE,), grpc_codec.create, supports_shared_memory=True
)
