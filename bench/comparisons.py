"""The comparisons. Each comparison is a context that starts all processes and verifies every
contender's response."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from peers.support.process import Running
from peers.support.triton import started_triton

from . import clients, requests, servers
from .load import Contender, Pace, Request
from .requests import (
    InferenceCase,
    binary_request,
    graphpipe_request,
    grpc_request,
    json_request,
    legacy_grpc_request,
    legacy_request,
    predict_request,
    rows_request,
)
from .rounds import Comparison
from .variants import Variant

JSON_IMAGE = "JSON [1,3,224,224] → V2 gRPC"
BINARY_IMAGE = "binary REST [1,3,224,224] → V2 gRPC"
JSON_TINY = "JSON → V2 gRPC, tiny"
GRPC_TINY = "V2 gRPC → V2 gRPC, tiny"
GRPC_IMAGE = "V2 gRPC → V2 gRPC, 600 KB"
GRAPHPIPE_IMAGE = "GraphPipe → V2 gRPC, 600 KB"
LEGACY_IMAGE = "legacy HTTP → V2 gRPC, 600 KB"
ROWS_IMAGE = "TF Serving rows [1,224,224,3] → V2 gRPC"
PREDICT_IMAGE = "TF Serving gRPC → V2 gRPC, 600 KB"
OLD_HTTP_TINY = "legacy HTTP → legacy HTTP, tiny"
OLD_HTTP_IMAGE = "legacy HTTP → legacy HTTP, 600 KB"
OLD_GRPC_TINY = "legacy gRPC → legacy gRPC, tiny"
OLD_GRPC_IMAGE = "legacy gRPC → legacy gRPC, 600 KB"
JSON_LATENCY = "100 requests/s, JSON → V2 gRPC, tiny"
GRPC_LATENCY = "100 requests/s, V2 gRPC → V2 gRPC, tiny"
BINARY_SIZES = "binary REST → V2 gRPC, by size"
GRPC_SIZES = "V2 gRPC → V2 gRPC, by size"
JSON_ROUTES = "JSON → V2 gRPC, tiny, by routes"
GRPC_ROUTES = "V2 gRPC → V2 gRPC, tiny, by routes"
RATE = 1000
"""Requests per second of paced load."""
BY_H2LOAD = f"V2 gRPC → V2 gRPC, tiny, {RATE:,} requests/s from h2load"
BY_GRPCIO = f"V2 gRPC → V2 gRPC, tiny, {RATE:,} requests/s from grpcio"
BY_GRPC_GO = f"V2 gRPC → V2 gRPC, tiny, {RATE:,} requests/s from grpc-go"
WORKERS = f"V2 gRPC → V2 gRPC, tiny, {RATE:,} requests/s, by workers"
AGAIN = "the same again"
"""The name of the peer's second measurement. Its difference from the first measurement is noise."""
SAME_TENSOR = "infergate, the same tensor in V2"
REST_PROXY = "rest-proxy"
RELAY = "relay without features"
"""The name of the relay that represents the minimum cost."""

LARGEST = 256 * 2**20
LARGE_BODIES = {"limits": {"body": "320MiB", "connect_time": "10s"}}
_SIZES = tuple(1024 * 8**power for power in range(7))
"""Sizes from 1 KiB to 256 MiB."""
_ROUTES = (1, 10, 100, 1_000, 10_000)
_LATENCY_PACE = Pace(connections=1, rate=100)
_ONE_CONNECTION = Pace(connections=1)
_PACED = Pace(connections=16, rate=RATE)
"""A load below the capacity of one worker. At full load, the number of requests that a worker finds
at a time would depend on the number of workers and on the speed of the clients."""
_WORKERS = (1, 2, 4, 8)

