"""The deployment of a soak: a gateway with every feature enabled, and two servers behind proxies.
One of the servers may be stopped and restarted.

*Listeners.* The gateway's HTTP listener uses TLS, and its gRPC listener does not. The servers' gRPC
listeners use TLS, and their HTTP listeners do not. The servers are gateways with the embedded
models. HTTP and gRPC are thus each used with and without TLS."""

import asyncio
import contextlib
import os
import signal
import socket
import ssl
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.running import Infergate
from infergate.access.keys import digest_of
from infergate.core.tls_settings import ClientTls
from peers.support.process import Launch, Running, free_ports, started
from tls_kit import Authority

from .soak_faults import Proxy, Target

KEY: Final = "infergate_of-a-soak"
RETRIED: Final = ("retried-rpc", "retried-rest")
"""Prefixes of models whose requests are retried and hedged. Clients must not see server
failures."""
ONCE: Final = ("rpc", "rest", "old-http", "old-rpc", "pipe", "raw", "shared")
"""Prefixes of models whose requests may fail if their server fails during the request."""
_PROXIES: Final = ("http", "grpc", "raw", "pipe")
_SETTINGS: Final = """
drain: {delay: 0s}
limits: {keepalive_time: 30s, header_time: 15s, idle_body_time: 15s, connect_time: 60s}
log: {access: false}
helpers: 1
"""
"""``keepalive_time`` is longer than the 4 s after which clients, including the gateway, close idle
connections. A server that closed a connection just as it was used would cause legitimate failures.
"""
_SERVER_CONFIG: Final = """
listeners:
  admin: {{address: "127.0.0.1:{0}"}}
  http: {{address: "127.0.0.1:{1}"}}
  grpc: {{address: "127.0.0.1:{2}", tls: {tls}}}
  graphpipe:
    - {{address: "127.0.0.1:{3}", model: identity, framing: size-prefixed}}
    - {{address: "127.0.0.1:{4}", model: identity, tls: {cert}}}
backends: {{ours: {{protocol: builtin}}}}
routes: [{{model: "*", backend: ours}}]
reload: {{watch: false}}
"""
_GATEWAY_CONFIG: Final = """
listeners:
  admin: {{address: "127.0.0.1:{0}"}}
  http: {{address: "127.0.0.1:{1}", tls: {cert}}}
  grpc: {{address: "127.0.0.1:{2}"}}
  graphpipe: [{{address: "127.0.0.1:{3}", model: identity, framing: size-prefixed}}]
  additional: {{kserve-v1: {{address: "127.0.0.1:{4}", protocols: [kserve-v1]}}}}
workers: {workers}
access:
  keys: [{{name: soak, sha256: "{digest}"}}]
  rules:
    - {{who: ["key:soak"], operations: [infer, metadata, statistics, repository]}}
    - {{who: [anonymous], models: [identity], operations: [infer, metadata]}}
  rates: [{{requests: 100000/s}}]
"""
_BACKENDS: Final = """
reload: {{watch: true, quiet: 100ms, post: true}}
readiness: lenient
backends:
  ours: {{protocol: builtin}}
  rest:
    protocol: v2-rest
    endpoints: ["http://{left.http}", "http://{right.http}"]
    timeout: {timeout}s
    health: &health {{interval: 1s, timeout: 5s, rise: 1, fall: 2}}
    outliers: &outliers {{base_ejection_time: 1s, max_ejection_time: 2s}}
    balance: &balance {{slow_start: 1s}}
    limits: &limits {{retry_percent: 100, min_retries: 50, max_requests: 200}}
  rpc:
    protocol: v2-grpc
    endpoints: ["grpcs://{left.grpc}", "grpcs://{right.grpc}"]
    tls: &tls {tls}
    timeout: 60s
    health: *health
    outliers: *outliers
    balance: *balance
    limits: *limits
  old-http: {{protocol: trtis-http, endpoints: ["http://{right.http}"], timeout: {timeout}s}}
  old-rpc: {{protocol: trtis-grpc, endpoints: ["grpcs://{right.grpc}"], tls: *tls, timeout: 60s}}
  pipe: {{protocol: graphpipe, endpoints: ["https://{right.pipe}"], tls: *tls, timeout: 60s}}
  raw: {{protocol: graphpipe, endpoints: ["tcp://{right.raw}"], timeout: 60s}}
  silent:
    protocol: v2-rest
    endpoints: ["http://{silent}"]
    timeout: 3s
    outliers: {{consecutive_errors: 0}}
routes:
  - model: '/retried-rpc\\.(.+)/'
    backend: rpc
    rewrite: {{model: '\\1'}}
    idempotent: true
    retry: &retry {{times: 4, per_try_timeout: 20s}}
    hedge: {{after: 500ms}}
  - model: '/retried-rest\\.(.+)/'
    backend: rest
    rewrite: {{model: '\\1'}}
    idempotent: true
    retry: *retry
    hedge: {{after: p95}}
  - model: '/shared\\.(.+)/'
    backend: pipe
    rewrite: {{model: '\\1'}}
    split: [{{backend: rest, percent: 30}}]
    split_by: x-request-id
    fallback: ours
    mirror: {{backend: raw, percent: 50, max_requests: 4}}
  - {{model: '/rest\\.(.+)/', backend: rest, rewrite: {{model: '\\1'}}}}
  - {{model: '/rpc\\.(.+)/', backend: rpc, rewrite: {{model: '\\1'}}}}
  - {{model: '/old-http\\.(.+)/', backend: old-http, rewrite: {{model: '\\1'}}}}
  - {{model: '/old-rpc\\.(.+)/', backend: old-rpc, rewrite: {{model: '\\1'}}}}
  - {{model: '/pipe\\.(.+)/', backend: pipe, rewrite: {{model: '\\1'}}}}
  - {{model: '/raw\\.(.+)/', backend: raw, rewrite: {{model: '\\1'}}}}
  - {{model: '/silent\\.(.+)/', backend: silent, rewrite: {{model: '\\1'}}}}
  - {{model: "*", backend: ours}}
"""


