"""The protocols of this version without codecs: the schema uses only the options of a codec."""

from __future__ import annotations

from typing import Any

import pytest

from infergate.codecs.base import Codec, CodecPlugin, TransportKind
from infergate.config import protocols


def _without_codecs(options: Any) -> Codec[Any, Any]:
    raise AssertionError("reading a configuration makes no codec")


PLUGINS = {
    "v2-rest": CodecPlugin(
        "v2-rest", TransportKind.HTTP, ("v2",), _without_codecs, supports_shared_memory=True
    ),
    "v2-grpc": CodecPlugin(
        "v2-grpc", TransportKind.GRPC, (), _without_codecs, supports_shared_memory=True
    ),
    "trtis-http": CodecPlugin(
        "trtis-http", TransportKind.HTTP, ("api",), _without_codecs, supports_shared_memory=True
    ),
    "graphpipe": CodecPlugin(
        "graphpipe", TransportKind.HTTP, ("graphpipe",), _without_codecs, supports_framing=True
    ),
    "tfs-grpc": CodecPlugin("tfs-grpc", TransportKind.GRPC, (), _without_codecs),
    "tfs-rest": CodecPlugin("tfs-rest", TransportKind.HTTP, ("v1",), _without_codecs),
    "kserve-v1": CodecPlugin("kserve-v1", TransportKind.HTTP, ("v1", ""), _without_codecs),
    "trtis-grpc": CodecPlugin(
        "trtis-grpc", TransportKind.GRPC, (), _without_codecs, supports_shared_memory=True
    ),
}


@pytest.fixture(autouse=True)
def known_protocols(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocols, "plugins", lambda: PLUGINS)