Make = Callable[[InferenceCase, str], Request]
TINY, IMAGE = requests.tiny("echo-tiny"), requests.image("echo-image")
CHANNELS_LAST = requests.channels_last("echo-channels-last")
ECHO_CASES: dict[str, tuple[Make, InferenceCase]] = {
    JSON_TINY: (json_request, TINY),
    GRPC_TINY: (grpc_request, TINY),
    GRPC_IMAGE: (grpc_request, IMAGE),
    GRAPHPIPE_IMAGE: (graphpipe_request, IMAGE),
    LEGACY_IMAGE: (legacy_request, IMAGE),
    ROWS_IMAGE: (rows_request, CHANNELS_LAST),
    PREDICT_IMAGE: (predict_request, IMAGE),
}
"""Requests to a gateway that has only echo servers as backends."""
LEGACY_ECHO_CASES: dict[str, tuple[Make, InferenceCase]] = {
    OLD_HTTP_TINY: (legacy_request, requests.tiny("echo-old-http-tiny")),
    OLD_HTTP_IMAGE: (legacy_request, requests.image("echo-old-http-image")),
    OLD_GRPC_TINY: (legacy_grpc_request, requests.tiny("echo-old-grpc-tiny")),
    OLD_GRPC_IMAGE: (legacy_grpc_request, requests.image("echo-old-grpc-image")),
}
"""Requests to a gateway whose echo servers respond like legacy servers."""


def proxied(
    gateway: servers.Proxy, make: Make, case: InferenceCase, server: int, variant: str
) -> Contender:
    """Return the contender that sends ``case`` through ``gateway``."""
    over_grpc = make in {grpc_request, legacy_grpc_request, predict_request}
    address = gateway.grpc if over_grpc else gateway.http
    return Contender(f"infergate ({variant})", make(case, address), gateway.pid, server, variant)


@contextmanager
def old_echo(make: Make, case: InferenceCase, folder: Path) -> Iterator[tuple[Running, str]]:
    """Start a legacy echo server for ``case``. Yield the server and its URL with its protocol."""
    if make is legacy_request:
        with servers.http_echo(requests.legacy_response(case), folder) as echo:
            yield echo, f"trtis-http+http://{echo.addresses[0]}"
    else:
        with servers.echo(requests.legacy_grpc_response(case), folder) as echo:
            yield echo, f"trtis-grpc+grpc://{echo.addresses[0]}"


def missing_peers() -> Iterator[str]:
    """Yield a sentence for each peer or client that is missing."""
    if not os.environ.get(servers.REST_PROXY):
        yield (
            "rest-proxy was not measured, because no package contains it; "
            f"set {servers.REST_PROXY} to the path of its binary to measure it"
        )
    try:
        clients.grpc_go()
    except RuntimeError as error:
        yield f"grpc-go was not measured: {error}"


