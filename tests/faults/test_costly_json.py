"""Tests JSON that takes long to read: other clients do not wait, a killed helper process fails only
its own request, and JSON beyond a limit is rejected."""

from __future__ import annotations

import json
import os
import re
import signal
from contextlib import suppress

import pytest

from e2e.running import Infergate, started_infergate
from faults.low_limits import CONFIG, PATH, LimitedGateway, good, head
from faults.peer import Client, post
from faults.watch import (
    MIB,
    SECONDS,
    children,
    counted,
    limited_growth,
    refused_by,
    unharmed,
    until,
)


def _costly_json(elements: int) -> bytes:
    fields = {"name": "INPUT0", "datatype": "FP32", "shape": [elements], "data": []}
    data = "[" + "0," * (elements - 1) + "NaN]"
    return json.dumps({"inputs": [fields]}).replace("[]", data).encode()


COSTLY_JSON = _costly_json(3 * MIB // 2)
"""JSON that is slow to read: if floats include a NaN, they are parsed one by one."""


def test_costly_json_delays_no_other_request(gateway: LimitedGateway) -> None:
    before = counted(gateway, outcome="ok")
    with Client(gateway.http) as client:
        client.send(head(length=len(COSTLY_JSON)) + COSTLY_JSON)
        for _ in range(3):
            good(gateway)
        client.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.socket.recv(1)
        client.socket.settimeout(SECONDS)
        answer = client.answer()
    assert answer.status == 200
    assert counted(gateway, outcome="ok") >= before + 4
    assert answer.body.rstrip(b"]}").endswith(b",NaN")


def test_a_crashed_helper_fails_only_its_request() -> None:
    with started_infergate(CONFIG) as gateway:
        assert post(gateway.http, PATH, COSTLY_JSON).status == 200
        with unharmed(gateway, lambda: good(gateway)):
            # The status is 503 if the helper was killed before it accepted the request.
            while (status := _status_after_killing_helpers(gateway)) == b"503":
                pass
            assert status == b"500"
            until(
                lambda: post(gateway.http, PATH, COSTLY_JSON).status == 200,
                "another helper reads the JSON",
            )
        assert 1 <= counted(gateway, outcome="internal") <= 3
        assert "a helper process ended with exit code -9" in gateway.log.read_text()


def _status_after_killing_helpers(gateway: Infergate) -> bytes:
    """Return the status of a request whose helper is killed."""
    with Client(gateway.http) as client:
        client.send(head(length=len(COSTLY_JSON)) + COSTLY_JSON)
        client.socket.setblocking(False)
        while not (received := _received(client)):
            for helper in children(gateway.pid):
                with suppress(ProcessLookupError):  # the helper has ended since it was found
                    os.kill(helper, signal.SIGKILL)
            good(gateway)
        return received.split(b" ")[1]


def _received(client: Client) -> bytes:
    try:
        return client.socket.recv(4096)
    except BlockingIOError:
        return b""


def test_deep_json_and_many_brackets_are_rejected(gateway: LimitedGateway) -> None:
    before = counted(gateway, outcome="bad_request") + counted(gateway, outcome="too_large")
    with limited_growth(gateway.pid, 64 * MIB):
        for body in (b"[" * (4 * MIB), b"[]" * MIB, b'{"a":' * MIB, b"[[],[]," * MIB):
            answer = post(gateway.http, PATH, body)
            assert answer.status in {400, 413}
            assert re.search("nested|character|arrays", answer.error)
    after = counted(gateway, outcome="bad_request") + counted(gateway, outcome="too_large")
    assert after == before + 4


def test_json_over_its_limit_is_rejected() -> None:
    """The limit does not apply to binary data after the JSON."""
    with started_infergate(CONFIG + "  json: 4KiB\n") as gateway:
        good(gateway)
        with unharmed(gateway, lambda: good(gateway)):
            _binary_and_json(gateway)


def _binary_and_json(gateway: Infergate) -> None:
    inputs = [
        {"name": name, "datatype": "UINT8", "shape": [9000],
         "parameters": {"binary_data_size": 9000}} for name in ("INPUT0", "INPUT1")
    ]  # fmt: skip
    document = json.dumps({"inputs": inputs}).encode()
    size = {"Inference-Header-Content-Length": str(len(document))}
    assert post(gateway.http, PATH, document + bytes(18_000), size).status == 200
    with refused_by(gateway, "json"):
        answer = post(gateway.http, PATH, b" " * 4097)
        assert answer.status == 413
        assert "4096" in answer.error
