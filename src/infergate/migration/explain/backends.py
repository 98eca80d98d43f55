"""Builds backends that capture the requests to explain instead of sending them."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from infergate.assembly.backends import make_remote_backend
from infergate.assembly.plugins import read_metadata
from infergate.backends.base import Backend
from infergate.backends.remote import RemoteBackend
from infergate.codecs.profiles import GENERIC
from infergate.codecs.registry import plugins
from infergate.config import compile as compiled
from infergate.config.schema import BackendConfig, Config
from infergate.core.messages import ModelMetadata
from infergate.migration.explain.capture import (
    Captured,
    CapturingBackend,
    CapturingModels,
    CapturingUpstream,
)
from infergate.plugin_host.instances import create_plugin
from infergate.plugin_host.loading import BACKENDS
from infergate.plugins.model import PythonModel
from infergate.transport.base import Upstream

AUTO: Final = "auto"
"""The setting of ``profile`` that makes a backend query its server."""


class _DescribedModel(NamedTuple):
    """The metadata of a Python model, whose inferences are captured instead of run."""

    metadata: ModelMetadata


def _python_model(name: str, config: BackendConfig) -> Any:
    label = f"backend '{name}'"
    abstract: Any = PythonModel
    model = create_plugin(abstract, config.model, BACKENDS, config.options, label)
    return _DescribedModel(read_metadata(model, label))


def make_capturing_backend(
    config: Config,
    name: str,
    captured: Captured,
    *,
    queries_servers: bool = False,
    keeps_queries: bool = False,
) -> Backend:
    """Return the backend ``name`` of ``config``, which stores inferences in ``captured`` instead
    of sending them. With ``keeps_queries``, it also stores other requests. Without
    ``queries_servers``, the backend sends nothing, and assumes a generic server if its profile is
    ``auto``."""
    backend = config.backends[name]
    plugin = plugins().get(backend.protocol)
    if backend.model:
        models = CapturingModels(name, captured, (_python_model(name, backend),))
        models.protocol = backend.protocol
        return models
    if plugin is None:
        return CapturingModels(name, captured)
    if backend.profile == AUTO and not queries_servers:
        generic = backend.model_copy(update={"profile": GENERIC.name})
        config = config.model_copy(update={"backends": {**config.backends, name: generic}})

    def make(
        settings: Any, codec: Any, upstream: Upstream[Any, Any], *rest: Any, **options: Any
    ) -> RemoteBackend[Any, Any]:
        online = upstream if queries_servers else None
        capturing = CapturingUpstream(plugin, captured, online, keeps_queries=keeps_queries)
        capturing_backend = CapturingBackend(settings, codec, capturing, *rest, **options)
        capturing_backend.captured = captured
        return capturing_backend

    return make_remote_backend(name, config, compiled.limits(config), make=make)
