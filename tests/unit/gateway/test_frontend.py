"""How a frontend passes through, translates or rejects requests."""

from typing import Any

import pytest
from fakes import LineCodec, Memory, WireBackend

from contexts import new_context
from infergate.codecs.base import OutputsNeedTranslationError
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.wire import RpcRequest, RpcResponse
from infergate.gateway.frontend import Frontend
from infergate.gateway.gateway import RoutingGateway
from infergate.routing.table import Rewrite, Route, RouteTable


def frontend(backend: Any, codec: LineCodec, **route: Any) -> Frontend[RpcRequest, RpcResponse]:
    created = RoutingGateway(RouteTable([Route("m", "b", **route)]), {"b": backend}, {})
    return Frontend(codec, created, DEFAULT_LIMITS)


async def test_a_request_in_the_backends_protocol_is_not_decoded() -> None:
    codec = LineCodec()
    backend = WireBackend("b", LineCodec())
    context = new_context()
    response = await frontend(backend, codec).respond(RpcRequest("infer m 1 id"), context)
    assert response.message == [b"from the server"]
    assert response.details == "unchanged/unchanged"
    assert [w.method for w in backend.sent] == ["infer m 1 x"]
    assert codec.decoded == 0
    assert context.record.pipeline == "forward"


async def test_a_request_with_a_rewritten_model_is_not_decoded() -> None:
    codec = LineCodec()
    backend = WireBackend("b", LineCodec())
    rewrite = Rewrite("real", "4")
    response = await frontend(backend, codec, rewrite=rewrite).respond(
        RpcRequest("infer m 2 id"), new_context()
    )
    assert [w.method for w in backend.sent] == ["infer real 4 x"]
    assert response.details == "m/2"
    assert codec.decoded == 0


@pytest.mark.parametrize(
    ("backend_codec", "can_pass_through", "rewrite"),
    [
        (LineCodec("another"), True, Rewrite()),
        (LineCodec(), False, Rewrite()),
        (LineCodec(), True, Rewrite(inputs={"a": "b"})),
    ],
    ids=["another protocol", "an option changes the form", "tensors are renamed"],
)
async def test_inferences_that_cannot_pass_through_are_translated(
    backend_codec: LineCodec, can_pass_through: bool, rewrite: Rewrite
) -> None:
    codec = LineCodec()
    codec.can_pass_through = can_pass_through
    backend = WireBackend("b", backend_codec)
    context = new_context()
    response = await frontend(backend, codec, rewrite=rewrite).respond(
        RpcRequest("infer m 1 id"), context
    )
    assert b"InferResponse" in bytes(response.message[0])
    assert not backend.sent
    assert context.record.pipeline == "translate"


async def test_tensor_formats_that_the_server_rejects_are_translated() -> None:
    codec = LineCodec()
    backend = WireBackend("b", LineCodec())
    context = new_context()
    await frontend(backend, codec).respond(RpcRequest("infer m 1 odd"), context)
    assert codec.decoded == 1
    assert not backend.sent
    assert context.record.pipeline == "translate"


@pytest.mark.parametrize(
    "backend", [WireBackend("b", LineCodec()), Memory("b")], ids=["pass-through", "translation"]
)
async def test_both_pipelines_reject_an_invalid_request_and_send_nothing(backend: Any) -> None:
    context = new_context()
    response = await frontend(backend, LineCodec()).respond(RpcRequest("infer m 1 bad"), context)
    assert response.details == "bad_request: bad tensor"
    assert context.record.outcome == "bad_request"
    assert not backend.requests
    assert not getattr(backend, "sent", [])


async def test_a_trusted_routes_message_is_not_parsed() -> None:
    backend = WireBackend("b", LineCodec())
    handler = frontend(backend, LineCodec(), validate=False)
    assert (await handler.respond(RpcRequest("infer m 1 bad"), new_context())).code == 0


@pytest.mark.parametrize("validate", [True, False])
async def test_a_passed_through_sequence_has_the_backends_model_name(validate: bool) -> None:
    backend = WireBackend("b", LineCodec())
    handler = frontend(backend, LineCodec(), rewrite=Rewrite(model="theirs"), validate=validate)
    await handler.respond(RpcRequest("infer m 1 id", metadata={"sequence": "s"}), new_context())
    await handler.respond(RpcRequest("infer m 1 id"), new_context())
    assert backend.sequences == [("theirs", "s"), None]


async def test_one_endpoint_needs_no_sequence_lookup() -> None:
    backend = WireBackend("b", LineCodec())
    backend.has_several_endpoints = False
    backend.has_queue = False
    handler = frontend(backend, LineCodec())
    await handler.respond(RpcRequest("infer m 1 id", metadata={"sequence": "s"}), new_context())
    assert backend.sequences == [None]


async def test_a_backends_error_is_written_in_the_clients_protocol() -> None:
    backend = WireBackend("b", LineCodec())
    backend.reply = RpcResponse(code=13, details="it broke")
    context = new_context()
    response = await frontend(backend, LineCodec()).respond(RpcRequest("infer m 1 id"), context)
    assert response.details == "backend_error: it broke"
    assert context.record.outcome == "backend_error"


async def test_other_operations_need_no_pipeline() -> None:
    created = frontend(Memory("b"), LineCodec())
    response = await created.respond(RpcRequest("ready m"), new_context())
    assert response.message == [b"HealthStatus(ok=True)"]


async def test_an_unreadable_request_gets_an_error() -> None:
    context = new_context()
    response = await frontend(Memory("b"), LineCodec()).respond(RpcRequest("?"), context)
    assert response.details == "bad_request: no such verb"
    assert context.record.protocol == "line"


async def test_a_bug_fails_only_one_request(caplog: pytest.LogCaptureFixture) -> None:
    backend = Memory("b", RuntimeError("secret detail"))  # type: ignore[arg-type]
    handler = frontend(backend, LineCodec())
    response = await handler.respond(RpcRequest("infer m 1 id"), new_context())
    assert response.details == "internal: internal error"
    assert "secret detail" in caplog.text
    backend.answer = None
    assert (await handler.respond(RpcRequest("infer m 1 id"), new_context())).code == 0


def test_a_transport_rejection_has_the_protocols_format() -> None:
    context = new_context()
    response = frontend(Memory("b"), LineCodec()).refuse(
        GatewayError(Kind.TOO_LARGE, "too large"), RpcRequest("infer m 1 id"), context
    )
    assert response.details == "too_large: too large"
    assert context.record.outcome == "too_large"


async def test_outputs_that_need_translation_are_translated() -> None:
    """The inference is translated and sent again, unless it belongs to a sequence."""

    class Refusing(LineCodec):
        def rewrite_response(self, *_: Any) -> RpcResponse:
            raise OutputsNeedTranslationError(Kind.BAD_REQUEST, "not in JSON")

    backend = WireBackend("b", LineCodec())
    sequence = RpcRequest("infer m 1 id", metadata={"sequence": "s"})
    result = await frontend(backend, Refusing()).respond(sequence, new_context())
    assert result.details == "bad_request: not in JSON"
    assert (len(backend.sent), len(backend.requests)) == (1, 0)

    codec = Refusing()
    handler = frontend(backend, codec)
    for times in (1, 2):
        context = new_context()
        response = await handler.respond(RpcRequest("infer m 1 id"), context)
        assert b"InferResponse" in bytes(response.message[0])
        assert context.record.pipeline == "translate"
        assert (len(backend.sent), codec.decoded) == (2, times)
    await handler.respond(sequence, new_context())
    assert len(backend.sent) == 2
