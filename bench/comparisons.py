"""What is compared with what. The first contender of each comparison is infergate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from peers.support.triton import started_triton

from . import requests, servers
from .load import Contender, Request
from .requests import Work, binary_request, graphpipe_request, grpc_request, json_request


@dataclass(frozen=True)
class Comparison:
    """Contenders that answer the same question."""

    name: str
    contenders: tuple[Contender, ...]


@contextmanager
def all_comparisons(folder: Path) -> Iterator[list[Comparison]]:
    """Every process started, and every contender's answer found right."""
    tiny_echo, image_echo = requests.tiny("echo-tiny"), requests.image("echo-image")
    tiny, image = requests.tiny("id_FP32"), requests.image("id_image")
    with ExitStack() as stack:
        triton = stack.enter_context(started_triton())
        echo1 = stack.enter_context(servers.echo(tiny_echo.answer(), folder))
        echo2 = stack.enter_context(servers.echo(image_echo.answer(), folder))
        routes = {work.model: triton.grpc for work in (tiny, image)}
        routes |= {"echo-tiny": echo1.addresses[0], "echo-image": echo2.addresses[0]}
        ours = stack.enter_context(servers.infergate(routes, folder))
        envoy1 = stack.enter_context(servers.envoy(triton.http, echo1.addresses[0], folder))
        envoy2 = stack.enter_context(servers.envoy(triton.http, echo2.addresses[0], folder))

        def through_us(name: str, make: Callable[[Work, str], Request], work: Work) -> Contender:
            grpc = make is grpc_request
            server = {echo.model: pid for echo, pid in
                      ((tiny_echo, echo1.pid), (image_echo, echo2.pid))}  # fmt: skip
            request = make(work, ours.grpc if grpc else ours.http)
            return Contender(name, request, ours.pid, server.get(work.model, triton.pid))

        def direct(make: Callable[[Work, str], Request], work: Work) -> Contender:
            return Contender("Triton REST, no gateway", make(work, triton.http), 0, triton.pid)

        def from_grpc(name: str, work: Work, envoy: servers.Proxy, server: int) -> Comparison:
            return Comparison(name, (
                through_us("infergate → echo", grpc_request, work),
                Contender("Envoy → echo", grpc_request(work, envoy.grpc), envoy.pid, server),
            ))  # fmt: skip

        yield [
            Comparison("JSON [1,3,224,224]", (
                through_us("infergate → Triton gRPC", json_request, image),
                direct(json_request, image),
            )),
            Comparison("binary REST [1,3,224,224]", (
                through_us("infergate → Triton gRPC", binary_request, image),
                direct(binary_request, image),
            )),
            from_grpc("gRPC tiny", tiny_echo, envoy1, echo1.pid),
            from_grpc("gRPC [1,3,224,224]", image_echo, envoy2, echo2.pid),
            Comparison("GraphPipe [1,3,224,224], no model", (
                through_us("infergate, GraphPipe → gRPC echo", graphpipe_request, image_echo),
                Contender("Envoy, gRPC → gRPC echo", grpc_request(image_echo, envoy2.grpc),
                          envoy2.pid, echo2.pid),
            )),
            Comparison("JSON tiny", (
                through_us("infergate → Triton gRPC", json_request, tiny),
                direct(json_request, tiny),
                Contender("Envoy → Triton REST", json_request(tiny, envoy1.http), envoy1.pid,
                          triton.pid),
            )),
            Comparison("JSON tiny, no model", (
                through_us("infergate, JSON → gRPC echo", json_request, tiny_echo),
                Contender("Envoy, gRPC → gRPC echo", grpc_request(tiny_echo, envoy1.grpc),
                          envoy1.pid, echo1.pid),
            )),
        ]  # fmt: skip
