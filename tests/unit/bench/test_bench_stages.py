from pathlib import Path

import pytest
from bench import stages
from bench.stages import folded, stage_of

import infergate
from infergate.codecs import base

FILE = "(/somewhere/infergate/{}.py:12)"
OUTER = ["<module> " + FILE.format("__main__"), "serve " + FILE.format("runtime/serve")]


def frames(*inner: str) -> list[str]:
    """Return the stack of a running server. Each of ``inner`` is ``function module``."""
    return [*OUTER, *(f"{each.split()[0]} {FILE.format(each.split()[1])}" for each in inner)]


@pytest.mark.parametrize(
    ("inner", "stage"),
    [
        ((), stages.LOOP),
        (("Connection.data_received transport/compat/aiohttp_server",), stages.CLIENTS),
        (("Connection.buffer_updated transport/http1/server", "read transport/http1/request_head"),
         stages.CLIENTS),
        (("H1ClientConnection.data_received transport/http1/client",
          "read transport/http1/response_head"), stages.BACKENDS),
        (("Http2Protocol.data_received transport/grpc/connection",
          "UnaryCall.begin transport/grpc/server_unary_call"), stages.CLIENTS),
        (("Http2Protocol.data_received transport/grpc/connection",
          "receive transport/http2/connection"), stages.HTTP2),
        (("Frontend.respond gateway/frontend", "RouteTable.find routing/table"), stages.GATEWAY),
        (("Frontend.respond gateway/frontend", "V2Rest.parse_request codecs/v2_rest/codec",
          "read codecs/v2_rest/small_json_reader", "check core/tensor"), stages.REQUEST_IN),
        (("RemoteBackend.perform backends/remote", "V2Grpc.build_request codecs/v2_grpc/codec"),
         stages.REQUEST_OUT),
        (("RemoteBackend.perform backends/remote", "V2Grpc.parse_response codecs/v2_grpc/codec"),
         stages.RESPONSE_IN),
        (("PassThrough.infer gateway/frontend", "V2Grpc.validate codecs/v2_grpc/codec"),
         stages.REQUEST_IN),
        (("Frontend.respond gateway/frontend", "Metrics.count observe/metrics"), stages.OBSERVE),
        (("V2Rest.build_response codecs/v2_rest/codec",), stages.RESPONSE_OUT),
        (("Frontend.respond gateway/frontend", "helper codecs/v2_rest/unknown"), stages.GATEWAY),
    ],
)  # fmt: skip
def test_a_stack_belongs_to_a_stage(inner: tuple[str, ...], stage: str) -> None:
    assert stage_of(frames(*inner)) == stage


def test_every_module_and_codec_method_with_a_stage_exists() -> None:
    package = Path(infergate.__file__).parent
    modules = [path.relative_to(package).as_posix() for path in package.rglob("*.py")]
    for prefix in (*stages._MODULES, *stages._EITHER_SIDE):
        assert any(module.startswith(prefix) for module in modules), prefix
    methods = {
        name for each in vars(base).values() if isinstance(each, type) for name in vars(each)
    }
    assert set(stages._CONTRACT) <= methods


def test_library_calls_count_for_their_caller() -> None:
    caller = frames("Connection._send transport/compat/aiohttp_server")
    stack = [*caller, "join (/lib/posixpath.py:3)"]
    assert stage_of(stack) == stages.CLIENTS


def test_only_the_main_thread_is_folded() -> None:
    inside = ";".join(frames("Frontend.respond gateway/frontend"))
    counts = ("(7): MainThread", 3), ("(7): MainThread", 2), ("(9): Thread-1", 50)
    samples = folded(f"thread {thread};{inside} {count}" for thread, count in counts)
    assert samples == {stages.GATEWAY: 5}
