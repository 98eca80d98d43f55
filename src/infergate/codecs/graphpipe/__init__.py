"""GraphPipe, over HTTP and what carries its messages like HTTP, towards clients and backends."""

from __future__ import annotations

from typing import Final

from infergate.codecs.base import Carrier, CodecPlugin
from infergate.codecs.graphpipe import codec
from infergate.codecs.graphpipe.paths import CLAIM

PLUGIN: Final = CodecPlugin("graphpipe", Carrier.HTTP, (CLAIM,), codec.make, framed=True)
