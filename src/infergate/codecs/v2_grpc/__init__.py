"""The Open Inference Protocol (V2) over gRPC, towards clients and backends."""

from __future__ import annotations

from typing import Final

from infergate.codecs.base import Carrier, CodecPlugin
from infergate.codecs.v2_grpc.codec import make
from infergate.codecs.v2_grpc.methods import SERVICE

PLUGIN: Final = CodecPlugin(
    name="v2-grpc",
    carrier=Carrier.GRPC,
    claims=(SERVICE,),
    make=make,
    answers_rest=True,
    shares_memory=True,
)
