"""Converts between the free text ``config`` of an inference and the request parameters.

*Rule 1.* A config is sent to a GraphPipe server unchanged.

*Rule 2.* For other protocols, an empty config becomes no parameters, and a config that is a JSON
object becomes the parameters. Any other text becomes the single parameter ``graphpipe_config``.

*Rule 3.* In the other direction, a request without parameters has an empty config. If the only
parameter is ``graphpipe_config`` and its text is not a JSON object, the config is this text. Any
other parameters become a JSON object.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, Final

from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.tensor import NO_PARAMETERS, OpaqueParameters, Parameters

PROTOCOL: Final = "graphpipe"
PARAMETER: Final = "graphpipe_config"
MAX_CONFIG_BYTES: Final = 64 * 1024
"""Maximum size of a config in bytes. The limit is low, because the event loop parses configs."""
MAX_DEPTH: Final = 100
"""Maximum nesting depth, as in V2 REST."""
_INTEGERS: Final = range(-(2**63), 2**64)
"""The integers that the other protocols can express."""
_MAX_INTEGER_CHARACTERS: Final = 20
"""Maximum number of characters of an integer in ``_INTEGERS``. Longer integers parse slowly."""


def read_config(config: memoryview) -> Parameters:
    """Return the parameters in ``config``.

    Codecs of other protocols reject a config that is not UTF-8 or has values that they cannot
    express (BAD_REQUEST), and a config of more than :data:`MAX_CONFIG_BYTES` (TOO_LARGE).
    """
    text = bytes(config)
    if not text:
        return {}
    try:
        return OpaqueParameters(_decode_config(text), (PROTOCOL,), text)
    except GatewayError as error:
        return OpaqueParameters(NO_PARAMETERS, (PROTOCOL,), text, (error.kind, error.public))


def _decode_config(config: bytes) -> Parameters:
    if len(config) > MAX_CONFIG_BYTES:
        raise GatewayError(
            Kind.TOO_LARGE, f"config has {len(config)} bytes; the limit is {MAX_CONFIG_BYTES}"
        )
    try:
        text = config.decode()
    except UnicodeError:
        raise bad_request("config is not UTF-8") from None
    return _parse_parameters(text)


def write_config(parameters: Parameters) -> bytes:
    """Return ``parameters`` as a config. Raises TOO_LARGE, or BAD_REQUEST if JSON cannot express
    them."""
    if isinstance(parameters, OpaqueParameters):
        return parameters.text
    if not parameters:
        return b""
    try:
        text = _plain_text(parameters)
        if text is None:
            text = json.dumps(dict(parameters), ensure_ascii=False, allow_nan=False)
        config = text.encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise bad_request(f"the parameters cannot be expressed in JSON: {error}") from None
    if len(config) > MAX_CONFIG_BYTES:
        raise GatewayError(
            Kind.TOO_LARGE,
            f"the parameters take {len(config)} bytes of config; the limit is {MAX_CONFIG_BYTES}",
        )
    return config


def _plain_text(parameters: Parameters) -> str | None:
    """Return the plain text that parses as ``parameters``, or None if there is no such text."""
    text = parameters.get(PARAMETER)
    if not isinstance(text, str):
        return None
    try:
        return text if _parse_parameters(text) == parameters else None
    except GatewayError:
        return None


def _parse_parameters(text: str) -> Parameters:
    if not text:
        return {}
    try:
        parameters = json.loads(
            text,
            object_pairs_hook=_parse_object,
            parse_int=_parse_integer,
            parse_float=_parse_float,
            parse_constant=_reject_constant,
        )
    except ValueError:
        return {PARAMETER: text}
    except RecursionError:
        raise _too_deep() from None
    if not isinstance(parameters, dict):
        return {PARAMETER: text}
    _check_depth(parameters)
    _check_text(parameters)
    return parameters


def _parse_object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise bad_request("config is a JSON object with a duplicate name")
    return members


def _parse_integer(digits: str) -> int:
    if len(digits) > _MAX_INTEGER_CHARACTERS or (number := int(digits)) not in _INTEGERS:
        raise bad_request(f"config has the number {digits[:40]}, which exceeds 64 bits")
    return number


def _parse_float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise bad_request(f"config has the number {digits[:40]}, which exceeds the range of FP64")
    return number


def _reject_constant(literal: str) -> Any:
    raise ValueError(f"{literal} is not JSON")


def _check_depth(parameters: Any) -> None:
    level = [parameters]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for container in level
            for child in (container.values() if isinstance(container, dict) else container)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise _too_deep()


def _check_text(parameters: dict[str, Any]) -> None:
    """Reject an escaped lone surrogate, which UTF-8 cannot express."""
    try:
        json.dumps(parameters, ensure_ascii=False).encode()
    except UnicodeError:
        raise bad_request("config has a lone surrogate, which is not Unicode text") from None


def _too_deep() -> GatewayError:
    return bad_request(f"config is nested deeper than {MAX_DEPTH} levels")
