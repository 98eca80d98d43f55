"""Tests that several workers on one port act as one gateway."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from e2e.running import Infergate
from e2e.several import (
    BODY,
    DEMO,
    INFER,
    Client,
    connections,
    lives,
    reloaded,
    request,
    requests,
    several,
    shared_loads,
    stopped,
    until,
    workers,
)
from faults.peer import get, post
from faults.watch import metric

COUNT = 6
LISTENERS = """
listeners:
  http: {{address: "{http}"}}
  grpc: {{address: "{grpc}"}}
  admin: {{address: "{admin}"}}
  graphpipe:
    - {{address: "unix:{folder}/gp.sock", model: {model}, framing: size-prefixed}}
workers: {workers}
drain: {{delay: 0s}}
reload: {{watch: false, post: true}}
backends: {{demo: {{protocol: builtin}}}}
routes: [{{model: {model}, backend: demo, rewrite: {{model: identity}}}}]
"""


def write_config(
    running: Infergate, model: str, *, http: str = "", grpc: str = "", count: object = 2
) -> Path:
    file = running.log.parent / "routes.yaml"
    text = LISTENERS.format(
        http=http or running.http, grpc=grpc or running.grpc, admin=running.admin,
        folder=file.parent, workers=count, model=model,
    )  # fmt: skip
    file.write_text(text)
    return file


async def spread(running: Infergate, count: int) -> list[Client]:
    """Open ``count`` connections, and send one request on each."""
    clients = [await Client.connected(running.http) for _ in range(count)]
    for each in clients:
        assert await each.send_request() == 200
    return clients


LISTENERS_WITH_ACTIONS = """
listeners:
  http: {{address: "127.0.0.1:{2}"}}
  grpc: {{address: "127.0.0.1:{1}"}}
  admin: {{address: "127.0.0.1:{0}", actions: true}}
