"""The startup message on the terminal: listeners, routes, and example requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TextIO

from infergate import __version__
from infergate.config.compile import envelope_options
from infergate.config.protocols import BUILTIN
from infergate.config.route_text import endpoints_text, policies_text, targets_text
from infergate.config.schema import Config
from infergate.core.compilation import version_text
from infergate.runtime.console.plan import plan
from infergate.runtime.running import ADMIN
from infergate.terminal import Table, print_tables
from infergate.transport.base import Address

_VALUES = ",".join(str(i) for i in range(16))
_ONES = ",".join("1" for _ in range(16))

_HTTP_EXAMPLES = """
Try it (paste a line):

  curl -s http://{http}/v2/models/simple/infer -d '{{"inputs":[{{"name":"INPUT0","shape":[1,16],\
"datatype":"INT32","data":[{values}]}},{{"name":"INPUT1","shape":[1,16],"datatype":"INT32",\
"data":[{ones}]}}]}}'; echo

  python3 -c "import tritonclient.http as t, numpy as n; c=t.InferenceServerClient('{http}'); \
i=t.InferInput('INPUT0',[2,3],'FP32'); i.set_data_from_numpy(n.ones((2,3),n.float32)); \
print(c.infer('identity',[i]).as_numpy('OUTPUT0'))"   # pip install tritonclient[http]

  (printf '%s' '{head}'; printf '\\1\\0\\0\\0\\2\\0\\0\\0') | \
curl -s http://{http}/v2/models/identity/infer -H 'Inference-Header-Content-Length: {length}' \
--data-binary @-; echo
"""
_HEAD = (
    '{"inputs":[{"name":"INPUT0","shape":[2],"datatype":"INT32",'
    '"parameters":{"binary_data_size":8}}]}'
)


_MAX_ROUTES: Final = 20


def print_banner(
    config: Config, addresses: Mapping[str, Address], source: Path | None, stream: TextIO
) -> None:
    """Write the startup message to ``stream``, with colors if ``stream`` is a terminal.
    ``addresses`` are the bound addresses of the listeners."""
    is_demo = all(backend.protocol == BUILTIN for backend in config.backends.values())
    subject = str(source or ("the embedded models" if is_demo else ", ".join(config.backends)))
    workers = f", {config.workers} workers" if config.workers > 1 else ""
    stream.write(f"infergate {version_text(__version__)} serves {subject}{workers}\n\n")
    print_tables(_tables(config, addresses), stream)
    omitted = len(config.routes) - _MAX_ROUTES
    if omitted > 0:
        stream.write(f"  … and {omitted} more routes: infergate routes\n")
    if source is None and "http" in addresses:
        stream.write(
            _HTTP_EXAMPLES.format(
                http=addresses["http"], values=_VALUES, ones=_ONES, head=_HEAD, length=len(_HEAD)
            )
        )
    stream.flush()


def _tables(config: Config, addresses: Mapping[str, Address]) -> Iterator[Table]:
    outline = plan(config, addresses)
    yield Table(
        "listeners",
        ("LISTENER", "ADDRESS", "TLS", "FOR"),
        [
            (
                listener["name"],
                listener["address"],
                "yes" if listener["tls"] else "no",
                _purpose(config, listener),
            )
            for listener in outline["listeners"]
        ],
    )
    yield Table(
        "routes, first match wins",
        ("MODEL", "BACKEND", "PROTOCOL", "ENDPOINTS", "POLICY"),
        [
            (
                summary["label"],
                targets_text(route),
                config.backends[route.backend].protocol,
                endpoints_text(config.backends[route.backend]),
                policies_text(route),
            )
            for summary, route in zip(outline["routes"][:_MAX_ROUTES], config.routes, strict=False)
        ],
    )


def _purpose(config: Config, listener: Mapping[str, Any]) -> str:
    if listener["name"] != ADMIN:
        model = f", model {listener['model']}" if listener["model"] else ""
        envelopes = envelope_options(config, listener["name"])
        return ", ".join((*listener["protocols"], *envelopes)) + model
    admin = config.listeners.admin
    if admin is None or not admin.console:
        return "metrics, health"
    scheme = "https" if listener["tls"] else "http"
    return f"metrics, health; the console: {scheme}://{_local_address(listener['address'])}/console"


_WILDCARD_HOSTS: Final = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - not bound here


def _local_address(address: str) -> str:
    """Return ``address`` with a host that reaches the listener from this machine."""
    host, _, port = address.rpartition(":")
    return f"{_WILDCARD_HOSTS.get(host, host)}:{port}"
