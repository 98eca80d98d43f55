"""The input of ``check``: an outline of the readable parts of a configuration. With the outline, a
misspelt key does not hide the other errors in a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from infergate.config.access import AccessConfig
from infergate.config.listeners import (
    FRONTEND_LISTENERS,
    AdditionalListener,
    GraphPipeListener,
    HttpListener,
    Listeners,
)
from infergate.config.mistakes import KeyPath
from infergate.config.models import DeclaredModelConfig
from infergate.config.plugins import HookConfig
from infergate.config.recording import RecordingConfig
from infergate.config.routes import RouteConfig
from infergate.config.schema import BackendConfig
from infergate.config.section import Section
from infergate.config.tensorflow_serving import TensorFlowServingConfig
from infergate.transport.base import Address

AnySection = TypeVar("AnySection", bound=Section)
_ESSENTIAL: Final = frozenset({"address", "version"})
"""Keys without which a section is unusable, because their defaults would be misleading."""
_LISTENERS: Final = {
    name: type(field.default)
    for name, field in Listeners.model_fields.items()
    if isinstance(field.default, Section)
}


@dataclass(frozen=True, slots=True)
class Outline:
    """The readable entries of a configuration, keyed as in the file."""

    listeners: Mapping[KeyPath, Address]
    """The addresses of readable, enabled listeners, keyed by their paths below ``listeners``."""
    listener_models: Mapping[KeyPath, str]
    """The models named by listeners, keyed by the path of each name."""
    backends: Mapping[str, BackendConfig | None] | None
    """Backends by name. An unreadable backend is None. The mapping itself is None if the file has
    no mapping of backends."""
    routes: Mapping[int, RouteConfig]
    models: Mapping[str, DeclaredModelConfig | None]
    has_frontend: bool
    """Whether a listener for inference requests, readable or not, is enabled."""
    has_all_routes: bool
    """Whether there are routes, and all of them are readable. An unreadable route may match models
    that no other route matches."""
    access: AccessConfig | None
    """The section ``access``, or None if it is missing or unreadable."""
    has_workers: bool
    """Whether there are several workers."""
    shares_memory: bool
    has_open_actions: bool
    """Whether console actions are enabled without a key."""
    tensorflow_serving: TensorFlowServingConfig | None
    """The section ``tensorflow_serving``. None if it is unreadable or, in an invalid
    configuration, missing."""
    allows_slash: bool
    """Whether model names may contain "/"."""
    has_recording: bool
    """Whether there is a section ``recording``."""
    recording_path: Path | None
    """``recording.path``, or None if it is missing or unreadable."""
    has_payload_log: bool
    """Whether there is a section ``payload_log``, readable or not."""
    hooks: Mapping[str, HookConfig | None]
    """Request hooks by name. An unreadable hook is None."""
    codec_options: Mapping[str, Mapping[str, Any]]
    """The options in ``listeners.codecs``, by protocol."""


def outline(data: Any) -> Outline:
    """Return the outline of ``data``, which is a Config or, if that is invalid, plain data."""
    top = _mapping(data)
    listener_data = _mapping(top.get("listeners"))
    per_model = _entries(listener_data.get("graphpipe"))
    additional = _mapping(listener_data.get("additional"))
    listeners: dict[KeyPath, Any] = {
        (name,): _readable(section, listener_data.get(name, {}))
        for name, section in _LISTENERS.items()
    }
    for index, entry in per_model.items():
        listeners["graphpipe", index] = _readable(GraphPipeListener, entry)
    for name, entry in additional.items():
        listeners["additional", name] = _readable(AdditionalListener, entry)
    by_path = {path: listener for path, listener in listeners.items() if listener is not None}
    admin = listeners["admin",]
    route_data = _entries(top.get("routes"))
    routes = {index: _readable(RouteConfig, entry) for index, entry in route_data.items()}
    backends = top.get("backends")
    recording = _readable(RecordingConfig, top.get("recording"))
    return Outline(
        listeners={path: listener.address for path, listener in by_path.items()},
        listener_models=_models(by_path),
        backends={name: _readable(BackendConfig, item) for name, item in backends.items()}
        if isinstance(backends, dict) and backends
        else None,
        routes={index: route for index, route in routes.items() if route is not None},
        models={
            name: _readable(DeclaredModelConfig, item)
            for name, item in _mapping(top.get("models")).items()
        },
        has_frontend=bool(per_model or additional)
        or not all(
            name in listener_data and listener_data[name] is None for name in FRONTEND_LISTENERS
        ),
        has_all_routes=bool(route_data) and None not in routes.values(),
        access=_validated(AccessConfig, top.get("access")),
        has_workers=top.get("workers", 1) != 1,
        shares_memory=_mapping(top.get("control")).get("shared_memory") is True,
        has_open_actions=admin is not None and admin.actions and not admin.keys,
        tensorflow_serving=_validated(TensorFlowServingConfig, top.get("tensorflow_serving")),
        allows_slash=top.get("allow_slash_in_model_names") is True,
        has_recording=top.get("recording") is not None,
        recording_path=recording.path if recording else None,
        has_payload_log=top.get("payload_log") is not None,
        hooks={
            name: _readable(HookConfig, entry) for name, entry in _mapping(top.get("hooks")).items()
        },
        codec_options={
            name: options
            for name, options in _mapping(listener_data.get("codecs")).items()
            if isinstance(options, dict)
        },
    )


def _models(listeners: Mapping[KeyPath, Any]) -> dict[KeyPath, str]:
    names: dict[KeyPath, str] = {}
    for path, listener in listeners.items():
        base: KeyPath = ("listeners", *path)
        if isinstance(listener, GraphPipeListener):
            names[*base, "model"] = listener.model
        elif isinstance(listener, HttpListener | AdditionalListener):
            models = listener.envelopes.models()
            names |= {(*base, "envelopes", *key): model for key, model in models}
    return names


def _entries(value: Any) -> dict[int, Any]:
    return dict(enumerate(value)) if isinstance(value, tuple) else {}


def _mapping(value: Any) -> dict[str, Any]:
    if isinstance(value, Section):
        return dict(value)
    return value if isinstance(value, dict) else {}


def _validated(section: type[AnySection], data: Any) -> AnySection | None:
    """Return ``data`` as a ``section``, or None if any part of it is invalid."""
    if isinstance(data, section):
        return data
    try:
        return section.model_validate(data)
    except ValidationError:
        return None


def _readable(section: type[AnySection], data: Any) -> AnySection | None:
    """Return ``data`` as a ``section``, without invalid keys. Return None if ``data`` is not a
    mapping, if an essential key is invalid, or if the other keys are not a valid section."""
    if isinstance(data, section):
        return data
    try:
        return section.model_validate(data)
    except ValidationError as error:
        invalid = {details["loc"][0] for details in error.errors() if details["loc"]}
    if not isinstance(data, dict) or invalid & _ESSENTIAL:
        return None
    return _validated(section, {k: v for k, v in data.items() if k not in invalid})
