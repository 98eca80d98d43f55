"""Converts between canonical settings and the messages with trace or log settings."""

from __future__ import annotations

from typing import Any

from infergate.codecs.v2_grpc.parameters import read_parameters
from infergate.core.errors import bad_request
from infergate.core.tensor import Parameters


def read_trace_settings(message: Any) -> Parameters:
    """Return the settings in a TraceSettingRequest or TraceSettingResponse."""
    return {name: list(message.settings[name].value) for name in sorted(message.settings)}


def write_trace_settings(message: Any, settings: Parameters) -> Any:
    """Fill `message` and return it. Raises BAD_REQUEST for values that are not lists of strings."""
    for name, values in settings.items():
        if not (isinstance(values, list) and all(isinstance(value, str) for value in values)):
            raise bad_request(f"trace setting '{name}' is not a list of strings")
        message.settings[name].value.extend(values)
    return message


def read_log_settings(message: Any) -> Parameters:
    """Return the settings in a LogSettingsRequest or LogSettingsResponse."""
    return dict(sorted(read_parameters(message.settings).items()))


def write_log_settings(message: Any, settings: Parameters) -> Any:
    """Fill `message` and return it. Raises BAD_REQUEST for values of unsupported types."""
    for name, value in settings.items():
        match value:
            case bool():
                message.settings[name].bool_param = value
            case int() if 0 <= value < 2**32:
                message.settings[name].uint32_param = value
            case str():
                message.settings[name].string_param = value
            case _:
                raise bad_request(
                    f"log setting '{name}' is not a boolean, unsigned 32-bit integer or string"
                )
    return message