@contextmanager
def rows(variants: Sequence[Variant], folder: Path) -> Iterator[list[Comparison]]:
    """Compare infergate with Triton's REST server, Envoy and rest-proxy. One peer runs twice to
    show the noise, and a relay shows the minimum cost. Also measure the latency that infergate adds
    at a few requests a second."""
    image = requests.image("id_image")
    with ExitStack() as stack:
        triton = stack.enter_context(started_triton())
        echoes = {
            case: stack.enter_context(servers.echo(case.response(), folder))
            for case in (TINY, IMAGE, CHANNELS_LAST)
        }
        tiny, large, _ = echoes.values()
        plain = stack.enter_context(servers.http_echo(TINY.json_response(), folder))
        urls = {case: f"grpc://{echo.addresses[0]}" for case, echo in echoes.items()}
        config = servers.routed({**urls, image: f"grpc://{triton.grpc}"})
        gateways = _gateways(variants, config, folder, stack)
        envoy, envoy2 = (
            stack.enter_context(servers.envoy(plain.addresses[0], echo.addresses[0], folder))
            for echo in (tiny, large)
        )
        others = _other_proxies(tiny, folder, stack)

        def all_variants(make: Make, case: InferenceCase) -> list[Contender]:
            server = echoes[case].pid if case in echoes else triton.pid
            return [proxied(each, make, case, server, name) for name, each in gateways.items()]

        def against_triton(name: str, make: Make) -> Comparison:
            direct = Contender("Triton's REST", make(image, triton.http), 0, triton.pid)
            return Comparison(name, (*all_variants(make, image), direct))

        def against_envoy(name: str, *, repeats_peer: bool = False) -> Comparison:
            make, case = ECHO_CASES[name]
            if case is IMAGE:
                request = grpc_request(case, envoy2.grpc)
                peers = [Contender("Envoy, V2 gRPC", request, envoy2.pid, large.pid)]
            elif make is grpc_request:
                request = grpc_request(case, envoy.grpc)
                peers = [Contender("Envoy, V2 gRPC", request, envoy.pid, tiny.pid)]
            else:
                request = make(case, envoy.http)
                peers = [Contender("Envoy, HTTP/1.1", request, envoy.pid, plain.pid)]
            if repeats_peer:
                again = Contender(AGAIN, request, peers[0].proxy, peers[0].server)
                peers.append(again)
            return Comparison(name, (*all_variants(make, case), *peers, *others.get(name, ())))

        def against_v2(name: str, make_v2: Make) -> Comparison:
            make, case = ECHO_CASES[name]
            gateway = next(iter(gateways.values()))
            peer = proxied(gateway, make_v2, case, echoes[case].pid, "")
            return Comparison(name, (*all_variants(make, case), replace(peer, name=SAME_TENSOR)))

        def latency(name: str, make: Make, server: Running, envoy_address: str) -> Comparison:
            direct = Contender("the echo", make(TINY, server.addresses[0]), 0, server.pid)
            proxy = Contender("Envoy", make(TINY, envoy_address), envoy.pid, server.pid)
            return Comparison(name, (*all_variants(make, TINY), direct, proxy), pace=_LATENCY_PACE)

        yield [
            against_triton(JSON_IMAGE, json_request),
            against_triton(BINARY_IMAGE, binary_request),
            against_envoy(JSON_TINY),
            against_envoy(GRPC_TINY, repeats_peer=True),
            against_envoy(GRPC_IMAGE, repeats_peer=True),
            against_envoy(GRAPHPIPE_IMAGE),
            against_envoy(LEGACY_IMAGE),
            against_v2(ROWS_IMAGE, json_request),
            against_v2(PREDICT_IMAGE, grpc_request),
            latency(JSON_LATENCY, json_request, plain, envoy.http),
            latency(GRPC_LATENCY, grpc_request, tiny, envoy.grpc),
        ]


def _other_proxies(tiny: Running, folder: Path, stack: ExitStack) -> dict[str, list[Contender]]:
    """Return the relays, and rest-proxy if it is installed, by comparison."""
    server = tiny.addresses[0]

    def contender(name: str, make: Make, proxy: AbstractContextManager[servers.Proxy]) -> Contender:
        created = proxied(stack.enter_context(proxy), make, TINY, tiny.pid, "")
        return replace(created, name=name)

    json_floor = servers.relay(server, folder, TINY.message())
    contenders = {
        GRPC_TINY: [contender(RELAY, grpc_request, servers.relay(server, folder))],
        JSON_TINY: [contender(RELAY, json_request, json_floor)],
    }
    if binary := os.environ.get(servers.REST_PROXY):
        proxy = servers.rest_proxy(binary, server)
        contenders[JSON_TINY].append(contender(REST_PROXY, json_request, proxy))
    return contenders


def _gateways(
    variants: Sequence[Variant], config: dict[str, object], folder: Path, stack: ExitStack
) -> dict[str, servers.Proxy]:
    """Start a gateway of each variant."""
    return {
        each.name: stack.enter_context(servers.infergate(config, each, folder)) for each in variants
    }


