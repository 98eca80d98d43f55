"""The legacy TensorRT Inference Server API (v1.0 to v1.15) over HTTP and gRPC, for clients and for
backends.

An inference consists of a header (a protobuf message: text over HTTP, binary over gRPC) and raw
data. Read ``http_codec``, ``http_frontend`` and ``http_backend``. Next, read ``infer_request`` and
``infer_response`` (headers, data and canonical tensors), ``header_checks``, and
``http_pass_through`` with ``validated_headers``. The gRPC modules have the same structure.
"""

from __future__ import annotations

from typing import Final

from infergate.codecs.base import CodecPlugin, TransportKind
from infergate.codecs.trtis.grpc_codec import TrtisGrpcCodec
from infergate.codecs.trtis.http_codec import TrtisHttpCodec
from infergate.codecs.trtis.http_frontend import MAX_RESPONSE_HEADER
from infergate.codecs.trtis.messages import SERVICE
from infergate.codecs.trtis.options import read_options
from infergate.core.limits import KIB

HTTP: Final = CodecPlugin(
    "trtis-http",
    TransportKind.HTTP,
    ("api",),
    lambda options: TrtisHttpCodec(read_options(options)),
    supports_shared_memory=True,
    min_header_bytes=64 * KIB,  # NV-InferRequest describes every tensor
    max_response_header_bytes=MAX_RESPONSE_HEADER,
)
GRPC: Final = CodecPlugin(
    "trtis-grpc",
    TransportKind.GRPC,
    (SERVICE,),
    lambda options: TrtisGrpcCodec(read_options(options)),
    supports_shared_memory=True,
)
