"""What a supervisor does between two steps of its own; its workers are in tests/e2e."""

from __future__ import annotations

import socket

import pytest

from infergate.config.schema import Config
from infergate.runtime.history import History
from infergate.runtime.running import NotTaken
from infergate.runtime.workers.spawn import told
from infergate.runtime.workers.supervisor import Supervisor


def config(port: int) -> Config:
    off = {"http": {"address": f"127.0.0.1:{port}"}, "grpc": None, "admin": None}
    return Config.model_validate(
        {
            "workers": 2,
            "listeners": off,
            "backends": {"demo": {"protocol": "builtin"}},
            "routes": ({"model": "*", "backend": "demo"},),
        }
    )


async def test_a_reload_that_the_end_overtakes_leaves_nothing_open(
    unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = Supervisor(config(0), History())
    before = supervisor._held = await supervisor._bound(supervisor.config, {})
    prepare = supervisor._prepare

    async def overtaken(*asked: object) -> None:
        await supervisor.stop(0)
        await prepare(*asked)  # type: ignore[arg-type]

    monkeypatch.setattr(supervisor, "_prepare", overtaken)
    with pytest.raises(NotTaken, match="is stopping"):
        await supervisor.reload(config(unused_tcp_port))
    assert supervisor.config.listeners.http != config(unused_tcp_port).listeners.http
    for port in (unused_tcp_port, *(each.address.port for each in before.values())):
        socket.create_server(("127.0.0.1", port)).close()


@pytest.mark.parametrize(
    ("code", "words"), [(0, "exit code 0"), (3, "exit code 3"), (-9, "SIGKILL"), (-40, "signal 40")]
)
def test_how_a_process_ended(code: int, words: str) -> None:
    assert told(code) == words
