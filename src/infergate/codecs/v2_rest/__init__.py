"""The V2 protocol (Open Inference Protocol) over REST, with the binary tensor data extension,
Triton's extensions and its generate extension, towards clients and backends.

The entry point is ``codec.V2RestCodec``. Read ``paths`` (what a path names), ``infer_request`` and
``infer_response`` (inferences), then ``tensors``, ``json_document`` and ``json_data`` (how their
parts are read and written). ``pass_through`` rewrites messages between two V2 REST servers,
``streams``, ``generate_frontend`` and ``generate_backend`` are streams of responses. The other
operations are in ``metadata``, ``settings``, ``repository`` and ``shared_memory``; ``backend``
lists how they are sent to servers. ``small_json_reader`` and ``small_data`` are fast paths for
short messages.
"""

from infergate.codecs.v2_rest.codec import PLUGIN, V2RestCodec

__all__ = ["PLUGIN", "V2RestCodec"]
