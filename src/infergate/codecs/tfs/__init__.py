"""TensorFlow Serving's gRPC API, for clients and backends.

Read ``codec`` and ``backend``, then ``model_spec`` (which model a request names), ``predict`` with
``tensor_reader`` and ``tensor_writer`` (tensors), ``metadata`` (signatures and versions),
``forwarded_calls`` (Classify, Regress and MultiInference).
"""

from __future__ import annotations

from typing import Final

from infergate.codecs.base import CodecPlugin, TransportKind
from infergate.codecs.tfs import codec
from infergate.codecs.tfs.messages import MODEL_SERVICE, PREDICTION_SERVICE

GRPC: Final = CodecPlugin(
    "tfs-grpc", TransportKind.GRPC, (PREDICTION_SERVICE, MODEL_SERVICE), codec.create
)
