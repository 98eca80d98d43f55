"""What is known of the servers people run behind the gateway (sources: docs/fidelity-v2.md)."""

from __future__ import annotations

from typing import Final

from infergate.codecs.base import Profile
from infergate.core.messages import ServerMetadata

GENERIC: Final = Profile("generic")
TRITON: Final = Profile("triton", binary=True, classifies=True, tells_config=True)
INFERGATE: Final = Profile("infergate", binary=True, classifies=True)
MLSERVER: Final = Profile("mlserver")
# KServe takes the binary extension though its metadata does not list it; it answers any version
# in a REST path with 501, and has a list of models of its own.
KSERVE: Final = Profile("kserve", binary=True, versions=False, lists_models=True)

BY_NAME: Final = {p.name: p for p in (GENERIC, TRITON, INFERGATE, MLSERVER, KSERVE)}


def detect(metadata: ServerMetadata) -> Profile:
    """The profile of the server that describes itself so. A Triton may have any name (``--id``),
    so the extensions it lists count."""
    known = BY_NAME.get(metadata.name.lower())
    if known is not None:
        return known
    listed = metadata.extensions
    return Profile(
        "generic",
        binary="binary_tensor_data" in listed,
        classifies="classification" in listed,
        tells_config="model_configuration" in listed,
    )
