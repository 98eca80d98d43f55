"""Answers that are too large, or inflate to what is: refused when that is known, and not held."""

from __future__ import annotations

import gzip

import pytest

from faults import h2
from faults.behind import (
    BODY,
    CHUNKED,
    END,
    HEAD,
    Site,
    answers,
    fails_over_grpc,
    fails_over_http,
    says,
    sends,
    some,
)
from faults.peer import Connection, Script, http_answer

CHUNK = b"%x\r\n%b\r\n" % (60_000, b" " * 60_000)
BOMB = gzip.compress(bytes(1 << 24))
HTTP: dict[str, tuple[str, Script]] = {
    "a gzip bomb": (
        "backend_garbage",
        answers(http_answer(BOMB, headers="Content-Encoding: gzip\r\n")),
    ),
    "an announced answer too large": (
        "too_large", says(HEAD + b"Content-Length: %d\r\n\r\n" % (BODY + 1), then=Connection.gone),
    ),
    "chunks too large": (
        "too_large",
        says(CHUNKED + CHUNK * 160, then=Connection.gone),
    ),
}  # fmt: skip


def _compressed(stream: int) -> bytes:
    return h2.headers(stream, h2.OK_HEADERS + h2.fields(("grpc-encoding", "gzip")))


RPC: dict[str, tuple[str, Script]] = {
    "an answer too large": (
        "too_large", sends(h2.headers, some(b"\0\x01\0\0\0" + b"x" * 10_000)),
    ),
    "a compressed bomb": (
        "too_large", sends(_compressed, some(b"\1" + len(BOMB).to_bytes(4) + BOMB), END),
    ),
}  # fmt: skip


@pytest.mark.parametrize("model", ["rest.fwd", "rest.tr"])
@pytest.mark.parametrize("fault", HTTP)
def test_over_http(site: Site, model: str, fault: str) -> None:
    fails_over_http(site, model, *HTTP[fault])


@pytest.mark.parametrize("model", ["grpc.fwd", "grpc.tr"])
@pytest.mark.parametrize("fault", RPC)
def test_over_grpc(site: Site, model: str, fault: str) -> None:
    fails_over_grpc(site, model, *RPC[fault])
