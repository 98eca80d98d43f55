from contextlib import suppress
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from transport_kit import FakeClient

from gateway_errors import raises_kind
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import MIB, Limits
from infergate.core.memory import MIN_ACCOUNTED_BYTES, OPTIONAL_BYTES
from infergate.transport.server import admission as admission_module
from infergate.transport.server.admission import (
    MAX_STREAMS,
    Admission,
    IncomingBody,
    OptionalAccount,
    RequestAccount,
    UnsentResponse,
)


def test_requests_are_limited_and_counted() -> None:
    admission = Admission(Limits(in_flight=2))
    account = RequestAccount(admission)
    account.admit(10)
    admission.admit(5)
    with pytest.raises(GatewayError) as caught:
        admission.admit(0)
    assert (caught.value.kind, caught.value.retry_after) == (Kind.OVERLOADED, 1.0)
    assert (admission.requests, admission.bytes) == (2, 15)
    account.release()
    admission.admit(1)
    assert (admission.requests, admission.bytes) == (2, 6)


def test_bytes_are_limited_exactly() -> None:
    admission = Admission(Limits(in_flight_bytes=100))
    admission.admit(99)
    admission.grow(1)
    with pytest.raises(GatewayError):
        admission.grow(1)
    with pytest.raises(GatewayError):
        admission.admit(1)
    admission.admit(0)
    assert (admission.requests, admission.bytes) == (2, 100)


def test_streams_have_their_own_limit() -> None:
    admission = Admission(Limits(in_flight=0))
    for _ in range(MAX_STREAMS):
        admission.admit_stream()
    with raises_kind(Kind.OVERLOADED, match=f"{MAX_STREAMS} streams"):
        admission.admit_stream()
    admission.release_stream()
    admission.admit_stream()
    assert (admission.streams, admission.requests) == (MAX_STREAMS, 0)


def test_a_single_request_may_always_grow() -> None:
    admission = Admission(Limits(in_flight_bytes=1000))
    first, second = RequestAccount(admission), RequestAccount(admission)
    first.admit(900)
    first.grow(10_000)
    with pytest.raises(GatewayError, match="1000 bytes in memory") as caught:
        second.admit(1)
    assert (caught.value.limit, admission.bytes) == ("in_flight_bytes", 10_900)
    first.shrink(10_000)
    second.admit(100)
    with pytest.raises(GatewayError):
        first.grow(1)
    first.release()
    second.grow(5000)
    second.release()
    assert (admission.bytes, admission.requests) == (0, 0)