"""


async def test_several_workers_act_as_one() -> None:
    config = f"reload: {{watch: false, post: true}}\n{DEMO}"
    with several(config=config, listeners=LISTENERS_WITH_ACTIONS) as running:
        clients = []
        for each in workers(running):  # only the other worker accepts
            with stopped(each):
                clients += await spread(running, COUNT // 2)
        await asyncio.to_thread(check_shared_loads, running, {each.port for each in clients})
        assert requests(running) == COUNT
        await check_statistics(running, clients)
        await check_console(running, clients)
        await check_taken_port(running, 1)
        await check_reload(running, clients)
        await check_overlapping_listener(running)
        await check_drain(running)


def check_shared_loads(running: Infergate, ports: set[int]) -> None:
    """Check that each worker sees the number of connections of every worker. This number decides
    which worker accepts the next connection (unit/transport/test_accept.py)."""
    first, second = workers(running)
    assert connections(first, ports) == connections(second, ports) == COUNT // 2
    until(lambda: (COUNT // 2, COUNT // 2) in shared_loads(first).values(), "loads are published")
    assert shared_loads(first) == shared_loads(second)


async def check_statistics(running: Infergate, clients: list[Client]) -> None:
    counts = set()
    for each in clients:
        await each.send(b"GET /v2/models/identity/stats HTTP/1.1\r\nHost: x\r\n\r\n")
        head = await each._reader.readuntil(b"\r\n\r\n")
        length = int(re.findall(rb"(?i)content-length: (\d+)", head)[0])
        document = json.loads(await each._reader.readexactly(length))
        counts.add(document["model_stats"][0]["inference_count"])
    assert counts == {COUNT}


async def check_console(running: Infergate, clients: list[Client]) -> None:
    for each in clients:
        assert await each.send_request(request("/v2/models/identity/versions/x/infer")) == 404
    state, plan, history = await asyncio.to_thread(console, running, "state", "plan", "history")
    assert sum(history["counts"]["client_errors"]) == COUNT, "errors are missing"
    assert {each["worker"] for each in history["slowest"]} == {0, 1}
    assert history["missing"] == []
    with stopped(workers(running)[0]):  # the other worker serves the first client
        assert await clients[0].send_request(request("/v2/models/identity/versions/x/infer")) == 404
        partial, latest = await asyncio.to_thread(console, running, "state", "history")
    assert partial["workers"] == {"wanted": 2, "serving": 2, "reporting": 1}
    assert sum(latest["counts"]["client_errors"]) == COUNT + 1, "a stopped worker's errors are lost"
    assert len(latest["missing"]) == 1
    assert state["workers"] == {"wanted": 2, "serving": 2, "reporting": 2}
    flows = [each for each in state["flows"] if each["operation"] == "infer"]
    assert sum(each["outcomes"].get("ok", 0) for each in flows) == COUNT
    assert {(w["pipeline"], w["count"]) for w in state["pipelines"]} == {("translate", 2 * COUNT)}
    assert len(state["failures"]) == COUNT
    assert {each["worker"] for each in state["failures"]} == {0, 1}
    addresses = {each["name"]: each["address"] for each in plan["listeners"]}
    assert (addresses["http"], addresses["admin"]) == (running.http, running.admin)
    tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [7]}
    body = {"protocol": "v2-grpc", "model": "identity", "inputs": [tensor]}
    response = await asyncio.to_thread(try_request, running, body)
    assert (response["outcome"], response["answer"]["start"]) == ("ok", "gRPC status 0")
    response = await asyncio.to_thread(try_request, running, body | {"protocol": "none"})
    assert response == {"error": "unknown protocol 'none'", "kind": "bad_request"}


def try_request(running: Infergate, body: dict[str, Any]) -> Any:
    headers = {"x-infergate-console": "1"}
    return post(running.admin, "/console/try", json.dumps(body).encode(), headers).json


def console(running: Infergate, *pages: str) -> list[Any]:
    return [get(running.admin, f"/console/{page}").json for page in pages]


async def check_overlapping_listener(running: Infergate) -> None:
    host, _, port = running.grpc.rpartition(":")
    for address in (f"0.0.0.0:{port}", running.grpc):
        write_config(running, "other", grpc=address)
        assert "error" not in (result := reloaded(running)), result
        for _ in range(COUNT):  # so that both workers accept
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            assert (await reader.readexactly(9))[3] == 4  # 4 is the type of SETTINGS
            writer.close()


async def check_taken_port(running: Infergate, worker_count: int) -> None:
    file = running.log.parent / "routes.yaml"
    completed = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "infergate", "--config", str(file), "--workers", str(worker_count)],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert completed.returncode == 1
    assert "Address already in use" in completed.stderr


async def check_reload(running: Infergate, clients: list[Client]) -> None:
    write_config(running, "renamed")
    assert "error" not in (result := reloaded(running)), result
    renamed = request("/v2/models/renamed/infer")
    assert [await each.send_request(renamed) for each in clients] == [200] * COUNT
    assert [await each.send_request(INFER) for each in clients] == [404] * COUNT
    # Both workers have received the socket with the configuration.
    path = str(running.log.parent / "gp.sock")
    for _ in range(3):
        _, writer = await asyncio.open_unix_connection(path)
        writer.close()

    write_config(running, "other", count=3)
    assert "workers: changing 2 to 3 requires a restart" in reloaded(running)["error"]
    write_config(running, "other", http=running.admin)
    assert "is already used by the listener" in reloaded(running)["error"]
    assert [await each.send_request(renamed) for each in clients] == [200] * COUNT
    assert metric(running, "infergate_config_reloads_total", result="failed") == 2
    assert metric(running, "infergate_config_last_reload_successful") == 0
    [history] = await asyncio.to_thread(console, running, "history")
    kinds = [each["kind"] for each in history["events"]]
    assert (kinds[:2], kinds[-1]) == (["reload_failed"] * 2, "start")
    assert "+- model: other" in next(each["diff"] for each in history["events"] if each["diff"])

    write_config(running, "other")
    os.kill(running.pid, signal.SIGHUP)
    other = request("/v2/models/other/infer")
    await asyncio.to_thread(
        until,
        lambda: metric(running, "infergate_config_reloads_total", result="ok") == 2,
        "the reload by SIGHUP succeeds",
    )
    assert [await each.send_request(other) for each in clients] == [200] * COUNT
    for each in clients:
        each.close()


async def check_drain(running: Infergate) -> None:
    processes = workers(running)
    await asyncio.to_thread(
        until, lambda: sum(map(connections, processes)) == 0, "earlier connections are closed"
    )
    infer_request = request("/v2/models/other/infer")
    clients = [await Client.connected(running.http) for _ in range(4)]
    for each in clients:
        await each.send(infer_request[: -len(BODY) // 2])
    await asyncio.to_thread(
        until, lambda: sum(map(connections, processes)) == 4, "all connections are accepted"
    )
    os.kill(running.pid, signal.SIGTERM)

    async def is_refused() -> bool:
        try:
            (await Client.connected(running.http)).close()
        except ConnectionRefusedError:
            return True
        return False

    async with asyncio.timeout(100):
        while not await is_refused():  # noqa: ASYNC110 - no event to await
            await asyncio.sleep(0.01)
    for each in clients:
        await each.send(infer_request[-len(BODY) // 2 :])
    assert [await each.status() for each in clients] == [200] * 4
    for each in clients:
        each.close()
    await asyncio.to_thread(
        until, lambda: not any(map(lives, (running.pid, *processes))), "all processes have ended"
    )
    assert not (running.log.parent / "gp.sock").exists()
    log = running.log.read_text()
    assert "SIGTERM: draining" in log
    assert " ended: " not in log
    assert "Traceback" not in log


async def test_grpcio_workers_share_the_port() -> None:
    options = [("grpc.use_local_subchannel_pool", 1)]
    with several("compat") as running:
        for _ in range(8):
            async with grpc.aio.insecure_channel(running.grpc, options) as channel:
                live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
                await live(b"", wait_for_ready=True)
        assert metric(running, "infergate_requests_total", operation="server_live") == 8
        clients = await spread(running, 4)
        for each in clients:
            each.close()
        await check_taken_port(running, 2)
