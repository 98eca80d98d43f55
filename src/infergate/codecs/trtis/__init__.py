"""The legacy TensorRT Inference Server API (v1.0 to v1.15), towards clients and backends."""

from __future__ import annotations

from typing import Final

from infergate.codecs.base import Carrier, CodecPlugin
from infergate.codecs.trtis import grpc_codec, http_codec, http_frontend
from infergate.codecs.trtis.messages import SERVICE
from infergate.core.limits import KIB

HTTP: Final = CodecPlugin(
    "trtis-http",
    Carrier.HTTP,
    ("api",),
    http_codec.make,
    shares_memory=True,
    headers=64 * KIB,  # NV-InferRequest has a line for each tensor
    response_header=http_frontend.MAX_RESPONSE_HEADER,  # NV-InferResponse holds all classes
)
GRPC: Final = CodecPlugin(
    "trtis-grpc", Carrier.GRPC, (SERVICE,), grpc_codec.make, shares_memory=True
)
