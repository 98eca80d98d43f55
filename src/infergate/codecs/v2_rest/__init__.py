"""The V2 protocol (Open Inference Protocol) over REST, with Triton's extensions, towards clients
and backends.

The entry point is ``codec.V2RestCodec``. Read ``paths``, ``infer_request`` and ``infer_response``,
then ``tensors``, ``json_document`` and ``json_data``. ``pass_through`` rewrites messages between
two V2 REST servers; ``streams``, ``generate_frontend`` and ``generate_backend`` are streams of
responses; ``small_json_reader`` and ``small_data`` are fast paths for short messages.
"""

from infergate.codecs.v2_rest.codec import PLUGIN, V2RestCodec

__all__ = ["PLUGIN", "V2RestCodec"]
