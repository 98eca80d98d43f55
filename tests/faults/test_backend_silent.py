"""A backend that takes a request and says nothing, or stops in the middle: told when its time is
over."""

from __future__ import annotations

import pytest

from faults import h2
from faults.behind import HEAD, MESSAGE, Site, fails_over_grpc, fails_over_http, says, sends, some
from faults.peer import GOOD_BODY, Connection, Script, http_answer

HALF = http_answer(GOOD_BODY)[:-9]
HTTP: dict[str, tuple[str, Script]] = {
    "silence": ("timeout", says(then=Connection.gone)),
    "half a head, then silence": ("timeout", says(HEAD, then=Connection.gone)),
    "half a body, then silence": ("timeout", says(HALF, then=Connection.gone)),
    "interim answers only": ("timeout", says(b"HTTP/1.1 102 P\r\n\r\n" * 9, then=Connection.gone)),
}  # fmt: skip

RPC: dict[str, tuple[str, Script]] = {
    "silence": ("timeout", sends()),
    "headers, then silence": ("timeout", sends(h2.headers)),
    "half a message, then silence": ("timeout", sends(h2.headers, some(MESSAGE[:9]))),
}  # fmt: skip


@pytest.mark.parametrize("model", ["rest.fwd", "rest.tr"])
@pytest.mark.parametrize("fault", HTTP)
def test_over_http(site: Site, model: str, fault: str) -> None:
    fails_over_http(site, model, *HTTP[fault])


@pytest.mark.parametrize("model", ["grpc.fwd", "grpc.tr"])
@pytest.mark.parametrize("fault", RPC)
def test_over_grpc(site: Site, model: str, fault: str) -> None:
    fails_over_grpc(site, model, *RPC[fault])
