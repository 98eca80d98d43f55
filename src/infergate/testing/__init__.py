"""Tools for authors of codecs: a conformance check, test vectors and hypothesis strategies.

Start with ``check_codec``.

- ``codec_check``: a check that a codec follows ``infergate.codecs.base``
- ``stream_check``: the same for streams
- ``plugin_check``: runs Python models and request hooks as the gateway does
- ``vectors``: cases in ``tests/vectors/<protocol>/<case>/``, run through a codec in both directions
- ``canonical``: operations and responses as JSON, for reading and comparing
- ``samples``: the fixed examples that ``check_codec`` uses
- ``strategies``: random canonical requests and responses; it needs hypothesis
"""

from infergate.testing.canonical import from_json, is_same, to_json
from infergate.testing.codec_check import check_codec
from infergate.testing.plugin_check import check_hook, check_model
from infergate.testing.stream_check import check_stream
from infergate.testing.vectors import Vector, check_vector, load

__all__ = [
    "Vector",
    "check_codec",
    "check_hook",
    "check_model",
    "check_stream",
    "check_vector",
    "from_json",
    "is_same",
    "load",
    "to_json",
]
