"""For those who write a codec: test vectors, a conformance check, hypothesis strategies.

- ``vectors``: cases in ``tests/vectors/<protocol>/<case>/``, run through a codec both ways;
- ``canonical``: operations and answers as JSON, for reading and comparing;
- ``codec_check``: the contract of ``infergate.codecs.base`` as code;
- ``strategies``: any canonical request or answer (needs hypothesis, so import it by its name).
"""

from infergate.testing.canonical import from_json, same, to_json
from infergate.testing.codec_check import check_codec
from infergate.testing.vectors import Vector, check_vector, load

__all__ = ["Vector", "check_codec", "check_vector", "from_json", "load", "same", "to_json"]
