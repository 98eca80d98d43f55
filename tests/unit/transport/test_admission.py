from contextlib import suppress
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway_errors import raises_kind
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import MIB, Limits
from infergate.core.memory import MIN_ACCOUNTED_BYTES
from infergate.transport.server import admission as admission_module
from infergate.transport.server.admission import (
    MAX_STREAMS,
    Admission,
    IncomingBody,
    RequestAccount,
    UnsentResponse,
)


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
    for _ in range(MAX_STREAMS):
        admission.admit_stream()
    with raises_kind(Kind.OVERLOADED, match=f"{MAX_STREAMS} streams"):
        admission.admit_stream()
    admission.release_stream()
    admission.admit_stream()
    assert (admission.streams, admission.requests) == (MAX_STREAMS, 0)


# ---- memory


class Client:
    """Implements ``admission_module.Client``."""

    def __init__(self) -> None:
        self.waiting = 0
        self.abort_with = 0

    def unread_bytes(self) -> int:
        return self.waiting

    def disconnect_soon(self) -> None:
        self.abort_with += 1

    reject_slow_body = disconnect_soon


def test_a_single_request_may_always_grow() -> None:
    admission = Admission(Limits(in_flight_bytes=1000))
    one, two = RequestAccount(admission), RequestAccount(admission)
    one.admit(900)
    one.grow(10_000)
    with pytest.raises(GatewayError, match="1000 bytes in memory") as caught:
        two.admit(1)
    assert (caught.value.limit, admission.bytes) == ("in_flight_bytes", 10_900)
    one.shrink(10_000)
    two.admit(100)
    with pytest.raises(GatewayError):
        one.grow(1)
    one.release()
    two.grow(5000)
    two.release()
    assert (admission.bytes, admission.requests) == (0, 0)


