"""What is known of the servers people run behind the gateway: a row each.

Sources: docs/fidelity-v2.md, docs/fidelity-trtis.md and the servers' own sources. A server says by
its metadata which one it is; where its name tells nothing, the extensions it lists count.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from infergate.codecs.base import Profile
from infergate.core.errors import Kind
from infergate.core.messages import ServerMetadata

GENERIC: Final = Profile("generic")
TRITON: Final = Profile(
    "triton",
    binary=True,
    classifies=True,
    tells_config=True,
    tells_statistics=True,
    traces=True,
    logs=True,
    generates=True,
    tells_decoupled=True,
)
# What else a gateway behind this one does depends on its release and configuration: it lists it.
INFERGATE: Final = Profile("infergate", binary=True, classifies=True)
# MLServer's repository extension takes Triton's messages and looks at the name alone
# (mlserver/handlers/model_repository.py).
MLSERVER: Final = Profile("mlserver", loads_by_name=True, streams_infer=True, content_types=True)
# KServe takes the binary extension though its metadata does not list it; it answers any version
# in a REST path with 501, and has a list of models of its own. Its messages to load and unload
# hold nothing but a name, as field 1 (kserve/protocol/grpc/grpc_predict_v2_pb2.py of 0.21).
KSERVE: Final = Profile(
    "kserve",
    binary=True,
    versions=False,
    lists_models=True,
    loads_by_name=True,
    loads_by_first_field=True,
)
# The OpenVINO model server has the binary extension over REST (its source), and of V2 the six
# operations that every server has (docs/model_server_rest_api_kfs.md): no configuration, statistics
# or repository. None was run for this: what its metadata calls it is taken from its own title.
OVMS: Final = Profile("ovms", binary=True, loads_by_name=True)
# The legacy server's API settles all but what it was started with; a model is loaded by its name.
TRTSERVER: Final = Profile("trtserver-1.x", classifies=True, loads_by_name=True)
# GraphPipe has inferences and metadata, nothing else. What a server calls itself is up to whoever
# wrote it, so these two are declared and not detected.
GRAPHPIPE_GO: Final = Profile("graphpipe-go", versions=False)
GRAPHPIPE_PY: Final = Profile("graphpipe-py", versions=False)

BY_NAME: Final = {
    p.name: p
    for p in (
        GENERIC,
        TRITON,
        INFERGATE,
        MLSERVER,
        KSERVE,
        OVMS,
        TRTSERVER,
        GRAPHPIPE_GO,
        GRAPHPIPE_PY,
    )
}
"""All of them, as the configuration calls them."""
_TOLD: Final = {**BY_NAME, "openvino model server": OVMS}
"""By what their metadata calls them, in lower case."""


_MISJUDGED: Final = (
    (
        Kind.BACKEND_ERROR,
        re.compile(
            "failed to parse the request JSON buffer|Unable to parse '|attempt to access JSON"
        ),
        Kind.BAD_REQUEST,
    ),
    (
        Kind.BACKEND_ERROR,
        re.compile("failed to load '.*', failed to poll from model repository", re.DOTALL),
        Kind.NOT_FOUND,
    ),
    (
        Kind.BAD_REQUEST,
        re.compile(
            "failed to get model version from specified version string '"
            "|invalid model version specified '"
            "|requested model version is not available for model '"
        ),
        Kind.NOT_FOUND,
    ),
)
"""Errors that Triton reports with a code that does not fit. It calls JSON that it cannot read, and
a model that its repository does not have, internal errors; and a version that does not exist an
invalid argument over gRPC, but a path that does not exist over REST."""
_REQUEST_ID: Final = re.compile(r"\[request id: [^]]*\] ")


def kind_by_words(kind: Kind, message: str) -> Kind:
    """The kind of the error that a server tells as ``kind`` with ``message``."""
    said = _REQUEST_ID.match(message)
    start = said.end() if said else 0
    for told, words, meant in _MISJUDGED:
        if kind is told and words.match(message, start):
            return meant
    return kind


def detect(metadata: ServerMetadata) -> Profile:
    """The profile of the server that describes itself so. A Triton may have any name (``--id``),
    so the extensions it lists count."""
    known = _TOLD.get(metadata.name.lower(), GENERIC)
    listed = metadata.extensions
    return replace(
        known,
        binary=known.binary or "binary_tensor_data" in listed,
        classifies=known.classifies or "classification" in listed,
        tells_config=known.tells_config or "model_configuration" in listed,
        tells_statistics=known.tells_statistics or "statistics" in listed,
        traces=known.traces or "trace" in listed,
        logs=known.logs or "logging" in listed,
    )
