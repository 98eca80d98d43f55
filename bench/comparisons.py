"""The comparisons. Each is a context that starts all processes and verifies every contender's
response."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from peers.support.process import Running
from peers.support.triton import started_triton

from . import requests, servers
from .load import Contender, Pace, Request
from .requests import (
    Work,
    binary_request,
    graphpipe_request,
    grpc_request,
    json_request,
    legacy_grpc_request,
    legacy_request,
)
from .rounds import Comparison

JSON_IMAGE = "JSON [1,3,224,224] → V2 gRPC"
BINARY_IMAGE = "binary REST [1,3,224,224] → V2 gRPC"
JSON_TINY = "JSON → V2 gRPC, tiny"
GRPC_TINY = "V2 gRPC → V2 gRPC, tiny"
GRPC_IMAGE = "V2 gRPC → V2 gRPC, 600 KB"
GRAPHPIPE_IMAGE = "GraphPipe → V2 gRPC, 600 KB"
LEGACY_IMAGE = "legacy HTTP → V2 gRPC, 600 KB"
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
TWO_WORKERS = "two workers, JSON of 1,024 numbers → embedded model"
AGAIN = "the same again"
"""The peer a second time: the difference between the two is noise."""

LARGEST = 256 * 2**20
LARGE_BODIES = {"limits": {"body": "320MiB", "connect_time": "10s"}}
_SIZES = tuple(1024 * 8**power for power in range(7))
"""1 KiB to 256 MiB."""
_ROUTES = (1, 10, 100, 1_000, 10_000)
_APPOINTED = Pace(rate=100)
_ONE_CONNECTION = Pace(connections=1)
_BUSY = Pace(connections=16)
"""Enough that no worker waits for the load generator between two requests."""

Make = Callable[[Work, str], Request]
TINY, IMAGE = requests.tiny("echo-tiny"), requests.image("echo-image")
BEFORE_ECHOES: dict[str, tuple[Make, Work]] = {
    JSON_TINY: (json_request, TINY),
    GRPC_TINY: (grpc_request, TINY),
    GRPC_IMAGE: (grpc_request, IMAGE),
    GRAPHPIPE_IMAGE: (graphpipe_request, IMAGE),
    LEGACY_IMAGE: (legacy_request, IMAGE),
}
"""Requests to a gateway in front of echoes only."""
BEFORE_OLD_ECHOES: dict[str, tuple[Make, Work]] = {
    OLD_HTTP_TINY: (legacy_request, requests.tiny("echo-old-http-tiny")),
    OLD_HTTP_IMAGE: (legacy_request, requests.image("echo-old-http-image")),
    OLD_GRPC_TINY: (legacy_grpc_request, requests.tiny("echo-old-grpc-tiny")),
    OLD_GRPC_IMAGE: (legacy_grpc_request, requests.image("echo-old-grpc-image")),
}
"""Requests to a gateway in front of echoes that respond as legacy servers."""


def through(gateway: servers.Proxy, make: Make, work: Work, server: int, engine: str) -> Contender:
    """The contender that sends ``work`` through ``gateway``."""
    over_grpc = make in {grpc_request, legacy_grpc_request}
    address = gateway.grpc if over_grpc else gateway.http
    return Contender(f"infergate ({engine})", make(work, address), gateway.pid, server, engine)


@contextmanager
def old_echo(make: Make, work: Work, folder: Path) -> Iterator[tuple[Running, str]]:
    """Start a legacy echo for ``work``; yield it and its URL with its protocol."""
    if make is legacy_request:
        with servers.http_echo(requests.legacy_answer(work), folder) as echo:
            yield echo, f"trtis-http+http://{echo.addresses[0]}"
    else:
        with servers.echo(requests.legacy_grpc_answer(work), folder) as echo:
            yield echo, f"trtis-grpc+grpc://{echo.addresses[0]}"


@contextmanager
def rows(engines: Sequence[str], folder: Path) -> Iterator[list[Comparison]]:
    """infergate next to Triton's REST server and Envoy, with one peer twice for the noise; and the
    latency that infergate adds at a few requests a second."""
    image = requests.image("id_image")
    with ExitStack() as stack:
        triton = stack.enter_context(started_triton())
        echoes = {
            work: stack.enter_context(servers.echo(work.answer(), folder)) for work in (TINY, IMAGE)
        }
        tiny, large = echoes.values()
        plain = stack.enter_context(servers.http_echo(TINY.json_answer(), folder))
        urls = {work: f"grpc://{echo.addresses[0]}" for work, echo in echoes.items()}
        config = servers.routed({**urls, image: f"grpc://{triton.grpc}"})
        gateways = {
            engine: stack.enter_context(servers.infergate(config, engine, folder))
            for engine in engines
        }
        envoy, envoy2 = (
            stack.enter_context(servers.envoy(plain.addresses[0], echo.addresses[0], folder))
            for echo in (tiny, large)
        )

        def ours(make: Make, work: Work) -> list[Contender]:
            server = echoes[work].pid if work in echoes else triton.pid
            return [through(each, make, work, server, engine) for engine, each in gateways.items()]

        def beside_triton(name: str, make: Make) -> Comparison:
            direct = Contender("Triton's REST", make(image, triton.http), 0, triton.pid)
            return Comparison(name, (*ours(make, image), direct))

        def beside_envoy(name: str, *, twice: bool = False) -> Comparison:
            make, work = BEFORE_ECHOES[name]
            if work is IMAGE:
                request = grpc_request(work, envoy2.grpc)
                peers = [Contender("Envoy, V2 gRPC", request, envoy2.pid, large.pid)]
            elif make is grpc_request:
                request = grpc_request(work, envoy.grpc)
                peers = [Contender("Envoy, V2 gRPC", request, envoy.pid, tiny.pid)]
            else:
                request = make(work, envoy.http)
                peers = [Contender("Envoy, HTTP/1.1", request, envoy.pid, plain.pid)]
            if twice:
                again = Contender(AGAIN, request, peers[0].proxy, peers[0].server)
                peers.append(again)
            return Comparison(name, (*ours(make, work), *peers))

        def delayed(name: str, make: Make, server: Running, by_envoy: str) -> Comparison:
            direct = Contender("the echo", make(TINY, server.addresses[0]), 0, server.pid)
            proxy = Contender("Envoy", make(TINY, by_envoy), envoy.pid, server.pid)
            return Comparison(name, (*ours(make, TINY), direct, proxy), pace=_APPOINTED)

        yield [
            beside_triton(JSON_IMAGE, json_request),
            beside_triton(BINARY_IMAGE, binary_request),
            beside_envoy(JSON_TINY),
            beside_envoy(GRPC_TINY, twice=True),
            beside_envoy(GRPC_IMAGE, twice=True),
            beside_envoy(GRAPHPIPE_IMAGE),
            beside_envoy(LEGACY_IMAGE),
            delayed(JSON_LATENCY, json_request, plain, envoy.http),
            delayed(GRPC_LATENCY, grpc_request, tiny, envoy.grpc),
        ]


@contextmanager
def sizes(engines: Sequence[str], folder: Path) -> Iterator[list[Comparison]]:
    """One tensor at a time, from small to large."""
    works = {size: requests.flat(f"echo-{size}", size) for size in _SIZES}
    with ExitStack() as stack:
        echoes = {
            size: stack.enter_context(servers.echo(work.answer(), folder))
            for size, work in works.items()
        }
        urls = {work: f"grpc://{echoes[size].addresses[0]}" for size, work in works.items()}
        config = servers.routed(urls) | LARGE_BODIES
        gateways = {
            engine: stack.enter_context(servers.infergate(config, engine, folder))
            for engine in engines
        }
        yield [
            Comparison(
                name,
                tuple(
                    through(gateway, make, work, echoes[size].pid, engine)
                    for engine, gateway in gateways.items()
                ),
                at=size, pace=_ONE_CONNECTION, min_requests=1,
            )
            for size, work in works.items()
            for name, make in ((BINARY_SIZES, binary_request), (GRPC_SIZES, grpc_request))
        ]  # fmt: skip


@contextmanager
def routes(engine: str, folder: Path) -> Iterator[list[Comparison]]:
    """The same tiny request through gateways with more and more routes; it matches the last one."""
    with ExitStack() as stack:
        echo = stack.enter_context(servers.echo(TINY.answer(), folder))
        urls = {TINY: f"grpc://{echo.addresses[0]}"}
        gateways = {
            count: stack.enter_context(
                servers.infergate(servers.routed(urls, more=count - 1), engine, folder)
            )
            for count in _ROUTES
        }
        yield [
            Comparison(name, (through(gateway, make, TINY, echo.pid, engine),), at=count)
            for count, gateway in gateways.items()
            for name, make in ((JSON_ROUTES, json_request), (GRPC_ROUTES, grpc_request))
        ]


@contextmanager
def workers(engine: str, folder: Path) -> Iterator[list[Comparison]]:
    """Two workers next to one. The model is embedded, no helper is used, and a request is
    expensive enough (20 KB of JSON) that the load generator, which shares the processors, takes
    little CPU."""
    embedded = requests.flat("identity", 4096)
    with ExitStack() as stack:
        gateways = [
            stack.enter_context(
                servers.infergate(
                    servers.routed({embedded: ""}) | {"workers": count, "helpers": 0},
                    engine,
                    folder,
                )
            )
            for count in (2, 1)
        ]
        two, one = (
            Contender(name, json_request(embedded, each.http), each.pid, 0, of)
            for each, name, of in zip(gateways, ("two workers", "one"), (engine, ""), strict=True)
        )
        yield [Comparison(TWO_WORKERS, (two, one), pace=_BUSY)]