def test_short_requests_have_a_reserved_part() -> None:
    admission = Admission(Limits(in_flight_bytes=16 * MIB))
    admission.admit(15 * MIB - 1)
    with pytest.raises(GatewayError):
        admission.admit(MIN_ACCOUNTED_BYTES + 1)
    for _ in range(MIB // MIN_ACCOUNTED_BYTES):
        admission.admit(MIN_ACCOUNTED_BYTES)


def test_detached_memory_outlasts_its_request() -> None:
    admission = Admission(Limits(in_flight_bytes=1000))
    share = RequestAccount(admission)
    share.admit(100)
    share.grow(200)
    account = share.detach(150)
    share.release()
    assert admission.bytes == 150
    account.grow(50)
    account.close()
    account.close()
    assert admission.bytes == 0
    share.grow(10)
    assert admission.bytes == 0, "the request is over"
    share.detach(10).close()
    assert admission.bytes == 0


@pytest.mark.parametrize(
    ("age", "taken", "is_cut"),
    [(0.5, 0, False), (1.5, 0, True), (3.0, 0, True), (3.0, 9, True), (3.0, 11, False)],
)
def test_slow_clients_are_disconnected_if_memory_is_short(
    monkeypatch: pytest.MonkeyPatch, age: float, taken: int, is_cut: bool
) -> None:
    """``taken`` in hundredths: a body that would not finish within ``idle_body_time`` is slow."""
    admission = Admission(Limits(in_flight_bytes=10 * MIB, idle_body_time=27.0))
    client, unsent = Client(), UnsentResponse(admission)
    now = 100.0
    monkeypatch.setattr(admission_module.time, "monotonic", lambda: now + age)
    unsent.start(10 * MIB, now, client)
    client.waiting = 10 * MIB * (100 - taken) // 100
    for _ in range(2):
        with pytest.raises(GatewayError):
            admission.grow(1)
    assert client.abort_with == is_cut, "checked once in half a second"
    unsent.finish()
    assert (admission.bytes, len(admission.transfers)) == (0, 0)


def test_the_largest_are_disconnected_until_a_quarter_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admission = Admission(Limits(in_flight_bytes=16 * MIB))
    monkeypatch.setattr(admission_module.time, "monotonic", lambda: 10.0)
    clients = [Client() for _ in range(4)]
    for client, size in zip(clients, (1, 9, 2, 4), strict=True):
        client.waiting = size * MIB
        UnsentResponse(admission).start(size * MIB, 0.0, client)
    with pytest.raises(GatewayError):
        admission.grow(1)
    assert [client.abort_with for client in clients] == [0, 1, 0, 0]


Looks = list[tuple[float, float]]


@pytest.mark.parametrize(
    ("length", "looks", "is_cut"),
    [
        (10, [(1.9, 0)], False),
        (10, [(2.1, 0)], True),
        (10, [(3.0, 0.9)], True),
        (10, [(3.0, 1.1)], False),
        (10, [(1.0, 9.9), (60.0, 9.9)], True),
        (10, [(60.0, 9.99), (60.5, 9.99), (63.0, 9.9901)], True),
        (10, [(60.0, 7), (61.0, 7.01), (63.0, 8)], False),
        (0, [(5.0, 4)], False),
        (0, [(5.0, 4), (20.0, 10)], False),
        (0, [(1.0, 8), (5.0, 8.01), (8.0, 8.02)], True),
        (0, [(1.0, 8), (5.0, 8)], True),
    ],
)
def test_slow_senders_are_disconnected_if_memory_is_short(
    monkeypatch: pytest.MonkeyPatch, length: int, looks: Looks, *, is_cut: bool
) -> None:
    """MiB received at each check, of ``length`` or of a body without a length. A fast start does
    not excuse a slow end."""
    admission = Admission(Limits(in_flight_bytes=10 * MIB, idle_body_time=27.0))
    client, body = Client(), IncomingBody(admission)
    share = RequestAccount(admission)
    share.admit(0)
    share.grow(10 * MIB)
    came = 0
    body.update(10 * MIB, 10 * MIB if length else 0, 100.0, client)
    for age, outcome in looks:
        now = 100.0 + age
        if int(outcome * MIB) != came:
            came = int(outcome * MIB)
            body.update(length * MIB or came, length * MIB - came if length else 0, now, client)
        assert not client.abort_with
        monkeypatch.setattr(admission_module.time, "monotonic", lambda now=now: now)
        with pytest.raises(GatewayError):
            admission.grow(1)
    assert client.abort_with == is_cut
    assert admission.bytes == 10 * MIB, "the share counts it"
    body.finish()
    body.finish()
    body.abort()
    assert (client.abort_with, body.is_slow(1e9, 1.0)) == (is_cut, False)
    assert not admission.transfers


class Accounts(RuleBasedStateMachine):
    """In whatever order requests proceed, the total is the sum of what they hold, and 0 at the
    end."""

    def __init__(self) -> None:
        super().__init__()
        self.admission = Admission(Limits(in_flight=8, in_flight_bytes=1000))
        self.held: dict[RequestAccount | UnsentResponse, int] = {}
        self.requests: set[RequestAccount] = set()

    def _pick(self, data: st.DataObject, kind: type = RequestAccount) -> Any:
        return data.draw(st.sampled_from([each for each in self.held if isinstance(each, kind)]))

    @rule(size=st.integers(0, 600))
    def begins(self, size: int) -> None:
        share = RequestAccount(self.admission)
        with suppress(GatewayError):
            share.admit(size)
            self.held[share] = size
            self.requests.add(share)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), size=st.integers(0, 600))
    def grows(self, data: st.DataObject, size: int) -> None:
        share = self._pick(data)
        alone = self.held[share] == self.admission.bytes
        try:
            share.grow(size)
        except GatewayError:
            assert not alone
            assert self.admission.bytes + size > 1000
        else:
            self.held[share] += size

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), part=st.floats(0, 1))
    def shrinks_or_detaches(self, data: st.DataObject, part: float) -> None:
        share = self._pick(data)
        size = int(self.held[share] * part)
        self.held[share] -= size
        if data.draw(st.booleans()):
            share.shrink(size)
        else:
            self.held[share.detach(size)] = size

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), unread=st.integers(0, 500))
    def ends(self, data: st.DataObject, unread: int) -> None:
        """Answered, failed or cancelled: the request is released, perhaps twice; a reader may be
        slow."""
        share = self._pick(data)
        if share in self.requests:
            self.requests.discard(share)
            share.release()
            share.release()
            share.grow(1)
        else:
            share.close()
        del self.held[share]
        if unread:
            unsent = UnsentResponse(self.admission)
            unsent.start(unread, 0.0, Client())
            self.held[unsent] = unread

    @precondition(lambda self: any(isinstance(each, UnsentResponse) for each in self.held))
    @rule(data=st.data())
    def is_read(self, data: st.DataObject) -> None:
        unsent = self._pick(data, UnsentResponse)
        unsent.set_remaining(0, 1.0)
        unsent.finish()
        unsent.finish()
        del self.held[unsent]

    @invariant()
    def all_is_counted(self) -> None:
        assert self.admission.bytes == sum(self.held.values())
        assert self.admission.requests == len(self.requests)
        unsent = {each for each in self.held if isinstance(each, UnsentResponse)}
        assert set(self.admission.transfers) == unsent

    def teardown(self) -> None:
        for each in tuple(self.held):
            if isinstance(each, UnsentResponse):
                each.finish()
            elif each in self.requests:
                each.release()
            else:
                each.close()
        assert (self.admission.bytes, self.admission.requests) == (0, 0)
        assert not self.admission.transfers


TestAccounts = Accounts.TestCase
