"""The findings of a probe: protocols, servers and models, and the addresses that cannot be used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from infergate.config.values import Url
from infergate.core.messages import ModelMetadata
from infergate.migration.probe.targets import PortProblem, ProbeTarget

_PREFERENCE: Final = (
    "v2-grpc",
    "v2-rest",
    "tfs-grpc",
    "tfs-rest",
    "trtis-grpc",
    "trtis-http",
    "graphpipe",
    "kserve-v1",
)
"""The protocols in the order of preference for a backend in the written configuration. Protocols
with more features come first; KServe V1, which has no metadata, comes last."""


def preference(protocol: str) -> int:
    """Return the rank of ``protocol``; protocols with lower ranks are preferred."""
    return _PREFERENCE.index(protocol) if protocol in _PREFERENCE else len(_PREFERENCE)


@dataclass(frozen=True, slots=True)
class DetectedProtocol:
    """A protocol that the server at ``url`` speaks. ``server`` is the server's name; ``version`` is
    empty if unknown. ``models`` maps the names of the listed models to their states, which may be
    empty. ``models`` is None if the server cannot list models."""

    protocol: str
    url: Url
    server: str
    version: str = ""
    models: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class TargetFindings:
    """The protocols that ``target`` speaks. If ``detected`` is empty, ``problem`` is the reason,
    and ``attempts`` has the error of each protocol that was tried."""

    target: ProbeTarget
    detected: Sequence[DetectedProtocol] = ()
    problem: PortProblem | None = None
    attempts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProbedModel:
    """A model of a server. ``source`` is the protocol that provided ``metadata``. If ``metadata``
    is None, ``problem`` is the reason. ``state`` is READY, UNAVAILABLE or another state, or empty
    if unknown."""

    name: str
    state: str = ""
    metadata: ModelMetadata | None = None
    source: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ProbedServer:
    """A server. The first of its ``protocols`` is preferred for a backend. ``omitted`` is the
    number of models beyond the limit, which were not described."""

    name: str
    version: str
    protocols: Sequence[DetectedProtocol]
    models: Sequence[ProbedModel] = ()
    omitted: int = 0

    @property
    def best(self) -> DetectedProtocol:
        """The preferred protocol for a backend."""
        return self.protocols[0]

    @property
    def lists_models(self) -> bool:
        """Whether the server lists its models in any of its protocols."""
        return any(item.models is not None for item in self.protocols)

    @property
    def title(self) -> str:
        """The server's name and version."""
        return f"{self.name} {self.version}".rstrip()


@dataclass(frozen=True, slots=True)
class ProbeFindings:
    """The result of a probe."""

    targets: Sequence[TargetFindings]
    servers: Sequence[ProbedServer]


def group_servers(detected: Sequence[DetectedProtocol]) -> list[list[DetectedProtocol]]:
    """Return the protocols of each server, the preferred protocol first. Two URLs belong to one
    server if they have the same host, port and path, or if they have the same host, server name and
    version. However, two ports with the same protocol belong to two servers."""
    groups: list[list[DetectedProtocol]] = []
    for item in detected:
        for group in groups:
            if _is_same_server(group, item):
                group.append(item)
                break
        else:
            groups.append([item])
    for group in groups:
        group.sort(key=lambda item: preference(item.protocol))
    return groups


def _is_same_server(group: Sequence[DetectedProtocol], item: DetectedProtocol) -> bool:
    if any(_port(item) == _port(other) for other in group):
        return True
    return item.protocol not in {other.protocol for other in group} and any(
        (other.url.host, other.server, other.version) == (item.url.host, item.server, item.version)
        for other in group
    )


def _port(item: DetectedProtocol) -> tuple[str, int | None, str]:
    return item.url.host, item.url.port, item.url.path
