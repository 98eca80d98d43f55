from __future__ import annotations

import pytest

from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import Limits
from infergate.transport.guard import MOST_STREAMS, Admission


def test_requests_are_bounded_and_counted() -> None:
    admission = Admission(Limits(in_flight=2))
    admission.admit(10)
    admission.admit(5)
    with pytest.raises(GatewayError) as caught:
        admission.admit(0)
    assert (caught.value.kind, caught.value.retry_after) == (Kind.OVERLOADED, 1.0)
    assert (admission.requests, admission.bytes) == (2, 15)
    admission.release(10)
    admission.admit(1)
    assert (admission.requests, admission.bytes) == (2, 6)


def test_bytes_are_bounded_to_the_last() -> None:
    admission = Admission(Limits(in_flight_bytes=100))
    admission.admit(99)
    admission.grow(1)
    with pytest.raises(GatewayError):
        admission.grow(1)
    with pytest.raises(GatewayError):
        admission.admit(1)
    admission.admit(0)
    assert (admission.requests, admission.bytes) == (2, 100)


def test_streams_are_bounded_apart_from_requests() -> None:
    admission = Admission(Limits(in_flight=0))
    for _ in range(MOST_STREAMS):
        admission.admit_stream()
    with pytest.raises(GatewayError, match=f"{MOST_STREAMS} streams") as caught:
        admission.admit_stream()
    assert caught.value.kind is Kind.OVERLOADED
    admission.release_stream()
    admission.admit_stream()
    assert (admission.streams, admission.requests) == (MOST_STREAMS, 0)