@contextmanager
def real_clients(variants: Sequence[Variant], folder: Path) -> Iterator[list[Comparison]]:
    """Compare calls through infergate, Envoy and a relay, from h2load and from real clients, whose
    headers and frames differ."""
    commands: dict[str, tuple[str, ...]] = {BY_H2LOAD: (), BY_GRPCIO: clients.grpcio()}
    try:
        commands[BY_GRPC_GO] = clients.grpc_go()
    except RuntimeError as error:
        print(f"grpc-go: {error}", file=sys.stderr)
    with ExitStack() as stack:
        echo = stack.enter_context(servers.echo(TINY.response(), folder))
        server = echo.addresses[0]
        config = servers.routed({TINY: f"grpc://{server}"})
        gateways = _gateways(variants, config, folder, stack)
        group = [
            proxied(each, grpc_request, TINY, echo.pid, name) for name, each in gateways.items()
        ]
        for name, proxy in (
            ("Envoy, V2 gRPC", servers.envoy(server, server, folder)),
            (RELAY, servers.relay(server, folder)),
        ):
            peer = proxied(stack.enter_context(proxy), grpc_request, TINY, echo.pid, "")
            group.append(replace(peer, name=name))
        yield [
            Comparison(name, tuple(replace(each, client=command) for each in group), pace=_PACED)
            for name, command in commands.items()
        ]


@contextmanager
def sizes(variants: Sequence[Variant], folder: Path) -> Iterator[list[Comparison]]:
    """Compare requests with one tensor of 1 KiB to 256 MiB."""
    cases = {size: requests.flat(f"echo-{size}", size) for size in _SIZES}
    with ExitStack() as stack:
        echoes = {
            size: stack.enter_context(servers.echo(case.response(), folder))
            for size, case in cases.items()
        }
        urls = {case: f"grpc://{echoes[size].addresses[0]}" for size, case in cases.items()}
        config = servers.routed(urls) | LARGE_BODIES
        gateways = _gateways(variants, config, folder, stack)
        yield [
            Comparison(
                name,
                tuple(
                    proxied(gateway, make, case, echoes[size].pid, variant)
                    for variant, gateway in gateways.items()
                ),
                at=size, pace=_ONE_CONNECTION, min_requests=1,
            )
            for size, case in cases.items()
            for name, make in ((BINARY_SIZES, binary_request), (GRPC_SIZES, grpc_request))
        ]  # fmt: skip


@contextmanager
def routes(variant: Variant, folder: Path) -> Iterator[list[Comparison]]:
    """Compare the same tiny request, which matches the last route, through gateways with more and
    more routes."""
    with ExitStack() as stack:
        echo = stack.enter_context(servers.echo(TINY.response(), folder))
        urls = {TINY: f"grpc://{echo.addresses[0]}"}
        gateways = {
            count: stack.enter_context(
                servers.infergate(servers.routed(urls, unused=count - 1), variant, folder)
            )
            for count in _ROUTES
        }
        yield [
            Comparison(name, (proxied(gateway, make, TINY, echo.pid, variant.name),), at=count)
            for count, gateway in gateways.items()
            for name, make in ((JSON_ROUTES, json_request), (GRPC_ROUTES, grpc_request))
        ]


@contextmanager
def workers(variant: Variant, folder: Path) -> Iterator[list[Comparison]]:
    """Compare gateways with more and more workers under the same load."""
    with ExitStack() as stack:
        echo = stack.enter_context(servers.echo(TINY.response(), folder))
        config = servers.routed({TINY: f"grpc://{echo.addresses[0]}"})
        gateways = {
            count: stack.enter_context(
                servers.infergate(config | {"workers": count}, variant, folder)
            )
            for count in _WORKERS
        }
        yield [
            Comparison(
                WORKERS, (proxied(gateway, grpc_request, TINY, echo.pid, variant.name),), at=count,
                pace=_PACED,
            )
            for count, gateway in gateways.items()
        ]  # fmt: skip
