"""The priorities of requests in queues: 1 is the highest, as in Triton."""

from __future__ import annotations

from typing import Final

from infergate.core.decimals import parse_decimal
from infergate.core.tensor import Parameters

HIGHEST_PRIORITY: Final = 1
DEFAULT_PRIORITY: Final = 5
LOWEST_PRIORITY: Final = 9
PRIORITIES: Final = range(HIGHEST_PRIORITY, LOWEST_PRIORITY + 1)
PRIORITY_PARAMETER: Final = "priority"
"""Triton's request parameter for the priority. 0 means the default priority."""
PRIORITY_HEADER: Final = "infergate-priority"
"""The default name of the header with the priority of an inference."""
_MAX_NUMBER: Final = 10**20 - 1


def requested_priority(parameters: Parameters) -> int:
    """Return the priority in the ``parameters`` of an inference, or 0 if it is missing or
    invalid."""
    value = parameters.get(PRIORITY_PARAMETER, 0)
    return min(value, LOWEST_PRIORITY) if type(value) is int and value > 0 else 0


def parse_priority(text: str) -> int:
    """Return the priority in a header, or 0 if ``text`` is not a positive number."""
    return min(parse_decimal(text, _MAX_NUMBER) or 0, LOWEST_PRIORITY)
