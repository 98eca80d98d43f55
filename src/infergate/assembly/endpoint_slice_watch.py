"""Builds the watch of the Kubernetes service that a backend's configuration names."""

from __future__ import annotations

import os
from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

from infergate.backends.endpoint_slice_watch import EndpointSliceWatch, WatchedService
from infergate.backends.endpoint_slices import EndpointSlices
from infergate.config import compile as compiled
from infergate.config.schema import BackendConfig
from infergate.core.limits import MIB, Limits
from infergate.core.tls_settings import ClientTls
from infergate.transport.base import Endpoint
from infergate.transport.http1.line_stream import LineUpstream

_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""The folder in which the kubelet mounts the token, the CA and the namespace of a pod."""
_API_HOST: Final = "kubernetes.default.svc"
_MAX_LIST_BYTES: Final = 8 * MIB
_MAX_EVENT_BYTES: Final = 2 * MIB
"""Maximum size of an event, which holds one slice. etcd stores at most 1.5 MiB per object."""
_MAX_NAMESPACE: Final = 63
_watches: Final[WeakValueDictionary[Hashable, EndpointSliceWatch]] = WeakValueDictionary()
"""The latest watch by service, port, zone and TLS settings. After a reload, a new watch continues
from the latest watch with the same key. A watch is added when it starts, so a rejected
configuration adds no watch."""


def make_watch(name: str, config: BackendConfig, limits: Limits) -> EndpointSliceWatch | None:
    """Return the watch of the backend ``name``, or None if it has no section ``kubernetes``."""
    settings = config.kubernetes
    if settings is None:
        return None
    (endpoint,) = compiled.endpoints(config)
    labels = endpoint.host.split(".")
    url = settings.api
    tls: ClientTls | None
    token_file: Path | None
    if url is None:
        api, token_file = _cluster_api(), _SERVICE_ACCOUNT / "token"
        authorities = _SERVICE_ACCOUNT / "ca.crt"
        tls = ClientTls(ca=authorities) if authorities.is_file() else None
    else:
        api, token_file = compiled.endpoint(url), settings.token_file
        tls = None if settings.ca is None else ClientTls(ca=settings.ca)
    namespace = settings.namespace or (labels[1] if len(labels) > 1 else _own_namespace())
    service = WatchedService(namespace, settings.service or labels[0], api, token_file)
    selection = settings.port, endpoint.port, settings.zone
    key = service, selection, tls
    limits = replace(limits, body=_MAX_LIST_BYTES, json=_MAX_EVENT_BYTES)

    def replace_latest(watch: EndpointSliceWatch) -> EndpointSliceWatch | None:
        previous = _watches.get(key)
        _watches[key] = watch
        return previous

    return EndpointSliceWatch(
        name,
        service,
        EndpointSlices(*selection),
        LineUpstream(limits, tls),
        replace_latest=replace_latest,
    )


def _cluster_api() -> Endpoint:
    """Return the API server's address from the environment that the kubelet sets, or else its name
    in the cluster's DNS."""
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
    port = os.environ.get("KUBERNETES_SERVICE_PORT_HTTPS", "")
    return Endpoint(host or _API_HOST, int(port) if port.isdecimal() else 443, tls=True)


def _own_namespace() -> str:
    try:
        with (_SERVICE_ACCOUNT / "namespace").open(encoding="ascii") as file:
            return file.read(_MAX_NAMESPACE).strip() or "default"
    except (OSError, UnicodeError):
        return "default"
