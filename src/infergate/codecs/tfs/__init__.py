"""TensorFlow Serving's gRPC and REST APIs, for clients and backends.

For gRPC, read ``codec`` and ``backend``, then ``model_spec`` (the model that a request names),
``predict`` with ``tensor_reader`` and ``tensor_writer`` (tensors), ``metadata`` (signatures and
versions), and ``forwarded_calls`` (Classify, Regress and MultiInference).

For REST, read ``rest_codec``, then ``rest_paths``, ``rest_predict`` and ``rest_messages``.
"""

from __future__ import annotations

from typing import Final

from infergate.codecs.base import CodecPlugin, TransportKind
from infergate.codecs.tfs.codec import TfsGrpcCodec
from infergate.codecs.tfs.messages import MODEL_SERVICE, PREDICTION_SERVICE
from infergate.codecs.tfs.options import GRPC_OPTIONS, REST_OPTIONS, read_options
from infergate.codecs.tfs.rest_codec import TfsRestCodec

GRPC: Final = CodecPlugin(
    "tfs-grpc",
    TransportKind.GRPC,
    (PREDICTION_SERVICE, MODEL_SERVICE),
    lambda options: TfsGrpcCodec(read_options(GRPC_OPTIONS, options)),
)
REST: Final = CodecPlugin(
    "tfs-rest",
    TransportKind.HTTP,
    ("v1", "V1"),
    lambda options: TfsRestCodec(read_options(REST_OPTIONS, options)),
)
