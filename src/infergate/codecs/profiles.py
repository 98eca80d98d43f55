"""What is known of the servers people run behind the gateway (sources: docs/fidelity-v2.md)."""

from __future__ import annotations

from typing import Final

from infergate.codecs.base import Profile
from infergate.core.messages import ServerMetadata

GENERIC: Final = Profile("generic")
TRITON: Final = Profile("triton", binary=True)
INFERGATE: Final = Profile("infergate", binary=True)
MLSERVER: Final = Profile("mlserver")
# KServe takes the binary extension though its metadata does not list it; it answers any version
# in a REST path with 501, and has a list of models of its own.
KSERVE: Final = Profile("kserve", binary=True, versions=False, lists_models=True)

BY_NAME: Final = {p.name: p for p in (GENERIC, TRITON, INFERGATE, MLSERVER, KSERVE)}
_BINARY_EXTENSION: Final = "binary_tensor_data"


def detect(metadata: ServerMetadata) -> Profile:
    """The profile of the server that describes itself so."""
    known = BY_NAME.get(metadata.name.lower())
    if known is not None:
        return known
    return Profile("generic", binary=_BINARY_EXTENSION in metadata.extensions)