@dataclass(frozen=True)
class Listener:
    """A listener: its ``host:port``, and the TLS settings of its clients."""

    address: str
    tls: ClientTls | None = None

    def target(self, protocol: str) -> Target:
        """Return the listener as the target of a misbehaving client, which offers ``protocol``
        by ALPN."""
        if self.tls is None:
            return Target(self.address)
        context = ssl.create_default_context(cafile=self.tls.ca)
        if self.tls.certificate is not None:
            context.load_cert_chain(self.tls.certificate, self.tls.key)
        context.set_alpn_protocols([protocol])
        return Target(self.address, context)


class Trust:
    """An authority and its certificates. ``server_auth`` and ``mutual_auth`` are settings of
    clients. ``server_tls``, ``mutual_tls`` and ``client_tls`` are sections of configurations."""

    def __init__(self, folder: Path) -> None:
        authority = Authority(folder)
        server, client = authority.server(), authority.issue("gateway.example")
        self.server_auth: Final = ClientTls(authority.file)
        self.mutual_auth: Final = ClientTls(authority.file, None, client.certificate, client.key)
        pair = f"certificate: {server.certificate}, key: {server.key}"
        self.server_tls: Final = f"{{{pair}}}"
        self.mutual_tls: Final = (
            f"{{{pair}, client_certificates: required, client_ca: {authority.file}}}"
        )
        self.client_tls: Final = (
            f"{{ca: {authority.file}, server_name: localhost, "
            f"certificate: {client.certificate}, key: {client.key}}}"
        )


def _infergate(running: Running) -> Infergate:
    admin, http, grpc, *_ = running.addresses
    return Infergate(http, grpc, admin, running.pid, running.log)


