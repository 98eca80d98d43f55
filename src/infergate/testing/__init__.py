"""Tools for tests of clients, codecs and other plug-ins.

For tests of clients (docs/testing-clients.md), start with ``BackgroundGateway``, which the pytest
fixture ``infergate_gateway`` returns.

- ``background_gateway``: a gateway on free ports, in a thread
- ``fake_model``: models that are Python functions
- ``recorded_model``: models that return recorded responses

For tests of plug-ins, start with ``check_codec``, ``check_model``, ``check_hook`` or
``check_transform``.

- ``codec_check``: a check that a codec follows ``infergate.codecs.base``
- ``stream_check``: the same check for the streams of a codec
- ``plugin_check``: checks that run Python models, request hooks and transforms as the gateway does
- ``vectors``: cases in ``tests/vectors/<protocol>/<case>/``, which a codec parses and may build
- ``canonical``: operations and responses as JSON, for reading and comparing
- ``samples``: the fixed examples that ``check_codec`` uses
- ``strategies``: random canonical requests and responses (requires hypothesis)
"""

from infergate.core.exchange import Exchange, Outcome
from infergate.testing.background_gateway import BackgroundGateway
from infergate.testing.canonical import from_json, is_same, to_json
from infergate.testing.codec_check import check_codec
from infergate.testing.fake_model import FakeModel
from infergate.testing.plugin_check import check_hook, check_model, check_transform
from infergate.testing.recorded_model import RecordedModel, recorded_models
from infergate.testing.stream_check import check_stream
from infergate.testing.vectors import Vector, check_vector, load

__all__ = [
    "BackgroundGateway",
    "Exchange",
    "FakeModel",
    "Outcome",
    "RecordedModel",
    "Vector",
    "check_codec",
    "check_hook",
    "check_model",
    "check_stream",
    "check_transform",
    "check_vector",
    "from_json",
    "is_same",
    "load",
    "recorded_models",
    "to_json",
]
