"""Listeners of the supervisor and of workers, and the sockets that workers receive."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from infergate.config import compile as compiled
from infergate.config.load import parse
from infergate.config.plugins import HookConfig
from infergate.config.schema import Config
from infergate.runtime.workers.sockets import (
    bind_listener,
    socket_layout,
    supervisor_config,
    worker_addresses,
    worker_config,
)
from infergate.transport.base import Address
from infergate.transport.net.bind import bind_sockets
from infergate.transport.worker_loads import WorkerLoads

FREE = Address("127.0.0.1", 0)


def config(folder: Path) -> Config:
    text = f"""
listeners:
  http: {{address: "127.0.0.1:0"}}
  grpc: null
  admin: {{address: "127.0.0.1:7"}}
  graphpipe:
    - {{address: "unix:{folder}/a.sock", model: simple, mode: "600"}}
    - {{address: "127.0.0.1:0", model: simple}}
  additional: {{v2: {{address: "127.0.0.1:0", protocols: [v2-grpc]}}}}
backends: {{demo: {{protocol: builtin}}}}
routes: [{{model: "*", backend: demo}}]
access: {{rules: [{{who: [anonymous]}}]}}
"""
    return parse(text, str(folder / "routes.yaml"), {})


def test_the_supervisor_has_the_admin_listener_and_workers_the_others(
    tmp_path: Path,
) -> None:
    full = config(tmp_path)
    names = ["http", "graphpipe[0]", "graphpipe[1]", "additional.v2"]
    assert list(worker_addresses(full)) == names
    addresses = worker_addresses(full) | {
        "http": Address("127.0.0.1", 5),
        "graphpipe[1]": Address("x", 6),
        "additional.v2": Address("y", 7),
    }
    for_worker = worker_config(full, addresses)
    assert worker_addresses(for_worker) == addresses
    assert worker_addresses(for_worker)["graphpipe[0]"].mode == 0o600
    assert for_worker.listeners.admin is None
    assert for_worker.backends == full.backends
    assert for_worker.access == full.access is not None
    for_supervisor = supervisor_config(full)
    assert compiled.addresses(for_supervisor) == {"admin": Address("127.0.0.1", 7)}
    assert not compiled.model_listeners(for_supervisor)
    assert not for_supervisor.backends
    assert for_supervisor.access is None
    with_hook = full.model_copy(update={"hooks": {"guard": HookConfig(hook="module:Guard")}})
    assert not supervisor_config(with_hook).hooks, "only the workers create plug-ins"


async def test_sockets_stay_bound_until_closed(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    http = await bind_listener("http", FREE, bind_sockets, workers=2)
    unix_socket = await bind_listener("raw", Address(unix=str(path)), bind_sockets, workers=2)
    assert http.address.port
    layout, descriptors = socket_layout([http, unix_socket])
    assert layout == ((http.address, 2), (unix_socket.address, 2))
    assert descriptors == [*http.descriptors, *unix_socket.descriptors]
    loads = WorkerLoads(descriptors[2], 1)
    loads.report(4)
    assert unix_socket.loads.counts() == (-1, 4)
    with pytest.raises(OSError, match=r"listeners\.grpc: cannot listen on .*in use"):
        await bind_listener("grpc", http.address, bind_sockets, workers=2)
    http.close()
    unix_socket.close()
    assert not path.exists()
    for each in descriptors:
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(each)
    rebound = await bind_listener("http", http.address, bind_sockets, workers=2)
    rebound.close()
