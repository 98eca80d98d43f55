"""Measures the memory of infergate while idle, and for one large tensor with each pair of
protocols.

JSON is not measured, because the text of such a tensor is several times its size."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path

from . import proc, requests, servers
from .comparisons import LARGE_BODIES, LARGEST, Make, proxied
from .requests import binary_request, graphpipe_request, grpc_request, legacy_request
from .results import Peak
from .variants import Variant

FRONTENDS: dict[str, Make] = {
    "binary REST": binary_request,
    "V2 gRPC": grpc_request,
    "GraphPipe": graphpipe_request,
    "legacy HTTP": legacy_request,
}


def idle(variant: Variant, folder: Path) -> int:
    """Return the resident memory in bytes of a gateway that has received no request."""
    config = servers.routed({requests.tiny("identity"): ""})
    with servers.infergate(config, variant, folder) as gateway:
        return proc.resident(gateway.pid)


def peaks(variants: Sequence[Variant], folder: Path) -> Iterator[Peak]:
    """Yield the peak of a gateway's resident memory during its first request, as a ratio to the
    tensor's size, for each variant and each pair of protocols."""
    grpc, rest, builtin = (
        requests.flat(model, LARGEST) for model in ("echo-grpc", "echo-rest", "identity")
    )
    with ExitStack() as stack:
        echo = stack.enter_context(servers.echo(grpc.response(), folder))
        plain = stack.enter_context(servers.http_echo(rest.binary_response(), folder))
        backends = {
            "V2 gRPC": (grpc, f"grpc://{echo.addresses[0]}"),
            "binary REST": (rest, f"http://{plain.addresses[0]}"),
            "builtin": (builtin, ""),
        }
        for variant, (name, make), (backend, (case, url)) in product(
            variants, FRONTENDS.items(), backends.items()
        ):
            pair = f"{name} → {backend}"
            print(f"peak memory: {pair} ({variant.name})", file=sys.stderr)
            config = servers.routed({case: url}) | LARGE_BODIES
            with servers.infergate(config, variant, folder) as gateway:
                proc.reset_peak(gateway.pid)
                proxied(gateway, make, case, 0, variant.name)
                yield Peak(variant.name, pair, proc.peak(gateway.pid) / LARGEST)
