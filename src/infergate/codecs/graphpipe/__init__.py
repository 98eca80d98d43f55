"""The GraphPipe protocol over HTTP and over size-prefixed frames, for clients and for backends.

Start at the entry point, ``codec.GraphPipeCodec``. Then read, in this order, ``paths``,
``infer_request``, ``infer_response``, ``name_resolution``, ``flatbuffer_reader`` and
``flatbuffer_writer``.
"""

from __future__ import annotations

from typing import Final

from infergate.codecs.base import CodecPlugin, TransportKind
from infergate.codecs.graphpipe.codec import GraphPipeCodec
from infergate.codecs.graphpipe.options import read_options
from infergate.codecs.graphpipe.paths import PATH_PREFIX

PLUGIN: Final = CodecPlugin(
    "graphpipe",
    TransportKind.HTTP,
    (PATH_PREFIX,),
    lambda options: GraphPipeCodec(read_options(options)),
    supports_framing=True,
)
