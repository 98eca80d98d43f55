"""The servers that the legacy client is tested against: recorded in ``legacy``, live in ``peers``.

All targets serve the same models and owe the same responses; each target lists its differences. To
add one, write a context manager that yields a ``Target``, and add its name to ``TARGETS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from e2e.running import started_infergate
from legacy.running import started_legacy


@dataclass(frozen=True)
class Target:
    """Something that speaks the legacy API: ``host:port`` of each protocol.

    ``instead`` are outcomes of scenarios of the client that it owes instead of the real server's.
    ``noticed`` is what the client would notice of its answers to recorded bytes, by their name.
    """

    http: str
    grpc: str
    instead: Mapping[str, Any] = field(default_factory=dict)
    noticed: Mapping[str, list[str]] = field(default_factory=dict)


@contextmanager
def legacy() -> Iterator[Target]:
    """The server for tests, as v1.9.0."""
    with started_legacy() as server:
        yield Target(server.http, server.grpc)


@contextmanager
def legacy_1_15() -> Iterator[Target]:
    """The server for tests, as v1.15.0: its own order of outputs, its own words."""
    new = "Request for unknown model: 'simple' version 99 is not found"
    said = f"msg {new!r}, not \"Inference request for unknown model 'simple'\""
    calls = "/nvidia.inferenceserver.GRPCService"
    noticed = {
        "http_infer_unknown_version.c02": [
            f"POST /api/infer/simple/99?format=binary: {said}",
        ],
        "grpc_infer_unknown_version.c01": [f"{calls}/Infer 3: {said}"],
        "grpc_stream_err.c01": [f"{calls}/StreamInfer 1: {said}"],
    }
    with started_legacy("--level", "1.15") as server:
        instead = {"error_unknown_version": {"error": new}}
        yield Target(server.http, server.grpc, instead, noticed)


def _behind(protocol: str, endpoint: str) -> Callable[[], AbstractContextManager[Target]]:
    """infergate in front of the server for tests, asking it by ``protocol``."""

    @contextmanager
    def target() -> Iterator[Target]:
        with started_legacy() as server:
            url = endpoint.format(http=server.http, grpc=server.grpc)
            config = SIDECAR.format(protocol, url)
            with started_infergate(config) as gateway:
                yield Target(gateway.http, gateway.grpc)

    return target


SIDECAR = """
backends:
  old: {{protocol: {0}, endpoints: ["{1}"]}}
routes:
  - {{model: "*", backend: old}}
"""
TARGETS: dict[str, Callable[[], AbstractContextManager[Target]]] = {
    "legacy": legacy,
    "legacy-1.15": legacy_1_15,
    "infergate to trtis-http": _behind("trtis-http", "http://{http}"),
    "infergate to trtis-grpc": _behind("trtis-grpc", "grpc://{grpc}"),
}
