"""Request hooks around the inferences of a route."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

import plugin_kit
from infergate.config.schema import Config
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.region_ref import RegionRef
from infergate.core.request_context import RequestContext
from infergate.core.tensor import Tensor, tensor_from_array
from infergate.gateway.gateway import RoutingGateway
from infergate.gateway.hooked_route import HookedRoute
from infergate.gateway.route_plan import RoutePlan
from infergate.plugin_host import runner
from infergate.runtime.assemble import assemble
from plugin_kit import Hook
from waiting import until


@pytest.fixture(autouse=True)
def cleared_records() -> Iterator[None]:
    plugin_kit.RELEASE.clear()
    Hook.events.clear()
    Hook.calls.clear()
    yield
    plugin_kit.RELEASE.set()


@asynccontextmanager
async def serving(*hooks: dict[str, Any], model: str = "Count") -> AsyncIterator[RoutingGateway]:
    """Serve a model that doubles X behind ``hooks``. Keys of a hook other than ``timeout`` and
    ``on_error`` are its options. The timeout is short only if the hook waits or blocks, so that no
    other outcome depends on the speed of the machine."""
    hook_settings: dict[str, Any] = {}
    for number, hook in enumerate(hooks):
        never_ends = not {"waits", "blocks"}.isdisjoint(hook.values())
        settings = {
            "timeout": hook.get("timeout", "50ms" if never_ends else "60s"),
            "on_error": hook.get("on_error", "reject"),
        }
        options = {key: hook[key] for key in hook.keys() - settings.keys()}
        options.setdefault("name", f"h{number}")
        hook_settings[f"h{number}"] = {"hook": "plugin_kit:Hook", "options": options, **settings}
    config = Config.model_validate(
        {
            "log": {"access": False},
            "helpers": 0,
            "backends": {"py": {"protocol": "python", "model": f"plugin_kit:{model}"}},
            "hooks": hook_settings,
            "routes": (
                {"model": "double", "backend": "py", "hooks": tuple(hook_settings)},
                {"model": "*", "backend": "py"},
            ),
        }
    )
    running = assemble(config)
    try:
        yield running.gateway
    finally:
        await running._active.close(())


def request(model: str = "double", rows: int = 1) -> InferRequest:
    x = np.ones((rows, 2), np.float32)
    return InferRequest(model, inputs=(tensor_from_array("X", Datatype.FP32, x),), id="7")


async def infer(
    gateway: RoutingGateway,
    inference: InferRequest | None = None,
    context: RequestContext | None = None,
) -> InferResponse:
    inference, context = inference or request(), context or RequestContext("test")
    return await gateway.infer(inference, gateway.bind(inference.model, "", context), context)


def values(response: InferResponse) -> list[Any]:
    listed: list[Any] = response.outputs[0].numpy().tolist()
    return listed


async def test_hooks_run_in_order_before_and_in_reverse_order_after() -> None:
    async with serving({}, {}) as gateway:
        assert values(await infer(gateway)) == [[2, 2]]
        assert Hook.events == ["h0 before", "h1 before", "h1 after", "h0 after"]


async def test_a_hook_changes_the_request_and_the_response() -> None:
    async with serving({"before": "adds"}, {"after": "adds"}) as gateway:
        response = await infer(gateway)
        assert (values(response), response.model, response.id) == ([[5, 5]], "double", "7")


async def test_a_hook_answers_without_the_model_and_the_hooks_inside() -> None:
    async with serving({}, {"before": "answers"}, {}) as gateway:
        response = await infer(gateway)
        assert (values(response), response.model, response.id) == ([[0, 0]], "double", "7")
        assert Hook.events == ["h0 before", "h1 before", "h0 after"]
        counters = next(iter(_layers(gateway)))._hooks[1].runner.counters
        assert (counters.answers, counters.calls["ok"]) == (1, 1)


def _layers(gateway: RoutingGateway) -> Iterator[HookedRoute]:
    return (plan for plan in gateway._plans.values() if isinstance(plan, HookedRoute))


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("on_error", ["reject", "ignore"])
async def test_on_error_does_not_apply_to_a_rejection_by_a_hook(side: str, on_error: str) -> None:
    async with serving({side: "rejects", "on_error": on_error}) as gateway:
        with pytest.raises(GatewayError, match="not today") as caught:
            await infer(gateway)
        assert caught.value.kind is Kind.FORBIDDEN


FAILURES = [
    ("raises", Kind.INTERNAL, "failed with RuntimeError"),
    ("cancels", Kind.INTERNAL, "failed with CancelledError"),
    ("waits", Kind.TIMEOUT, "did not respond within 0.05 seconds"),
    ("blocks", Kind.TIMEOUT, "did not respond within 0.05 seconds"),
    ("nonsense", Kind.INTERNAL, "returned an invalid result: {side} returned int; expected Infer"),
    ("unprintable", Kind.INTERNAL, "failed with UnprintableError"),
    ("kind", Kind.INTERNAL, "failed with GatewayError"),
]


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize(("outcome", "kind", "expected"), FAILURES)
async def test_a_failure_names_the_hook(
    side: str, outcome: str, kind: Kind, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving({side: outcome}) as gateway:
        with pytest.raises(GatewayError, match=f"hook 'h0' {expected.format(side=side)}") as caught:
            await infer(gateway)
        assert caught.value.kind is kind
        assert "hunter2" not in caught.value.public
        assert "hook 'h0'" in caplog.text
        plugin_kit.RELEASE.set()


@pytest.mark.parametrize(("outcome", "kind", "expected"), FAILURES)
async def test_ignored_failures_leave_the_inference_unchanged(
    outcome: str, kind: Kind, expected: str
) -> None:
    hook = {"before": outcome, "after": outcome, "on_error": "ignore"}
    async with serving(hook) as gateway:
        assert values(await infer(gateway)) == [[2, 2]]
        plugin_kit.RELEASE.set()


@pytest.mark.parametrize(
    ("side", "outcome", "expected"),
    [
        ("before", "renames", "cannot change the model"),
        ("before", "data", "needs 8 bytes, but the data holds 1"),
        ("before", "outputs", "the requested outputs are not a tuple of RequestedOutput"),
        ("before", "parameters", "parameters of the request: a value is not a JSON value"),
        ("after", "version", "version is int; expected a string"),
        ("after", "parameters", "parameters of the response: a value is not a JSON value"),
    ],
)
async def test_an_invalid_change_is_an_error(side: str, outcome: str, expected: str) -> None:
    async with serving({side: outcome}) as gateway:
        with pytest.raises(GatewayError, match=f"hook 'h0' returned .*{expected}"):
            await infer(gateway)


@pytest.mark.parametrize("outcome", ["stops", "exits"])
async def test_a_hook_that_stops_its_loop_serves_the_next_request(
    outcome: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving({"before": outcome}) as gateway:
        for _ in range(3):
            assert values(await infer(gateway)) == [[2, 2]]
    assert ("hook 'h0' tried to end its thread: SystemExit: 3" in caplog.text) == (
        outcome == "exits"
    )


async def test_a_blocked_hook_does_not_block_other_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "MAX_HANGING", 2)
    monkeypatch.setattr(runner, "HANGING_GRACE", 0.0)
    async with serving({"before": "blocks", "timeout": "30s"}) as gateway:
        blocked = [asyncio.create_task(infer(gateway)) for _ in range(3)]
        await until(lambda: Hook.events)
        # A request on another route of the backend reaches the model, which rejects the name.
        with pytest.raises(GatewayError, match="unknown model 'other'"):
            await infer(gateway, request("other"))
        for task in blocked:
            task.cancel()
        await asyncio.gather(*blocked, return_exceptions=True)
        with pytest.raises(GatewayError, match="hook 'h0' does not respond: 3 calls hang"):
            await infer(gateway)
        plugin_kit.RELEASE.set()
        await until(lambda: not next(_layers(gateway))._hooks[0].runner.is_stuck)
        assert values(await infer(gateway)) == [[2, 2]], "the hook works again"


async def test_the_deadline_of_the_client_limits_a_hook() -> None:
    async with serving({"before": "waits", "timeout": "1h"}) as gateway:
        deadline = asyncio.get_running_loop().time() + 0.05
        with pytest.raises(GatewayError, match="did not respond within") as caught:
            await infer(gateway, context=RequestContext("test", deadline))
        assert caught.value.kind is Kind.TIMEOUT


async def test_every_response_of_a_stream_passes_the_hooks() -> None:
    async with serving({"before": "adds", "after": "adds"}) as gateway:
        context = RequestContext("test")
        inference = request(rows=2)
        stream = gateway.stream(inference, gateway.bind("double", "", context), context)
        assert [values(each) async for each in stream] == [[[5, 5]], [[5, 5]]]
        assert Hook.events == ["h0 before", "h0 after", "h0 after"]
        assert Hook.calls[0].is_stream


async def test_an_answered_stream_has_one_response() -> None:
    async with serving({"before": "answers"}) as gateway:
        context = RequestContext("test")
        stream = gateway.stream(request(), gateway.bind("double", "", context), context)
        (response,) = [each async for each in stream]
        assert response.is_last


async def test_a_hook_knows_the_client_but_not_its_credentials() -> None:
    async with serving({}) as gateway:
        headers = {"authorization": "Bearer x", "x-tenant": "a"}
        await infer(gateway, context=RequestContext("test", headers=headers, request_id="r1"))
        (call,) = Hook.calls
        assert (call.headers, call.request_id, call.route) == ({"x-tenant": "a"}, "r1", "double")


async def test_tensors_in_shared_memory_are_refused() -> None:
    async with serving({}) as gateway:
        tensor = Tensor("X", Datatype.FP32, (1, 2), b"", shared_memory=RegionRef("r", 0, 8))
        with pytest.raises(GatewayError, match="cannot read tensors in shared memory"):
            await infer(gateway, InferRequest("double", inputs=(tensor,)))


async def test_a_route_without_hooks_has_no_layer() -> None:
    async with serving({}) as gateway:
        await asyncio.gather(infer(gateway, request("other")), return_exceptions=True)
        assert len(list(_layers(gateway))) == 1
        assert any(isinstance(plan, RoutePlan) for plan in gateway._plans.values())


async def test_after_does_not_run_if_before_has_failed() -> None:
    async with serving({"before": "raises", "on_error": "ignore"}) as gateway:
        assert values(await infer(gateway)) == [[2, 2]]
        assert Hook.events == ["h0 before"]
