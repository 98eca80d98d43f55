"""Trace and log settings ⇄ canonical settings."""

from __future__ import annotations

from typing import Any

from infergate.codecs.v2_grpc import messages as pb
from infergate.codecs.v2_grpc.parameters import read_parameters
from infergate.core.errors import bad_request
from infergate.core.messages import LogSettingsRequest, Settings, TraceSettingsRequest
from infergate.core.tensor import Parameters


def read_trace_request(message: Any) -> TraceSettingsRequest:
    """Read a TraceSettingRequest."""
    return TraceSettingsRequest(message.model_name, _read_lists(message.settings))


def write_trace_request(operation: TraceSettingsRequest) -> Any:
    """Build a TraceSettingRequest. Raises BAD_REQUEST for a value that is not a list of strings."""
    message = pb.TraceSettingRequest(model_name=operation.model)
    _write_lists(message.settings, operation.settings)
    return message


def read_trace(message: Any) -> Settings:
    """Read a TraceSettingResponse."""
    return Settings(_read_lists(message.settings))


def write_trace(response: Settings) -> Any:
    """Build a TraceSettingResponse."""
    message = pb.TraceSettingResponse()
    _write_lists(message.settings, response.values)
    return message


def _read_lists(settings: Any) -> Parameters:
    return {name: list(settings[name].value) for name in sorted(settings)}


def _write_lists(entries: Any, settings: Parameters) -> None:
    for name, values in settings.items():
        if not (isinstance(values, list) and all(isinstance(value, str) for value in values)):
            raise bad_request(f"trace setting '{name}' is not a list of strings")
        entries[name].value.extend(values)


def read_log_request(message: Any) -> LogSettingsRequest:
    """Read a LogSettingsRequest."""
    return LogSettingsRequest(_read_values(message.settings))


def write_log_request(operation: LogSettingsRequest) -> Any:
    """Build a LogSettingsRequest. Raises BAD_REQUEST for values of other types."""
    message = pb.LogSettingsRequest()
    _write_values(message.settings, operation.settings)
    return message


def read_log(message: Any) -> Settings:
    """Read a LogSettingsResponse."""
    return Settings(_read_values(message.settings))


def write_log(response: Settings) -> Any:
    """Build a LogSettingsResponse."""
    message = pb.LogSettingsResponse()
    _write_values(message.settings, response.values)
    return message


def _read_values(settings: Any) -> Parameters:
    return dict(sorted(read_parameters(settings).items()))


def _write_values(entries: Any, settings: Parameters) -> None:
    for name, value in settings.items():
        match value:
            case bool():
                entries[name].bool_param = value
            case int() if 0 <= value < 2**32:
                entries[name].uint32_param = value
            case str():
                entries[name].string_param = value
            case _:
                raise bad_request(
                    f"log setting '{name}' is not a boolean, a 32-bit integer or a string"
                )
