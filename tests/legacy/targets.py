"""Servers that are tested with the legacy client: in this folder with the recorded bytes of the
client, and in ``peers`` with the running client.

All targets serve the same models and must return the same responses; each lists its differences. To
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
    """A server of the legacy API: ``host:port`` of each protocol.

    ``other_outcomes`` maps scenarios to outcomes that differ from the real server's.
    ``known_differences`` lists, by name, the differences that the client would notice in
    responses to recorded bytes.
    """

    http: str
    grpc: str
    other_outcomes: Mapping[str, Any] = field(default_factory=dict)
    known_differences: Mapping[str, list[str]] = field(default_factory=dict)


@contextmanager
def legacy() -> Iterator[Target]:
    """Yield the test server as v1.9.0."""
    with started_legacy() as server:
        yield Target(server.http, server.grpc)


@contextmanager
def legacy_1_15() -> Iterator[Target]:
    """Yield the test server as v1.15.0, which has a different order of outputs and
    different error texts."""
    message = "Request for unknown model: 'simple' version 99 is not found"
    difference = f"msg {message!r}, not \"Inference request for unknown model 'simple'\""
    calls = "/nvidia.inferenceserver.GRPCService"
    known_differences = {
        "http_infer_unknown_version.c02": [
            f"POST /api/infer/simple/99?format=binary: {difference}",
        ],
        "grpc_infer_unknown_version.c01": [f"{calls}/Infer 3: {difference}"],
        "grpc_stream_err.c01": [f"{calls}/StreamInfer 1: {difference}"],
    }
    with started_legacy("--level", "1.15") as server:
        other_outcomes = {"error_unknown_version": {"error": message}}
        yield Target(server.http, server.grpc, other_outcomes, known_differences)


def _infergate_over(protocol: str, endpoint: str) -> Callable[[], AbstractContextManager[Target]]:
    @contextmanager
    def target() -> Iterator[Target]:
        with started_legacy() as server:
            url = endpoint.format(http=server.http, grpc=server.grpc)
            config = CONFIG.format(protocol, url)
            with started_infergate(config) as gateway:
                yield Target(gateway.http, gateway.grpc)

    return target


CONFIG = """
backends:
  old: {{protocol: {0}, endpoints: ["{1}"]}}
routes:
  - {{model: "*", backend: old}}
"""
TARGETS: dict[str, Callable[[], AbstractContextManager[Target]]] = {
    "legacy": legacy,
    "legacy-1.15": legacy_1_15,
    "infergate to trtis-http": _infergate_over("trtis-http", "http://{http}"),
    "infergate to trtis-grpc": _infergate_over("trtis-grpc", "grpc://{grpc}"),
}