class SoakServer:
    """A server with the embedded models, which clients reach through proxies."""

    def __init__(self, name: str, engine: str, trust: Trust) -> None:
        self.name: Final = name
        self.proxies: Final = {each: Proxy() for each in _PROXIES}
        self.http, self.grpc, self.raw, self.pipe = (
            f"127.0.0.1:{each.port}" for each in self.proxies.values()
        )
        self._trust: Final = trust
        self._engine: Final = engine
        self._stack: Final = contextlib.ExitStack()
        self.gateway: Infergate

    async def start(self) -> None:
        """Start the process and open the proxies. Raises RuntimeError if the process does not
        start."""
        # A server is stopped when the thread that started it exits. Threads of the default executor
        # live as long as the loop.
        running = await asyncio.to_thread(self._stack.enter_context, started(self._launch))
        self.gateway = _infergate(running)
        _, http, grpc, raw, pipe = running.addresses
        for proxy, target in zip(self.proxies.values(), (http, grpc, raw, pipe), strict=True):
            proxy.target = target
            await proxy.open()

    def _launch(self, folder: Path) -> Launch:
        ports = free_ports(5)
        text = _SERVER_CONFIG.format(
            *ports, tls=self._trust.mutual_tls, cert=self._trust.server_tls
        )
        return _make_launch(self.name, folder, ports, text + _SETTINGS, self._engine)

    async def kill(self) -> None:
        """Kill the server, so that requests in progress are aborted."""
        os.killpg(self.gateway.pid, signal.SIGKILL)
        self.shut()
        await asyncio.to_thread(self._stack.close)

    async def end(self) -> None:
        """Send SIGTERM to the server, so that requests in progress finish."""
        await asyncio.to_thread(self._stack.close)
        self.shut()

    def shut(self) -> None:
        """Break all connections of the proxies and refuse new ones; the ports stay reserved."""
        for each in self.proxies.values():
            each.shut()

    async def close(self) -> None:
        """Close all proxies, and stop the process."""
        for each in self.proxies.values():
            each.close()
        await asyncio.to_thread(self._stack.close)

    def listeners(self) -> Mapping[str, Listener]:
        """Return the listeners that clients use without a proxy."""
        return {
            "http": Listener(self.gateway.http),
            "grpc": Listener(self.gateway.grpc, self._trust.mutual_auth),
        }


class SoakGateway:
    """The gateway under test, and its configuration."""

    def __init__(
        self, engine: str, workers: int, trust: Trust, servers: tuple[SoakServer, SoakServer]
    ) -> None:
        self.engine: Final = engine
        self._workers: Final = workers
        self._trust: Final = trust
        self._left, self._right = servers
        self._listeners = ""
        self._number = 0
        # Connections are never accepted, so nothing is read and nothing is sent.
        self._silent: Final = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.gateway: Infergate
        self.graphpipe: str
        self.kserve: str

    @contextlib.contextmanager
    def started(self) -> Iterator[None]:
        """Run the gateway while the block runs."""
        with self._silent, started(self._launch) as running:
            self.gateway = _infergate(running)
            self.graphpipe, self.kserve = running.addresses[3:]
            yield

    def _launch(self, folder: Path) -> Launch:
        ports = free_ports(5)
        self._listeners = _GATEWAY_CONFIG.format(
            *ports,
            cert=self._trust.server_tls,
            workers=self._workers,
            digest=digest_of(KEY).hex(),
        )
        return _make_launch("the gateway", folder, ports, self.next_config(), self.engine)

    def next_config(self) -> str:
        """Return a changed configuration. Some backends have a different timeout. Sometimes the
        limits differ as well, so that all backends are replaced.
        """
        self._number += 1
        rest = _BACKENDS.format(
            left=self._left,
            right=self._right,
            silent=f"127.0.0.1:{self._silent.getsockname()[1]}",
            tls=self._trust.client_tls,
            timeout=60 + self._number % 3,
        )
        limit = f"limits: {{tensors: {100 + self._number % 8 // 4}, "
        settings = _SETTINGS.replace("limits: {", limit)
        return f"{self._listeners}{rest}{settings}# {self._number}\n"

    @property
    def file(self) -> Path:
        """Return the path of the configuration."""
        return self.gateway.log.parent / "routes.yaml"

    @property
    def processes(self) -> int:
        """Return the number of processes: the workers, a helper of each worker, which is started on
        demand, and a supervisor if there are several workers."""
        return 2 if self._workers == 1 else 1 + 2 * self._workers

    def write(self, text: str) -> None:
        """Replace the configuration file atomically."""
        temporary = self.file.with_suffix(".new")
        temporary.write_text(f"engine: {self.engine}\n{text}")
        temporary.replace(self.file)

    def listeners(self) -> Mapping[str, Listener]:
        """Return the listeners that clients use."""
        return {
            "http": Listener(self.gateway.http, self._trust.server_auth),
            "grpc": Listener(self.gateway.grpc),
            "graphpipe": Listener(self.graphpipe),
            "additional.kserve-v1": Listener(self.kserve),
        }


def _make_launch(name: str, folder: Path, ports: Sequence[int], text: str, engine: str) -> Launch:
    file = folder / "routes.yaml"
    file.write_text(f"engine: {engine}\n{text}")
    argv = [sys.executable, "-m", "infergate", "--config", str(file), "--log-format", "json"]
    return Launch(name, argv, dict(os.environ), ports, ready="/healthz")
