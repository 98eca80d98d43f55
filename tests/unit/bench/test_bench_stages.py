from __future__ import annotations

import pytest
from bench import stages
from bench.stages import folded, stage_of

AT = "(/somewhere/infergate/{}.py:12)"
RUN = ["<module> " + AT.format("__main__"), "serve " + AT.format("runtime/serve")]


def frames(*inner: str) -> list[str]:
    """``function module`` of each frame, outermost first, inside a running server."""
    return [*RUN, *(f"{each.split()[0]} {AT.format(each.split()[1])}" for each in inner)]


@pytest.mark.parametrize(
    ("inner", "stage"),
    [
        ((), stages.LOOP),
        (("Connection.data_received transport/http_connection",), stages.CLIENTS),
        (("Connection.buffer_updated transport/h1_server", "read transport/h1/head"),
         stages.CLIENTS),
        (("H1Exchange.data_received transport/h1_client", "read transport/h1/answer"),
         stages.BACKENDS),
        (("ServerLink.data_received transport/h2_server", "feed transport/h2/reader"),
         stages.CLIENTS),
        (("Link.data_received transport/h2_link", "feed transport/h2/reader"), stages.BACKENDS),
        (("Frontend.respond gateway/frontend", "RouteTable.find routing/table"), stages.GATEWAY),
        (("Frontend.respond gateway/frontend", "V2Rest.parse_request codecs/v2_rest/codec",
          "read codecs/v2_rest/small", "check core/tensor"), stages.REQUEST_IN),
        (("RemoteBackend.perform backends/remote", "V2Grpc.build_request codecs/v2_grpc/codec"),
         stages.REQUEST_OUT),
        (("RemoteBackend.perform backends/remote", "V2Grpc.parse_response codecs/v2_grpc/codec"),
         stages.ANSWER_IN),
        (("Forward.infer gateway/frontend", "V2Grpc.shield codecs/v2_grpc/codec"),
         stages.REQUEST_IN),
        (("Frontend.respond gateway/frontend", "Metrics.count observe/metrics"), stages.OBSERVE),
        (("V2Rest.build_response codecs/v2_rest/codec",), stages.ANSWER_OUT),
        (("Frontend.respond gateway/frontend", "helper codecs/v2_rest/unknown"), stages.GATEWAY),
    ],
)  # fmt: skip
def test_stage_of(inner: tuple[str, ...], stage: str) -> None:
    assert stage_of(frames(*inner)) == stage


def test_what_the_library_calls_belongs_to_its_caller() -> None:
    stack = [*frames("Connection._send transport/http_connection"), "join (/lib/posixpath.py:3)"]
    assert stage_of(stack) == stages.CLIENTS


def test_only_main_threads_are_folded() -> None:
    inside = ";".join(frames("Frontend.respond gateway/frontend"))
    found = folded(
        [
            f'process 7:"python -m infergate";thread (7): MainThread;{inside} 3',
            f"thread (7): MainThread;{inside} 2",
            f'process 7:"python -m infergate";thread (9): Thread-1;{inside} 50',
            f'process 7:"infergate";process 8:"python -c a; b";thread (8): MainThread;{inside} 4',
        ]
    )
    assert found == {stages.GATEWAY: 9}
