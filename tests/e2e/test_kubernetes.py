"""Tests that infergate follows the pods of a Kubernetes service without failing a request."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from e2e.running import Infergate, started_infergate
from e2e.several import Client
from faults.replicas import replicas
from faults.watch import sample
from kubernetes_api import ApiServer, Slice, endpoint, endpoint_slice
from waiting import until

CONFIG = """
log: {{access: false}}
helpers: 0
backends:
  triton:
    protocol: v2-rest
    endpoints: ["http://triton.models.svc:{port}"]
    profile: infergate
    balance: {{slow_start: 0s}}
    dns_refresh: 50ms
    kubernetes: {{api: "http://127.0.0.1:{api}"}}
routes: [{{model: "*", backend: triton}}]
"""


class Clients:
    """Clients that send requests continuously. ``statuses`` counts the responses by status."""

    def __init__(self, gateway: Infergate) -> None:
        self._address = gateway.http
        self.statuses: Counter[int] = Counter()
        self._stop = False

    @asynccontextmanager
    async def running(self, count: int) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self._send_requests()) for _ in range(count)]
        try:
            yield
        finally:
            self._stop = True
            await asyncio.gather(*tasks)

    async def _send_requests(self) -> None:
        client = await Client.connected(self._address)
        try:
            while not self._stop:
                self.statuses[await client.send_request()] += 1
                await asyncio.sleep(0.005)
        finally:
            client.close()


async def test_pods_come_and_go_and_no_request_fails() -> None:
    hosts = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
    async with replicas(*hosts, same_ports=True) as pods, ApiServer().running() as api:
        backends = {pod.host: pod.backend for pod in pods}

        def pods_slice(name: str, *endpoints: Slice) -> Slice:
            return endpoint_slice(name, endpoints, {"http": pods[0].http, "grpc": pods[0].grpc})

        async def all_used(*expected: str) -> None:
            targets = {host: backends[host].inferences + 5 for host in expected}
            await until(
                lambda: all(backends[host].inferences > targets[host] for host in expected),
                f"{expected} receive requests",
            )

        api.put(pods_slice("a", endpoint(hosts[0])))
        with started_infergate(CONFIG.format(port=pods[0].http, api=api.port)) as gateway:
            await until(
                lambda: bool(gateway.logged("endpoint_watch_current")),
                "the gateway has listed the endpoints",
            )
            clients = Clients(gateway)
            async with clients.running(4):
                await all_used(hosts[0])
                api.put(pods_slice("b", endpoint(hosts[1]), endpoint(hosts[2], ready=False)))
                await all_used(hosts[0], hosts[1])
                assert not backends[hosts[2]].inferences, "an unready endpoint got requests"

                # A rolling update replaces the first pod, as Kubernetes does it.
                ending = endpoint(hosts[0], ready=False, serving=True, terminating=True)
                api.put(pods_slice("a", ending))
                await until(
                    lambda: pods[0].connections() == 0, "the first endpoint is disconnected"
                )
                await pods[0].kill()
                api.put(pods_slice("b", endpoint(hosts[1]), endpoint(hosts[2])))
                api.delete("a")
                await all_used(hosts[1], hosts[2])

                lists = api.list_count
                os.kill(gateway.pid, signal.SIGHUP)
                await until(
                    lambda: len(gateway.logged("config_loaded")) > 0, "the gateway has reloaded"
                )
                await all_used(hosts[1], hosts[2])
                assert api.list_count == lists, "the reload listed the endpoints again"

                # The API server restarts, and no longer knows the watched resource version.
                await api.stop()
                await until(
                    lambda: bool(gateway.logged("endpoint_watch_fails")),
                    "the gateway has noticed the failure",
                )
                await all_used(hosts[1], hosts[2])
                api.put(pods_slice("b", endpoint(hosts[2])))
                api.forget()
                await api.start()
                await until(
                    lambda: pods[1].connections() == 0, "the second endpoint was removed meanwhile"
                )
                await pods[1].kill()
                await all_used(hosts[2])
            assert clients.statuses.keys() == {200}, clients.statuses
            text = await asyncio.to_thread(gateway.metrics)
            labels = {"backend": "triton", "endpoint": f"http://triton.models.svc:{pods[0].http}"}
            assert sample(text, "infergate_endpoint_watches", state="current", **labels) == 1
            assert sample(text, "infergate_endpoint_watches", state="failing", **labels) == 0
            assert sample(text, "infergate_endpoint_watch_failures_total", **labels) >= 1
            assert sample(text, "infergate_endpoint_addresses", state="available", **labels) == 1
    assert api.list_count == 2
