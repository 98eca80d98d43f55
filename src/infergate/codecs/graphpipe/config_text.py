"""The free text ``config`` of an inference ⇄ its request parameters.

*Rule 1.* To a GraphPipe server a config goes unchanged, whatever it holds.
*Rule 2.* Elsewhere a JSON object is the parameters. Any other text that is not empty is one
parameter, ``graphpipe_config``. On the way back that one alone is the text again, unless it would
then read as a JSON object; no parameters are the empty text; all others are written as a JSON
object. So parameters come back as they were, and so does a config but for the spelling of its JSON.
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
LONGEST: Final = 64 * 1024
"""Bytes of a config: it is read while nothing else is."""
DEEPEST: Final = 100
"""Levels of nesting, as in V2 REST."""
_INTEGERS: Final = range(-(2**63), 2**64)
"""What the other protocols and their readers can tell."""
_LONGEST_INTEGER: Final = 20
"""Characters of one of those: more are not read, which takes longer than in proportion."""


def read_config(config: memoryview) -> Parameters:
    """The parameters that ``config`` tells. Other protocols refuse, as BAD_REQUEST, what is not
    UTF-8 and JSON that they cannot tell; as TOO_LARGE, what is longer than :data:`LONGEST`."""
    text = bytes(config)
    if not text:
        return {}
    try:
        return OpaqueParameters(_told(text), PROTOCOL, text)
    except GatewayError as error:
        return OpaqueParameters(NO_PARAMETERS, PROTOCOL, text, (error.kind, error.public))


def _told(config: bytes) -> Parameters:
    if len(config) > LONGEST:
        raise GatewayError(
            Kind.TOO_LARGE, f"config has {len(config)} bytes, the limit is {LONGEST}"
        )
    try:
        text = config.decode()
    except UnicodeError:
        raise bad_request("config is not UTF-8") from None
    return _parameters(text)


def write_config(parameters: Parameters) -> bytes:
    """Raises BAD_REQUEST for what JSON cannot tell, TOO_LARGE."""
    if isinstance(parameters, OpaqueParameters):
        return parameters.text
    if not parameters:
        return b""
    try:
        text = _alone(parameters)
        if text is None:
            text = json.dumps(dict(parameters), ensure_ascii=False, allow_nan=False)
        config = text.encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise bad_request(f"the parameters cannot be told as JSON: {error}") from None
    if len(config) > LONGEST:
        raise GatewayError(
            Kind.TOO_LARGE,
            f"the parameters take {len(config)} bytes of config, the limit is {LONGEST}",
        )
    return config


def _alone(parameters: Parameters) -> str | None:
    """The text that reads as ``parameters``, if they are one alone; None where there is none."""
    text = parameters.get(PARAMETER)
    if not isinstance(text, str):
        return None
    try:
        return text if _parameters(text) == parameters else None
    except GatewayError:
        return None


def _parameters(text: str) -> Parameters:
    if not text:
        return {}
    try:
        told = json.loads(
            text,
            object_pairs_hook=_members,
            parse_int=_integer,
            parse_float=_float,
            parse_constant=_constant,
        )
    except ValueError:
        return {PARAMETER: text}
    except RecursionError:
        raise _too_deep() from None
    if not isinstance(told, dict):
        return {PARAMETER: text}
    _check_depth(told)
    _check_text(told)
    return told


def _members(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise bad_request("config is a JSON object with one name twice")
    return members


def _integer(digits: str) -> int:
    if len(digits) > _LONGEST_INTEGER or (number := int(digits)) not in _INTEGERS:
        raise bad_request(f"config has the number {digits[:40]}, which is beyond 64 bits")
    return number


def _float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise bad_request(f"config has the number {digits[:40]}, which is beyond 64 bits")
    return number


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _check_depth(told: Any) -> None:
    level = [told]
    for _ in range(DEEPEST):
        level = [
            inner
            for each in level
            for inner in (each.values() if isinstance(each, dict) else each)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise _too_deep()


def _check_text(told: dict[str, Any]) -> None:
    """An escape can tell half a character, which UTF-8 and so the other protocols cannot."""
    try:
        json.dumps(told, ensure_ascii=False).encode()
    except UnicodeError:
        raise bad_request("config has a lone surrogate, which is not Unicode text") from None


def _too_deep() -> GatewayError:
    return bad_request(f"config is nested deeper than {DEEPEST} levels")
