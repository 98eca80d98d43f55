"""The configuration of ``infergate rest-proxy``, which replaces kserve/rest-proxy. The
command serves V2 REST in front of one V2 gRPC server, and is configured by rest-proxy's environment
variables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from infergate.config.load import parse
from infergate.config.mistakes import ConfigError, Mistake
from infergate.config.schema import Config, LimitsConfig

_ENVIRONMENT: Final = "environment"
"""The name of the source in error messages."""
_MAX_PORT: Final = 65535
_MAX_MESSAGE_BYTES: Final = 2**31 - 1
VARIABLES: Final[Mapping[str, str]] = {
    "REST_PROXY_LISTEN_PORT": "port of the V2 REST listener, on all interfaces (default: 8008)",
    "REST_PROXY_GRPC_PORT": "port of the V2 gRPC server on this host (default: 8033)",
    "REST_PROXY_USE_TLS": "`true`: connect to the server over TLS (default: `false`)",
    "REST_PROXY_SKIP_VERIFY": "`true`: accept any certificate of the server (default: `false`)",
    "REST_PROXY_GRPC_MAX_MSG_SIZE_BYTES": "maximum size of a request and of a response, in bytes "
    "(default: 16777216); older name: REST_PROXY_GRPC_MAX_MSG_SIZE",
    "MM_TLS_KEY_CERT_PATH": "PEM file with the certificate of the REST listener; unset: plain text",
    "MM_TLS_PRIVATE_KEY_PATH": "PEM file with the private key of that certificate",
}
"""The environment variables and their meanings."""


def rest_proxy_config(environ: Mapping[str, str]) -> Config:
    """Return the configuration that ``environ`` describes. Raises ConfigError."""
    port = _number(environ, "REST_PROXY_LISTEN_PORT", 8008, _MAX_PORT)
    grpc_port = _number(environ, "REST_PROXY_GRPC_PORT", 8033, _MAX_PORT)
    old_size = _number(environ, "REST_PROXY_GRPC_MAX_MSG_SIZE", 1 << 24, _MAX_MESSAGE_BYTES)
    size = _number(environ, "REST_PROXY_GRPC_MAX_MSG_SIZE_BYTES", old_size, _MAX_MESSAGE_BYTES)
    listener: dict[str, Any] = {"address": f"0.0.0.0:{port}", "protocols": ["v2-rest"]}
    if certificate := environ.get("MM_TLS_KEY_CERT_PATH"):
        key = environ.get("MM_TLS_PRIVATE_KEY_PATH", "")
        listener["tls"] = {"certificate": certificate, "key": key}
    scheme = "grpc"
    backend: dict[str, Any] = {"protocol": "v2-grpc", "timeout": "1h"}  # rest-proxy has no timeout
    if environ.get("REST_PROXY_USE_TLS") == "true":
        scheme = "grpcs"
        backend["tls"] = {"verify": environ.get("REST_PROXY_SKIP_VERIFY") != "true"}
    backend["endpoints"] = [f"{scheme}://localhost:{grpc_port}"]
    document = {
        "listeners": {"http": None, "grpc": None, "admin": None, "additional": {"rest": listener}},
        "backends": {"grpc-server": backend},
        "routes": [{"model": "*", "backend": "grpc-server"}],
        "limits": {
            "body": size,
            "json": size,
            "in_flight_bytes": max(LimitsConfig().in_flight_bytes, 2 * size),
        },
        "drain": {"delay": "0s"},
    }
    text = json.dumps(document, indent=2)  # JSON is YAML
    return parse(text.replace("${", "$${"), _ENVIRONMENT, {})


def _number(environ: Mapping[str, str], name: str, default: int, maximum: int) -> int:
    text = environ.get(name, "") or str(default)
    if not (text.isascii() and text.isdecimal() and len(text) < 16 and 0 < int(text) <= maximum):
        message = f"'{text[:40]}' is not a whole number from 1 to {maximum}"
        raise ConfigError([Mistake(_ENVIRONMENT, 0, name, message)])
    return int(text)