def test_a_reserve_is_left_for_short_requests() -> None:
    admission = Admission(Limits(in_flight_bytes=16 * MIB))
    admission.admit(15 * MIB - 1)
    with pytest.raises(GatewayError):
        admission.admit(MIN_ACCOUNTED_BYTES + 1)
    for _ in range(MIB // MIN_ACCOUNTED_BYTES):
        admission.admit(MIN_ACCOUNTED_BYTES)


def test_detached_memory_outlasts_its_request() -> None:
    admission = Admission(Limits(in_flight_bytes=1000))
    account = RequestAccount(admission)
    account.admit(100)
    account.grow(200)
    detached = account.detach(150)
    account.release()
    assert admission.bytes == 150
    detached.grow(50)
    detached.close()
    detached.close()
    assert admission.bytes == 0
    account.grow(10)
    assert admission.bytes == 0, "the request has ended"
    account.detach(10).close()
    assert admission.bytes == 0


def test_optional_work_never_holds_more_than_a_quarter() -> None:
    admission = Admission(Limits(in_flight_bytes=1000))
    account = RequestAccount(admission)
    account.admit(0)
    first = account.detach_optional(100)
    second = account.detach_optional(100)
    with raises_kind(Kind.OVERLOADED, match="125 bytes of earlier optional work") as caught:
        account.detach_optional(0)
    assert caught.value.limit == OPTIONAL_BYTES
    first.grow(50)  # started work may grow
    for grow in (first.grow, first.detach(20).grow):
        with raises_kind(Kind.OVERLOADED, match="250 bytes of optional work"):
            grow(1)
    assert (admission.optional_bytes, admission.bytes) == (250, 250)
    first.shrink(130)
    second.close()
    second.close()
    assert (admission.optional_bytes, admission.bytes) == (20, 20)
    with pytest.raises(GatewayError):
        account.detach_optional(231)
    account.detach_optional(230)  # a single piece may fill the whole quarter
    other = RequestAccount(admission)
    other.admit(750)


def test_optional_work_does_not_limit_the_only_request() -> None:
    admission = Admission(Limits(in_flight_bytes=1000))
    account = RequestAccount(admission)
    account.admit(100)
    optional = account.detach_optional(200)
    account.grow(5000)
    with pytest.raises(GatewayError):  # the entire budget is in use
        optional.grow(1)
    account.release()
    assert (admission.optional_bytes, admission.bytes) == (200, 200)
    optional.close()
    account.detach_optional(10).close()
    assert (admission.optional_bytes, admission.bytes) == (0, 0)


@pytest.mark.parametrize(
    ("age", "percent_read", "is_disconnected"),
    [(0.5, 0, False), (1.5, 0, True), (3.0, 0, True), (3.0, 9, True), (3.0, 11, False)],
)
def test_slow_readers_are_disconnected_if_memory_is_short(
    monkeypatch: pytest.MonkeyPatch, age: float, percent_read: int, is_disconnected: bool
) -> None:
    """A client is slow if it would not read its response within ``idle_body_time``."""
    admission = Admission(Limits(in_flight_bytes=10 * MIB, idle_body_time=27.0))
    client, unsent = FakeClient(), UnsentResponse(admission)
    now = 100.0
    monkeypatch.setattr(admission_module.time, "monotonic", lambda: now + age)
    unsent.start(10 * MIB, now, client)
    client.unread = 10 * MIB * (100 - percent_read) // 100
    for _ in range(2):
        with pytest.raises(GatewayError):
            admission.grow(1)
    assert client.disconnects == is_disconnected, "readers are checked every half second"
    unsent.finish()
    assert (admission.bytes, len(admission.transfers)) == (0, 0)


def test_the_largest_transfers_are_disconnected_until_a_quarter_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admission = Admission(Limits(in_flight_bytes=16 * MIB))
    monkeypatch.setattr(admission_module.time, "monotonic", lambda: 10.0)
    clients = [FakeClient() for _ in range(4)]
    for client, size in zip(clients, (1, 9, 2, 4), strict=True):
        client.unread = size * MIB
        UnsentResponse(admission).start(size * MIB, 0.0, client)
    with pytest.raises(GatewayError):
        admission.grow(1)
    assert [client.disconnects for client in clients] == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("length", "checks", "is_rejected"),
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
def test_slow_senders_are_rejected_if_memory_is_short(
    monkeypatch: pytest.MonkeyPatch,
    length: int,
    checks: list[tuple[float, float]],
    *,
    is_rejected: bool,
) -> None:
    """``checks`` lists ages of the body in seconds with the MiB received by then. The body has
    ``length`` MiB, or an unknown length if ``length`` is 0."""
    admission = Admission(Limits(in_flight_bytes=10 * MIB, idle_body_time=27.0))
    client, body = FakeClient(), IncomingBody(admission)
    account = RequestAccount(admission)
    account.admit(0)
    account.grow(10 * MIB)
    received = 0
    body.update(10 * MIB, 10 * MIB if length else 0, 100.0, client)
    for age, size in checks:
        now = 100.0 + age
        if int(size * MIB) != received:
            received = int(size * MIB)
            body.update(
                length * MIB or received, length * MIB - received if length else 0, now, client
            )
        assert not client.disconnects
        monkeypatch.setattr(admission_module.time, "monotonic", lambda now=now: now)
        with pytest.raises(GatewayError):
            admission.grow(1)
    assert client.disconnects == is_rejected
    assert admission.bytes == 10 * MIB, "the bytes are counted once, by the request's account"
    body.finish()
    body.finish()
    body.abort()
    assert (client.disconnects, body.is_slow(1e9, 1.0)) == (is_rejected, False)
    assert not admission.transfers


class Accounts(RuleBasedStateMachine):
    """The total is always the sum of the accounts, and 0 at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.admission = Admission(Limits(in_flight=8, in_flight_bytes=1000))
        self.sizes: dict[RequestAccount | UnsentResponse, int] = {}
        self.requests: set[RequestAccount] = set()

    def _pick(self, data: st.DataObject, kind: type = RequestAccount) -> Any:
        return data.draw(st.sampled_from([each for each in self.sizes if isinstance(each, kind)]))

    @rule(size=st.integers(0, 600))
    def admit(self, size: int) -> None:
        account = RequestAccount(self.admission)
        with suppress(GatewayError):
            account.admit(size)
            self.sizes[account] = size
            self.requests.add(account)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), size=st.integers(0, 600))
    def grow(self, data: st.DataObject, size: int) -> None:
        account = self._pick(data)
        optional = self.admission.optional_bytes
        is_alone = self.sizes[account] == self.admission.bytes - optional
        try:
            account.grow(size)
        except GatewayError:
            if not isinstance(account, OptionalAccount) or optional + size <= 250:
                assert not is_alone or isinstance(account, OptionalAccount)
                assert self.admission.bytes + size > 1000
        else:
            self.sizes[account] += size

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), part=st.floats(0, 1))
    def shrink_or_detach(self, data: st.DataObject, part: float) -> None:
        account = self._pick(data)
        size = int(self.sizes[account] * part)
        self.sizes[account] -= size
        if data.draw(st.booleans()):
            account.shrink(size)
        else:
            self.sizes[account.detach(size)] = size

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), size=st.integers(0, 260))
    def detach_optional(self, data: st.DataObject, size: int) -> None:
        with suppress(GatewayError):
            self.sizes[self._pick(data).detach_optional(size)] = size

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), unread=st.integers(0, 500))
    def end(self, data: st.DataObject, unread: int) -> None:
        """Release a request twice, or close a detached account. A response may be unread."""
        account = self._pick(data)
        if account in self.requests:
            self.requests.discard(account)
            account.release()
            account.release()
            account.grow(1)
        else:
            account.close()
        del self.sizes[account]
        if unread:
            unsent = UnsentResponse(self.admission)
            unsent.start(unread, 0.0, FakeClient())
            self.sizes[unsent] = unread

    @precondition(lambda self: any(isinstance(each, UnsentResponse) for each in self.sizes))
    @rule(data=st.data())
    def finish_reading(self, data: st.DataObject) -> None:
        unsent = self._pick(data, UnsentResponse)
        unsent.set_remaining(0, 1.0)
        unsent.finish()
        unsent.finish()
        del self.sizes[unsent]

    @invariant()
    def totals_are_correct(self) -> None:
        assert self.admission.bytes == sum(self.sizes.values())
        assert self.admission.optional_bytes <= 250
        assert self.admission.optional_bytes == sum(
            size for each, size in self.sizes.items() if isinstance(each, OptionalAccount)
        )
        assert self.admission.requests == len(self.requests)
        unsent = {each for each in self.sizes if isinstance(each, UnsentResponse)}
        assert set(self.admission.transfers) == unsent

    def teardown(self) -> None:
        for each in tuple(self.sizes):
            if isinstance(each, UnsentResponse):
                each.finish()
            elif each in self.requests:
                each.release()
            else:
                each.close()
        assert (self.admission.bytes, self.admission.requests) == (0, 0)
        assert self.admission.optional_bytes == 0
        assert not self.admission.transfers


TestAccounts = Accounts.TestCase
