"""Builds the backends of an explanation."""

from __future__ import annotations

from typing import Final

from infergate.assembly.backends import make_remote_backend
from infergate.backends.base import Backend
from infergate.codecs.profiles import GENERIC
from infergate.codecs.registry import plugins
from infergate.config import compile as compiled
from infergate.config.schema import Config
from infergate.migration.explain.capture import Captured, CapturingModels, CapturingUpstream

AUTO: Final = "auto"
"""The setting of ``profile`` that makes a backend query its server."""


def make_capturing_backend(
    config: Config,
    name: str,
    captured: Captured,
    *,
    queries_servers: bool = False,
    keeps_queries: bool = False,
) -> Backend:
    """Return the backend ``name`` of ``config``, which keeps inferences in ``captured``. Without
    ``queries_servers``, it sends nothing at all, and a server whose profile is not configured
    counts as generic."""
    backend = config.backends[name]
    plugin = plugins().get(backend.protocol)
    if plugin is None:
        return CapturingModels(name, captured)
    if backend.profile == AUTO and not queries_servers:
        generic = backend.model_copy(update={"profile": GENERIC.name})
        config = config.model_copy(update={"backends": {**config.backends, name: generic}})
    return make_remote_backend(
        name,
        config,
        compiled.limits(config),
        wrap_upstream=lambda upstream: CapturingUpstream(
            plugin,
            captured,
            upstream if queries_servers else None,
            keeps_queries=keeps_queries,
        ),
    )
