"""The protocols of this version, without their codecs: the schema only asks who carries."""

from __future__ import annotations

from typing import Any

import pytest

from infergate.codecs.base import Carrier, Codec, CodecPlugin
from infergate.config import protocols


def _unmade(options: Any) -> Codec[Any, Any]:
    raise AssertionError("reading a configuration makes no codec")


PLUGINS = {
    "v2-rest": CodecPlugin("v2-rest", Carrier.HTTP, ("v2",), _unmade, shares_memory=True),
    "v2-grpc": CodecPlugin("v2-grpc", Carrier.GRPC, (), _unmade, shares_memory=True),
    "trtis-http": CodecPlugin("trtis-http", Carrier.HTTP, ("api",), _unmade, shares_memory=True),
    "graphpipe": CodecPlugin("graphpipe", Carrier.HTTP, ("graphpipe",), _unmade, framed=True),
    "trtis-grpc": CodecPlugin("trtis-grpc", Carrier.GRPC, (), _unmade, shares_memory=True),
}


@pytest.fixture(autouse=True)
def known_protocols(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocols, "plugins", lambda: PLUGINS)
