"""Tests that compressed bodies that are expensive to inflate are rejected, and are not inflated
beyond the body limit."""

from __future__ import annotations

import gzip
import zlib

import grpc
import pytest

from e2e.running import ENGINE
from faults.low_limits import BODY, PATH, LimitedGateway, message
from faults.peer import post
from faults.rpc import call, channel
from faults.watch import MIB, counted, limited_growth, refused_by


@pytest.mark.parametrize(("encoding", "window"), [("gzip", 31), ("deflate", 15), ("deflate", -15)])
def test_http_bombs_are_rejected(gateway: LimitedGateway, encoding: str, window: int) -> None:
    deflater = zlib.compressobj(9, zlib.DEFLATED, window)
    bomb = b"".join(deflater.compress(bytes(MIB)) for _ in range(64)) + deflater.flush()
    assert len(bomb) < MIB
    with refused_by(gateway, "body"), limited_growth(gateway.pid, 32 * MIB):
        answer = post(gateway.http, PATH, bomb, {"Content-Encoding": encoding})
    assert answer.status == 413
    assert str(BODY) in answer.error


def test_gzip_with_very_many_members_is_rejected(gateway: LimitedGateway) -> None:
    before = counted(gateway, outcome="bad_request")
    with limited_growth(gateway.pid, 32 * MIB):
        bomb = gzip.compress(b"") * 50_000
        answer = post(gateway.http, PATH, bomb, {"Content-Encoding": "gzip"})
    assert answer.status == 400
    assert counted(gateway, outcome="bad_request") == before + 1


def test_grpc_bombs_are_rejected(gateway: LimitedGateway) -> None:
    before = counted(gateway, outcome="too_large")
    with channel(gateway.grpc) as rpc_channel, limited_growth(gateway.pid, 40 * MIB):
        status = call(rpc_channel, message(60 * MIB), compression=grpc.Compression.Gzip)
        assert status.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "larger than max" in status.details
        assert ENGINE == "compat" or "(limits.body)" in status.details
    if ENGINE == "own":  # grpcio does not report rejected messages
        assert counted(gateway, outcome="too_large") == before + 1
