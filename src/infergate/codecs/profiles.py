"""Profiles of known servers, and corrections of the errors that they report.

Sources: docs/fidelity-v2.md, docs/fidelity-trtis.md and the servers' own source code.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from infergate.codecs.base import Profile
from infergate.core.errors import Kind
from infergate.core.hops import LOOP_TEXT
from infergate.core.messages import ServerMetadata

GENERIC: Final = Profile("generic")
TRITON: Final = Profile(
    "triton",
    supports_binary=True,
    supports_classification=True,
    reports_config=True,
    reports_statistics=True,
    has_trace_settings=True,
    has_log_settings=True,
    has_generate_stream=True,
    reports_decoupled=True,
)
# The other features of an infergate backend depend on its release and configuration. The backend
# lists them as extensions in its metadata.
INFERGATE: Final = Profile("infergate", supports_binary=True, supports_classification=True)
# MLServer's repository extension accepts Triton's messages and reads only the name
# (mlserver/handlers/model_repository.py).
MLSERVER: Final = Profile(
    "mlserver", loads_by_name=True, has_infer_stream=True, supports_content_type=True
)
# KServe accepts the binary extension but does not list it in its metadata, rejects every version in
# a REST path with 501, and has a different model list. Its load and unload messages contain only a
# name, which is field 1 (kserve/protocol/grpc/grpc_predict_v2_pb2.py of 0.21).
KSERVE: Final = Profile(
    "kserve",
    supports_binary=True,
    accepts_versions=False,
    has_model_list=True,
    loads_by_name=True,
    loads_by_field_1=True,
)
# The OpenVINO model server has the binary extension over REST (see its source code). Its only V2
# operations are the six that every server has (docs/model_server_rest_api_kfs.md). This profile has
# not been tested with a real server, and the server's name in metadata is an assumption.
OVMS: Final = Profile("ovms", supports_binary=True, loads_by_name=True)
# Legacy servers load a model by its name. They differ from each other only in their
# command-line options.
TRTSERVER: Final = Profile("trtserver-1.x", supports_classification=True, loads_by_name=True)
# GraphPipe has only inferences and metadata. The author of a server chooses its name, so infergate
# cannot detect these two profiles; they must be configured.
GRAPHPIPE_GO: Final = Profile("graphpipe-go", accepts_versions=False)
GRAPHPIPE_PY: Final = Profile("graphpipe-py", accepts_versions=False)

PROFILES: Final = {
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
"""All profiles by their names in the configuration."""
_BY_METADATA_NAME: Final = {**PROFILES, "openvino model server": OVMS}
"""The profiles by the server's name in its metadata, in lower case."""


_KIND_CORRECTIONS: Final = (
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
    # infergate reports a loop as FAILED_PRECONDITION, which other servers use for bad requests.
    (Kind.BAD_REQUEST, re.compile(re.escape(LOOP_TEXT)), Kind.LOOP_DETECTED),
)
"""Errors that servers report with an ambiguous or misleading code. Each entry has the reported
kind, a pattern of the message, and the actual kind."""
_REQUEST_ID: Final = re.compile(r"\[request id: [^]]*\] ")


def corrected_kind(kind: Kind, message: str) -> Kind:
    """Return the actual kind of a server's error. ``kind`` is the reported kind, which ``message``
    may contradict."""
    request_id = _REQUEST_ID.match(message)
    start = request_id.end() if request_id else 0
    for reported, pattern, actual in _KIND_CORRECTIONS:
        if kind is reported and pattern.match(message, start):
            return actual
    return kind


def detect_profile(metadata: ServerMetadata) -> Profile:
    """Return the profile of the server that ``metadata`` describes. The extensions in ``metadata``
    add features to the profile, because a Triton server may have any name (``--id``)."""
    profile = _BY_METADATA_NAME.get(metadata.name.lower(), GENERIC)
    extensions = metadata.extensions
    return replace(
        profile,
        supports_binary=profile.supports_binary or "binary_tensor_data" in extensions,
        supports_classification=profile.supports_classification or "classification" in extensions,
        reports_config=profile.reports_config or "model_configuration" in extensions,
        reports_statistics=profile.reports_statistics or "statistics" in extensions,
        has_trace_settings=profile.has_trace_settings or "trace" in extensions,
        has_log_settings=profile.has_log_settings or "logging" in extensions,
    )
