"""Assertions about the errors of the gateway."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from infergate.core.errors import GatewayError, Kind


@contextmanager
def raises_kind(
    kind: Kind, match: str | None = None
) -> Iterator[pytest.ExceptionInfo[GatewayError]]:
    """Expect a GatewayError of ``kind`` whose text matches ``match``."""
    with pytest.raises(GatewayError, match=match) as caught:
        yield caught
    assert caught.value.kind is kind


def refused(function: Callable[..., object], *arguments: object) -> GatewayError:
    """Return the GatewayError that ``function`` must raise."""
    with pytest.raises(GatewayError) as caught:
        function(*arguments)
    return caught.value


def error_of(function: Callable[..., object], *arguments: object) -> GatewayError | None:
    """Return the GatewayError that ``function`` raises, or None. Any other error fails the test."""
    try:
        function(*arguments)
    except GatewayError as error:
        return error
    return None
