"""The watch of a service's EndpointSlices, against a stand-in for the API server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from infergate.backends import endpoint_slices
from infergate.backends.endpoint_slice_watch import EndpointSliceWatch, WatchedService, WatchTimes
from infergate.backends.endpoint_slices import EndpointSlices
from infergate.core.limits import Limits
from infergate.transport.base import Endpoint
from infergate.transport.http1.line_stream import LineUpstream
from kubernetes_api import ApiServer, endpoint, endpoint_slice, ready_slice
from waiting import until

QUICK = WatchTimes(min_delay=0.005, max_delay=0.02, merge=0.0, request=5.0)
LIMITS = Limits(body=20_000, json=10_000, connect_time=2.0)


class WatchReports:
    """Everything that a watch has reported."""

    def __init__(self, watch: EndpointSliceWatch) -> None:
        self.watch = watch
        self.changes: list[list[str]] = []
        self.states: list[bool] = []

    def on_change(self, addresses: Sequence[tuple[str, int]]) -> None:
        self.changes.append([host.removeprefix("10.0.0.") for host, _ in addresses])

    async def wait_for_addresses(self, *hosts: str) -> None:
        await until(lambda: bool(self.changes) and self.changes[-1] == list(hosts))

    async def wait_for_failure(self) -> None:
        await until(lambda: bool(self.states) and not self.states[-1])

    async def wait_until_current(self) -> None:
        await until(lambda: bool(self.states) and self.states[-1])


@asynccontextmanager
async def watching(
    api: ApiServer,
    times: WatchTimes = QUICK,
    token_file: Path | None = None,
    port: str | None = None,
) -> AsyncIterator[WatchReports]:
    server = Endpoint("127.0.0.1", api.port)
    service = WatchedService("models", "triton", server, token_file)
    slices = EndpointSlices(port, 8001)
    watch = EndpointSliceWatch("b", service, slices, LineUpstream(LIMITS), times)
    reports = WatchReports(watch)
    task = asyncio.create_task(watch.run(reports.on_change, reports.states.append))
    try:
        yield reports
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled(), "the watch runs until it is cancelled"


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with ApiServer().running() as server:
        server.put(ready_slice("a", "10.0.0.1", "10.0.0.2"))
        yield server


async def test_changes_arrive_without_another_request(api: ApiServer) -> None:
    async with watching(api) as reports:
        await reports.wait_for_addresses("1", "2")
        assert reports.watch.has_listed
        assert set(reports.states) == {True}  # reported by the list, and perhaps also by the watch
        await until(lambda: api.watch_count == 1)
        api.put(ready_slice("b", "10.0.0.3"))
        await reports.wait_for_addresses("1", "2", "3")
        api.put(ready_slice("a", "10.0.0.2"))
        await reports.wait_for_addresses("2", "3")
        api.delete("b")
        await reports.wait_for_addresses("2")
        api.delete("a")
        await reports.wait_for_addresses()
    assert (api.list_count, api.watch_count) == (1, 1)


async def test_the_watch_of_a_new_configuration_continues_the_previous_one(api: ApiServer) -> None:
    async with watching(api) as reports:
        await reports.wait_for_addresses("1", "2")
        server = WatchedService("models", "triton", Endpoint("127.0.0.1", api.port))
        next_watch = EndpointSliceWatch(
            "b", server, EndpointSlices(None, 8001), LineUpstream(LIMITS), QUICK,
            replace_latest=lambda _: reports.watch,
        )  # fmt: skip
        api.put(ready_slice("b", "10.0.0.3"))
        await reports.wait_for_addresses("1", "2", "3")
    assert next_watch.known_addresses() == [(f"10.0.0.{host}", 8001) for host in (1, 2, 3)]
    assert next_watch.known_addresses() is None
    later = WatchReports(next_watch)
    task = asyncio.create_task(next_watch.run(later.on_change, later.states.append))
    api.put(ready_slice("b", "10.0.0.4"))
    await later.wait_for_addresses("1", "2", "4")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert api.list_count == 1


async def test_a_watch_that_has_not_listed_passes_on_no_addresses(api: ApiServer) -> None:
    api.responses = [(503, b"{}")]
    async with watching(api) as reports:
        await reports.wait_for_failure()
    server = WatchedService("models", "triton", Endpoint("127.0.0.1", api.port))
    slices = EndpointSlices(None, 8001)
    next_watch = EndpointSliceWatch(
        "b", server, slices, LineUpstream(LIMITS), replace_latest=lambda _: reports.watch
    )
    assert next_watch.known_addresses() is None


async def test_all_pages_of_a_list_are_read(api: ApiServer) -> None:
    for number in range(3, 40):
        api.put(ready_slice(f"s{number:02}", f"10.0.0.{number}"))
    async with watching(api) as reports:
        await until(lambda: bool(reports.changes))
        assert len(reports.changes[0]) == 39, "incomplete lists are not used"
    assert sum("continue" in query for query in api.requests) == 3


async def test_events_may_arrive_in_small_pieces(api: ApiServer) -> None:
    api.piece_bytes = 7
    async with watching(api) as reports:
        await reports.wait_for_addresses("1", "2")
        api.put(ready_slice("b", "10.0.0.3"))
        api.send_raw(b"\n\n")
        api.put(ready_slice("c", "10.0.0.4"))
        await reports.wait_for_addresses("1", "2", "3", "4")


async def test_changes_that_arrive_together_are_published_together(api: ApiServer) -> None:
    async with watching(api, WatchTimes(merge=0.1)) as reports:
        await reports.wait_for_addresses("1", "2")
        await until(lambda: api.watch_count == 1)
        for number in range(3, 10):
            api.put(ready_slice(f"s{number}", f"10.0.0.{number}"))
        await reports.wait_for_addresses(*map(str, range(1, 10)))
    assert len(reports.changes) < 7


async def test_a_broken_watch_continues_from_the_last_version(api: ApiServer) -> None:
    async with watching(api) as reports:
        await reports.wait_for_addresses("1", "2")
        await until(lambda: api.watch_count == 1)
        api.put(ready_slice("b", "10.0.0.3"))
        await reports.wait_for_addresses("1", "2", "3")
        api.break_connections()
        api.put(ready_slice("b", "10.0.0.4"))
        await reports.wait_for_addresses("1", "2", "4")
        await reports.wait_until_current()
    assert api.list_count == 1
    assert False in reports.states


async def test_a_watch_that_the_server_ends_is_renewed_without_a_failure(
    api: ApiServer,
) -> None:
    async with watching(api, WatchTimes(watch=0.0, min_delay=0.001, merge=0.0)) as reports:
        await until(lambda: api.watch_count == 2)
        api.put(ready_slice("b", "10.0.0.3"))
        await reports.wait_for_addresses("1", "2", "3")
    assert api.list_count == 1
    assert all(reports.states)


async def test_an_expired_version_causes_another_list(api: ApiServer) -> None:
    async with watching(api) as reports:
        await reports.wait_for_addresses("1", "2")
        await until(lambda: api.watch_count == 1)
        api.delete("a")
        api.put(ready_slice("b", "10.0.0.3"))
        await reports.wait_for_addresses("3")
        api.slices["b"] = ready_slice("b", "10.0.0.5")  # a change that no watch reports
        api.slices["b"]["metadata"]["resourceVersion"] = "1"
        api.forget()
        api.break_connections()
        await reports.wait_for_addresses("5")
    assert api.list_count == 2


async def test_an_expired_event_causes_another_list(api: ApiServer) -> None:
    async with watching(api) as reports:
        await until(lambda: api.watch_count == 1)
        api.send_error(410)
        await until(lambda: api.list_count == 2)
        await reports.wait_for_addresses("1", "2")
    assert all(reports.states)


async def test_bookmarks_keep_the_version_from_expiring(api: ApiServer) -> None:
    async with watching(api) as reports:
        await until(lambda: api.watch_count == 1)
        first = api.requests[-1]["resourceversion"]
        api.forget()
        api.bookmark()
        api.put(ready_slice("b", "10.0.0.3"))  # arrives after the bookmark
        await reports.wait_for_addresses("1", "2", "3")
        api.break_connections()
        await until(lambda: api.watch_count == 2)
        assert int(api.requests[-1]["resourceversion"]) > int(first)
        await reports.wait_until_current()
    assert api.list_count == 1


async def test_a_list_that_expires_between_its_pages_is_read_again(api: ApiServer) -> None:
    for number in range(3, 15):
        api.put(ready_slice(f"s{number:02}", f"10.0.0.{number}"))
    forget_once = [True]
    original = api._list

    def list_and_forget(query: dict[str, str], writer: asyncio.StreamWriter) -> None:
        original(query, writer)
        if forget_once and "continue" not in query:
            forget_once.clear()
            api.forget()

    api._list = list_and_forget  # type: ignore[method-assign,assignment]
    async with watching(api) as reports:
        await until(lambda: bool(reports.changes))
    assert len(reports.changes[0]) == 14
    assert reports.states[:2] == [False, True]


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
async def test_an_error_status_is_reported_once_and_the_attempt_repeated(
    api: ApiServer, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    body = b'{"kind": "Status", "message": "no quorum"}'
    api.responses = [(status, body)] * 3
    async with watching(api) as reports:
        await reports.wait_for_failure()
        assert not reports.watch.has_listed
        await reports.wait_for_addresses("1", "2")
    assert reports.states[:4] == [False, False, False, True]
    lines = [line.getMessage() for line in caplog.records if line.levelname == "WARNING"]
    assert len(lines) == 1
    assert (
        f"DNS is used instead: the API server responded with status {status}: no quorum"
        in (lines[0])
    )
    assert any("watching service models/triton" in line.getMessage() for line in caplog.records)


async def test_an_error_event_causes_another_list(api: ApiServer) -> None:
    async with watching(api) as reports:
        await until(lambda: api.watch_count == 1)
        api.send_error(500)
        await until(lambda: api.list_count == 2)
        await reports.wait_until_current()
    assert False in reports.states


@pytest.mark.parametrize(
    "garbage",
    [
        b"{\n",
        b"null\n",
        b"[1]\n",
        b'{"type": "ADDED"}\n',
        b'{"type": "ADDED", "object": {"metadata": {"name": "x"}}}\n',
        b'{"type": "ADDED", "object": {"metadata": {"resourceVersion": "500"}}}\n',
        b'{"type": [], "object": {"metadata": {"resourceVersion": "500"}}}\n',
        b'{"type": "ERROR", "object": {"code": [], "message": {}}}\n',
        b'{"type": "WHAT", "object": {"metadata": {"resourceVersion": "500"}}}\n',
        b'{"type": "ADDED", "object": ' + b'{"a":' * 1500 + b"\n",
        b"x" * 10_001 + b"\n",
        b"y" * 30_000,  # a line without an end
    ],
)
async def test_an_unusable_event_keeps_the_addresses(api: ApiServer, garbage: bytes) -> None:
    async with watching(api) as reports:
        await reports.wait_for_addresses("1", "2")
        await until(lambda: api.watch_count == 1)
        api.send_raw(garbage)
        await until(lambda: api.watch_count == 2)
        api.put(ready_slice("b", "10.0.0.3"))
        await reports.wait_for_addresses("1", "2", "3")
        assert all(change[:2] == ["1", "2"] for change in reports.changes)
    assert False in reports.states


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"items": [',  # truncated
        b"[]",
        b"{}",
        b'{"items": {}, "metadata": {"resourceVersion": "1"}}',
        b'{"items": [{}], "metadata": {"resourceVersion": "1"}}',
        b'{"items": [], "metadata": {}}',
        b'{"items": [], "metadata": {"continue": "%s"}}' % (b"x" * 9000),
        b" " * 20_001,
    ],
)
async def test_an_unusable_list_is_not_used(api: ApiServer, body: bytes) -> None:
    api.responses = [(200, body)]
    async with watching(api) as reports:
        await until(lambda: bool(reports.changes))
    assert reports.changes[0] == ["1", "2"]
    assert reports.states[0] is False


async def test_the_addresses_stay_while_the_server_is_unreachable(api: ApiServer) -> None:
    async with watching(api) as reports:
        await reports.wait_for_addresses("1", "2")
        await until(lambda: api.watch_count == 1)
        await api.stop()
        await until(lambda: reports.states[-3:] == [False] * 3)
        assert reports.changes == [["1", "2"]]
        api.put(ready_slice("a", "10.0.0.3"))
        await api.start()
        await reports.wait_for_addresses("3")
        await reports.wait_until_current()
    assert api.list_count == 1


async def test_a_rotated_token_is_read_again(api: ApiServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    api.token = "first"
    async with watching(api, token_file=token) as reports:
        await reports.wait_for_failure()  # the file does not exist yet
        assert not api.requests
        token.write_text("first\n")
        await reports.wait_for_addresses("1", "2")
        await until(lambda: api.watch_count == 1)
        api.token = "second"
        api.break_connections()
        await reports.wait_for_failure()
        token.write_text("second")
        api.put(ready_slice("a", "10.0.0.3"))
        await reports.wait_for_addresses("3")
    assert set(api.tokens) == {"first", "second"}


@pytest.mark.parametrize("content", [b"", b"\xff", b"a\r\nhost: evil", b"x" * 100 + b"\0"])
async def test_a_file_without_a_token_is_not_sent(
    api: ApiServer, tmp_path: Path, content: bytes
) -> None:
    token = tmp_path / "token"
    token.write_bytes(content)
    async with watching(api, token_file=token) as reports:
        await reports.wait_for_failure()
    assert not api.requests


async def test_delays_between_failures_grow(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays: list[float] = []
    sleep = asyncio.sleep

    async def record(seconds: float) -> None:
        if seconds >= 0.25:  # ignore the polling of this test
            delays.append(seconds)
        await sleep(0)

    api.responses = [(503, b"{}")] * 9
    async with watching(api, WatchTimes(min_delay=1.0, max_delay=30.0, merge=0.0)) as reports:
        monkeypatch.setattr("infergate.backends.endpoint_slice_watch.asyncio.sleep", record)
        await reports.wait_for_addresses("1", "2")
        monkeypatch.undo()
    for attempt, delay in enumerate(delays[:9], 1):
        assert min(30, 2**attempt) / 2 <= delay <= min(30, 2**attempt)


async def test_endpoints_without_the_port_are_unused_and_logged_once(
    api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    api.put(endpoint_slice("a", [endpoint("10.0.0.1")], {"http": 1, "metrics": 2}))
    async with watching(api, port="grpc") as reports:
        await until(lambda: bool(reports.changes) and api.watch_count == 1)
        api.put(endpoint_slice("a", [endpoint("10.0.0.2")], {"http": 1, "metrics": 2}))
        await until(lambda: len(reports.changes) > 1)
    assert reports.changes == [[], []]
    logged = [each.message for each in caplog.records if "has the backend's port" in each.message]
    assert len(logged) == 1
    assert "models/triton" in logged[0]


async def test_a_service_with_too_many_endpoints_is_logged_once_with_its_name(
    api: ApiServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_slices, "MAX_ENDPOINTS", 1)
    async with watching(api) as reports:
        await reports.wait_for_addresses("1")
        await until(lambda: api.watch_count == 1)
        api.put(ready_slice("a", "10.0.0.2", "10.0.0.3"))
        await reports.wait_for_addresses("2")
    errors = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert errors == ["backend 'b': only 1 endpoints of service models/triton are used"]
