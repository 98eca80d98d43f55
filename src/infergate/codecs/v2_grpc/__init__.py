"""The Open Inference Protocol (V2) over gRPC, for clients and backends.

The entry point is `PLUGIN`; the codec is `V2Grpc` in `codec`. Read `codec` and `methods`, then
`infer_request` and `infer_response` (full check and translation), `tensors` and `typed_contents`
(tensor data), and `head_limits` (protection from expensive messages). Last, read `split_message`
and `validated_heads` (the fast path for recurring heads).
"""

from __future__ import annotations

from typing import Final

from infergate.codecs.base import CodecPlugin, TransportKind
from infergate.codecs.v2_grpc.codec import create
from infergate.codecs.v2_grpc.methods import SERVICE

PLUGIN: Final = CodecPlugin(
    name="v2-grpc",
    transport_kind=TransportKind.GRPC,
    claims=(SERVICE,),
    create=create,
    is_fallback=True,
    supports_shared_memory=True,
)
