"""The V2 protocol (Open Inference Protocol) over REST, with Triton's extensions, for clients and
backends.

The entry point is ``codec.V2RestCodec``. Read ``paths``, ``infer_request`` and ``infer_response``,
then ``tensors``, ``json_tensors.json_document`` and ``json_tensors.json_data``. ``pass_through``
rewrites messages if the client and the backend both speak V2 REST. ``streams``,
``generate_frontend`` and ``generate_backend`` implement streams of responses.
``small_json_reader`` and ``json_tensors.small_data`` are fast paths for short messages."""

from infergate.codecs.v2_rest.codec import PLUGIN, V2RestCodec

__all__ = ["PLUGIN", "V2RestCodec"]
