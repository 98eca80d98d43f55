"""Tests that pipelined requests get their responses in order."""

from __future__ import annotations

import json

from faults import frames
from faults.low_limits import VALID_BODY, LimitedGateway, body, good_frame, head
from faults.peer import Client
from faults.watch import MIB, counted, limited_growth


def test_pipelined_responses_are_in_order(gateway: LimitedGateway) -> None:
    bodies = [body(str(i), 1 + i) for i in range(30)]
    before = counted(gateway, outcome="ok")
    with Client(gateway.http) as client:
        client.send(b"".join(head(length=len(each)) + each for each in bodies))
        identities = [json.loads(client.answer().body)["id"] for _ in bodies]
    assert identities == [str(i) for i in range(30)]
    assert counted(gateway, outcome="ok") >= before + 30


def test_an_invalid_pipelined_request_fails_alone(gateway: LimitedGateway) -> None:
    before = counted(gateway, outcome="bad_request")
    with Client(gateway.http) as client:
        client.send(head() + VALID_BODY + head(length=1) + b"{" + head() + VALID_BODY)
        assert [client.answer().status for _ in range(3)] == [200, 400, 200]
    assert counted(gateway, outcome="bad_request") == before + 1


def test_thousands_of_pipelined_frames_are_served(gateway: LimitedGateway) -> None:
    before = counted(gateway, protocol="graphpipe", outcome="ok")
    with limited_growth(gateway.pid, 16 * MIB), Client(gateway.raw) as client:
        count = 2000
        client.send(frames.FRAME * count)
        good_frame(gateway)
        for _ in range(count):
            assert frames.error_in(client) == ""
    assert counted(gateway, protocol="graphpipe", outcome="ok") == before + count + 1
