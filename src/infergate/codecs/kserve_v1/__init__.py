"""KServe's V1 protocol (``:predict``) over HTTP, for clients and for backends.

The entry point is ``codec.KServeV1Codec``. Next, read ``paths``, ``cloud_events`` and ``predict``.
"""

from __future__ import annotations

from typing import Final

from infergate.codecs.base import CodecPlugin, TransportKind
from infergate.codecs.kserve_v1.codec import KServeV1Codec
from infergate.codecs.kserve_v1.paths import PROTOCOL

PLUGIN: Final = CodecPlugin(
    PROTOCOL, TransportKind.HTTP, ("v1", ""), lambda options: KServeV1Codec(**options)
)
