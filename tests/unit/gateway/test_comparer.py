"""Mirrors whose responses are compared with the served responses."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from comparing import REQUEST, Harness, Store, output, response

from infergate.comparison import model_summary as model_summary_module
from infergate.comparison import verdict as verdict_module
from infergate.comparison.rules import ComparisonRules, OutputRule, Tolerance
from infergate.comparison.settings import Baseline, MirrorComparison, MismatchStorage
from infergate.comparison.verdict import DifferenceCounts, Judgement, Verdict, judge
from infergate.core.counters import MAX_DIFFERENCES, OTHER_OUTPUTS
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.region_ref import RegionRef
from infergate.core.tensor import Tensor
from infergate.gateway import comparer as comparer_module
from infergate.routing.table import Rewrite, SplitTarget
from memory_budget import Budget
from waiting import until

TWIN_BASELINE = MirrorComparison(baseline=Baseline("twin", 100.0))
OWN_BASELINE = MirrorComparison(baseline=Baseline("", 100.0))


@pytest.fixture(autouse=True)
def no_batch_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparer_module, "_BATCH_SECONDS", 0.0)


async def test_equal_responses_are_counted_and_summarized() -> None:
    harness = Harness()
    for number in range(3):
        await harness.infer(request_id=str(number))
    await harness.check_results(equal=3)
    summary = harness.summary()
    assert (summary.compared, summary.equal, summary.verdict()) == (3, 3, Verdict.EQUAL)
    assert summary.expected_latencies.count == summary.actual_latencies.count == 3
    assert harness.counters.mirrored == {"ok": 3}


@pytest.mark.parametrize(
    ("mirrored", "difference"),
    [
        (response(output(1, 2.5)), ("y", "values")),
        (response(output(1, 2, datatype=Datatype.FP64)), ("y", "datatype")),
        (response(output(1, 2, 3)), ("y", "shape")),
        (response(), ("y", "missing")),
        (response(output(1, 2), output(1, name="z")), ("z", "extra")),
        (GatewayError(Kind.BACKEND_ERROR, "it broke"), ("", "outcome")),
    ],
)
async def test_differences_are_counted_by_output_and_cause(
    mirrored: InferResponse | GatewayError, difference: tuple[str, str]
) -> None:
    harness = Harness()
    harness.mirror.answer = mirrored
    await harness.infer()
    await harness.check_results(different=1)
    assert harness.counters.differences == {difference: 1}
    assert harness.summary().verdict() is Verdict.DIFFERENT
    failed = isinstance(mirrored, GatewayError)
    assert harness.counters.mirrored == {"failed" if failed else "ok": 1}


async def test_errors_are_equal_if_their_kinds_are() -> None:
    harness = Harness()
    harness.own.answer = GatewayError(Kind.BAD_REQUEST, "no such input")
    harness.mirror.answer = GatewayError(Kind.BAD_REQUEST, "unexpected input 'a'")
    with pytest.raises(GatewayError, match="no such input"):
        await harness.infer()
    await harness.check_results(equal=1)


async def test_the_rules_of_the_route_apply_to_the_names_of_the_client() -> None:
    rules = ComparisonRules(
        {Datatype.FP32: Tolerance(1.0, 0.0)}, {"client": OutputRule(ignore=True)}
    )
    harness = Harness(MirrorComparison(rules), rewrite=Rewrite(outputs={"client": "server"}))
    harness.own.answer = response(output(1), output(1, name="server"))
    harness.mirror.answer = response(output(1.5), output(9, name="server"))
    await harness.infer()
    await harness.check_results(equal=1)
    assert harness.summary().known == 1


async def test_a_rule_that_does_not_fit_the_datatype_is_an_error_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    harness = Harness(MirrorComparison(ComparisonRules({}, {"y": OutputRule(atol=1.0)})))
    harness.own.answer = harness.mirror.answer = response(output(1, datatype=Datatype.INT32))
    for _ in range(2):
        await harness.infer()
    await harness.check_results(error=2)
    (line,) = [each.message for each in caplog.records if "comparison failed" in each.message]
    assert line.startswith("route m: the comparison failed: output 'y' is INT32")


async def test_a_client_never_waits_for_the_mirror_or_the_comparison() -> None:
    harness = Harness()
    harness.offload.may_run.clear()
    for _ in range(3):
        await harness.infer()  # hangs if the client waits
    await until(lambda: harness.offload.jobs)
    assert await harness.infer() == harness.own.answer
    assert not harness.results
    harness.offload.may_run.set()
    await harness.check_results(equal=4)


@pytest.mark.parametrize(
    ("limit", "value"), [("_MAX_BATCH", 4), ("_MAX_BATCH_BYTES", 80), ("_MAX_BATCH_TENSORS", 4)]
)
async def test_comparisons_run_in_batches(
    limit: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparer_module, limit, value)
    harness = Harness()
    harness.offload.may_run.clear()
    await harness.infer()
    await until(lambda: harness.offload.jobs)
    for _ in range(6):
        await harness.infer()
    await until(lambda: harness.counters.mirrored["ok"] >= 7)
    harness.offload.may_run.set()
    await harness.check_results(equal=7)
    assert [len(each.arguments[0]) for each in harness.offload.jobs] == [1, 4, 2]


async def test_a_failing_helper_affects_no_client(caplog: pytest.LogCaptureFixture) -> None:
    harness = Harness()
    harness.offload.error = GatewayError(Kind.INTERNAL, "internal error")
    await harness.infer()
    await harness.check_results(error=1)
    harness.offload.error = None
    await harness.infer()
    await harness.check_results(error=1, equal=1)


async def test_a_bug_in_a_comparison_affects_one_batch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    harness = Harness()
    with monkeypatch.context() as patched:
        patched.setattr("infergate.comparison.summary.Summary.merge", None)
        await harness.infer()
        await harness.check_results(dropped=1)
    assert "internal error while comparing responses" in caplog.text
    await harness.infer()
    await harness.check_results(dropped=1, equal=1)
    assert harness.held_bytes == 0


async def test_a_comparison_is_dropped_without_memory_for_the_helper() -> None:
    harness = Harness()
    harness.offload.error = GatewayError(Kind.OVERLOADED, "full")
    await harness.infer()
    await harness.check_results(dropped=1)


# ---- limits ------------------------------------------------------------------------------------


async def test_comparisons_beyond_the_limits_of_the_queue_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(comparer_module, "MAX_WAITING", 2)
    harness = Harness()
    harness.offload.may_run.clear()
    for _ in range(5):
        await harness.infer()
    await harness.check_results(dropped=3)
    harness.offload.may_run.set()
    await harness.check_results(dropped=3, equal=2)
    await harness.infer()
    await harness.check_results(dropped=3, equal=3)
    monkeypatch.setattr(comparer_module, "MAX_BYTES", 30)  # each comparison holds 3 + 8 + 8 bytes
    harness.offload.may_run.clear()
    for _ in range(2):
        await harness.infer()
    await harness.check_results(dropped=4, equal=3)
    harness.offload.may_run.set()
    await harness.check_results(dropped=4, equal=4)
    assert harness.counters.mirrored == {"ok": 8}


async def test_a_comparison_holds_its_memory_until_it_has_run() -> None:
    harness = Harness()
    harness.offload.may_run.clear()
    memory = Budget(3 + 8 + 8)
    await harness.infer(memory=memory)
    await until(lambda: harness.offload.jobs)
    assert harness.held_bytes == 3 + 8 + 8
    harness.offload.may_run.set()
    await harness.check_results(equal=1)
    assert harness.held_bytes == memory.held == 0
    await harness.infer(memory=Budget(3 + 8 + 7))  # the copy's response does not fit
    await harness.check_results(equal=1, dropped=1)
    await harness.infer(memory=Budget(3 + 7))  # the served response does not fit
    await harness.check_results(equal=1, dropped=2)
    assert harness.counters.mirrored == {"ok": 2, "dropped": 1}


def _queued_comparisons(harness: Harness) -> list[Any]:
    assert harness.comparer is not None
    return list(harness.comparer._queue)


async def test_closing_drops_waiting_comparisons() -> None:
    harness = Harness()
    harness.offload.may_run.clear()
    await harness.infer()
    await until(lambda: harness.offload.jobs)
    await harness.infer()
    await until(lambda: bool(_queued_comparisons(harness)))
    await harness.gateway.close()
    assert harness.results == {"dropped": 2}
    assert harness.offload.is_closed
    assert len(asyncio.all_tasks()) == 1


# ---- streams and sequences -----------------------------------------------------------------------


async def test_streams_are_compared_response_by_response() -> None:
    harness = Harness()
    harness.own.answers = [response(output(1)), response(output(2))]
    harness.mirror.answers = [response(output(1)), response(output(3))]
    assert [each async for each in harness.stream()] == harness.own.answers
    await harness.check_results(different=1)
    assert harness.counters.differences == {("y", "values"): 1}
    harness.mirror.answers = harness.own.answers[:1]
    assert len([each async for each in harness.stream()]) == 2
    await harness.check_results(different=2)
    assert harness.counters.differences["", "responses"] == 1


async def test_a_stream_is_compared_if_it_is_closed_after_its_last_response() -> None:
    harness = Harness()
    harness.own.answers = harness.mirror.answers = [response(output(1), is_last=True)]
    async with aclosing(harness.stream()) as responses:
        await anext(responses)
    await harness.check_results(equal=1)


async def test_cancelled_requests_are_mirrored_but_not_compared() -> None:
    harness = Harness()
    harness.own.answers = harness.mirror.answers = [response(output(1)), response(output(2))]
    async with aclosing(harness.stream()) as responses:
        await anext(responses)
    await harness.check_results(dropped=1)
    assert len(harness.mirror.requests) == 1


async def test_a_stream_beyond_a_limit_is_mirrored_but_not_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("infergate.gateway.compared_mirror.MAX_RESPONSES", 2)
    harness, memory = Harness(), Budget(100)
    harness.own.answers = harness.mirror.answers = [response(output(n)) for n in range(3)]
    assert len([each async for each in harness.stream(memory=memory)]) == 3
    await harness.check_results(dropped=1)
    harness.own.answers = harness.own.answers[:2]  # now only the copy's response is too long
    assert len([each async for each in harness.stream(memory=memory)]) == 2
    await harness.check_results(dropped=2)
    assert len(harness.mirror.requests) == 2
    await until(lambda: harness.counters.mirrored["ok"] >= 2)
    assert memory.held == 0


async def test_a_sequence_is_compared_completely_or_not_at_all() -> None:
    harness = Harness(percent=40)
    for number in range(1, 31):
        request = InferRequest("m", "", "id", {"sequence_id": number})
        for _ in range(3):
            await harness.infer(request)
    await until(lambda: len(asyncio.all_tasks()) <= 1)
    assert harness.results == {"equal": len(harness.mirror.requests)}
    assert len(harness.mirror.requests) % 3 == 0
    assert 0 < len(harness.mirror.requests) < 90


async def test_requests_with_shared_memory_are_not_compared() -> None:
    harness = Harness()
    region = Tensor("x", Datatype.UINT8, (3,), b"", shared_memory=RegionRef("r", 0, 3))
    with pytest.raises(GatewayError):
        await harness.infer(InferRequest("m", "", "id", inputs=(region,)))
    await asyncio.sleep(0)
    assert not harness.mirror.requests
    assert not harness.results


async def test_responses_of_the_mirrors_own_backend_are_not_compared() -> None:
    harness = Harness(split=[SplitTarget("mirror", 50.0, Rewrite())])
    harness.own.answer = response(output(1, 3))
    for number in range(100):
        await harness.infer(request_id=str(number))
    own_count = len(harness.own.requests)
    assert 25 < own_count < 75
    await harness.check_results(different=own_count)
    # the mirror served the other requests, and got copies of those that ``own`` served
    assert len(harness.mirror.requests) == 100
    renamed = Harness(split=[SplitTarget("mirror", 100.0, Rewrite("other"))])
    await renamed.infer()
    await renamed.check_results(equal=1)


async def test_a_route_mirrored_to_its_own_backend_measures_noise() -> None:
    harness = Harness(backend="mirror")
    await harness.infer()
    await harness.check_results(equal=1)
    assert len(harness.mirror.requests) == 2


# ---- the noise baseline --------------------------------------------------------------------------


async def test_noise_is_measured_with_a_second_old_server() -> None:
    harness = Harness(TWIN_BASELINE)
    harness.twin.answer = response(output(1, 2.25))
    await harness.infer()
    await harness.check_results(equal=1)
    assert [len(each.requests) for each in (harness.own, harness.twin)] == [1, 1]
    assert harness.summary().outputs["y"].noise.differing == 1


async def test_noise_is_measured_by_sending_the_request_once_more() -> None:
    harness = Harness(OWN_BASELINE)
    await harness.infer()
    await harness.check_results(equal=1)
    assert len(harness.own.requests) == 2
    assert harness.summary().outputs["y"].noise.compared == 1


async def test_the_target_that_served_a_request_gets_it_once_more() -> None:
    harness = Harness(OWN_BASELINE, split=[SplitTarget("twin", 100.0, Rewrite())])
    await harness.infer()
    await harness.check_results(equal=1)
    assert [len(each.requests) for each in (harness.own, harness.twin)] == [0, 2]
    harness = Harness(OWN_BASELINE, fallback="twin")
    harness.own.answer = GatewayError(Kind.CONNECT, "connection refused")
    await harness.infer()
    await harness.check_results(equal=1)
    assert [len(each.requests) for each in (harness.own, harness.twin)] == [1, 2]


async def test_only_a_share_of_the_requests_gets_the_baseline() -> None:
    harness = Harness(MirrorComparison(baseline=Baseline("twin", 25.0)))
    for number in range(200):
        await harness.infer(request_id=str(number))
    await harness.check_results(equal=200)
    assert 20 < len(harness.twin.requests) < 80


async def test_a_request_of_a_sequence_is_never_sent_twice_to_the_same_backend() -> None:
    request = InferRequest("m", "", "id", {"sequence_id": 7})
    harness = Harness(OWN_BASELINE)
    await harness.infer(request)
    await harness.check_results(equal=1)
    assert len(harness.own.requests) == 1
    harness = Harness(TWIN_BASELINE)
    await harness.infer(request)
    await harness.check_results(equal=1)
    assert len(harness.twin.requests) == 1


async def test_differences_as_large_as_the_noise_are_within_noise() -> None:
    harness = Harness(TWIN_BASELINE)
    for number in range(40):
        # Both servers deviate in every second response by the same amount.
        for backend, offset in ((harness.twin, 0), (harness.mirror, 1)):
            noise = 0.5 if (number + offset) % 2 else 0.0
            backend.answer = response(output(1, 2 + noise))
        await harness.infer()
        await harness.wait_for_results(number + 1)
    assert set(harness.results) == {"equal", "within_noise", "different"}
    assert harness.results["within_noise"] > harness.results["different"]
    assert harness.summary().verdict() is Verdict.WITHIN_NOISE
    harness.mirror.answer = response(output(1, 7))
    before = harness.results["different"]
    await harness.infer()
    await harness.wait_for_results(41)
    assert harness.results["different"] == before + 1


# ---- configurations ------------------------------------------------------------------------------


async def test_a_reload_keeps_the_summary_of_an_unchanged_route() -> None:
    harness = Harness()
    await harness.infer()
    await harness.check_results(equal=1)
    harness.configure(MirrorComparison(), percent=0)
    assert harness.summary().compared == 1
    await harness.infer()
    assert len(harness.mirror.requests) == 1
    harness.configure(MirrorComparison(), percent=50)
    assert harness.summary().compared == 1
    harness.configure(MirrorComparison(ComparisonRules({}, {"y": OutputRule(top_k=1)})))
    assert not harness.summaries.routes


async def test_a_reset_starts_a_new_summary() -> None:
    harness = Harness()
    await harness.infer()
    await harness.check_results(equal=1)
    harness.gateway.reset_comparisons()
    assert not harness.summaries.routes
    await harness.infer()
    await harness.check_results(equal=2)
    assert harness.summary().compared == 1


# ---- stored mismatches ---------------------------------------------------------------------------


async def test_only_mismatches_are_stored() -> None:
    store = Store()
    harness = Harness(store=store)
    await harness.infer()
    await harness.check_results(equal=1)
    harness.mirror.answer = response(output(1, 3))
    await harness.infer(headers={"a": "b"}, request_id="7")
    await harness.check_results(equal=1, different=1)
    await until(lambda: bool(harness.counters.mismatches))
    ((exchange, mirrored, name),) = store.mismatches
    assert exchange.request is REQUEST
    assert (exchange.request_id, exchange.headers) == ("7", {"a": "b"})
    assert exchange.outcome.responses == (harness.own.answer,)
    assert mirrored.responses == (harness.mirror.answer,)
    assert name == "mirror"
    assert harness.counters.mismatches == {"stored": 1}


async def test_values_of_outputs_that_mismatches_redact_are_in_no_summary() -> None:
    storage = MismatchStorage(Path("unused"), 1, 1, 1.0, removed=["a"], zeroed=["b*"])
    harness = Harness(MirrorComparison(storage=storage))
    harness.own.answer = response(*[output(1, name=name) for name in ("a", "b1", "c")])
    harness.mirror.answer = response(*[output(2, name=name) for name in ("a", "b1", "c")])
    await harness.infer()
    await harness.check_results(different=1)
    worst = {name: each.worst[0].difference for name, each in harness.summary().outputs.items()}
    assert {name: (each.expected, each.actual) for name, each in worst.items()} == {
        "a": ("(hidden)", "(hidden)"),
        "b1": ("(hidden)", "(hidden)"),
        "c": ("1.0", "2.0"),
    }


async def test_a_bug_in_the_store_affects_one_batch(caplog: pytest.LogCaptureFixture) -> None:
    store = Store()
    harness = Harness(store=store)
    harness.mirror.answer = response(output(1, 3))
    store.mismatches = None  # type: ignore[assignment]
    await harness.infer()
    await until(lambda: "internal error while comparing responses" in caplog.text)
    store.mismatches = []
    await harness.infer()
    await until(lambda: bool(store.mismatches))
    assert harness.results == {"different": 2}


async def test_expired_mismatches_are_searched_for_until_the_gateway_closes() -> None:
    store = Store()
    harness = Harness(store=store)
    assert harness.comparer is not None
    harness.comparer.start()
    await until(lambda: bool(store.searches))
    await harness.gateway.close()
    assert len(asyncio.all_tasks()) == 1


async def test_a_batch_judges_each_output_once(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[DifferenceCounts] = []

    def judge_and_count(differences: DifferenceCounts, noise: DifferenceCounts) -> Judgement:
        judged.append(differences)
        return judge(differences, noise)

    harness = Harness(TWIN_BASELINE)
    outputs = [output(1, name=name) for name in "abcd"]
    changed = [output(1.5, name=name) for name in "abcd"]
    harness.own.answer = response(*outputs)
    harness.mirror.answer = harness.twin.answer = response(*changed)
    harness.offload.may_run.clear()
    await harness.infer()
    await until(lambda: harness.offload.jobs)
    for _ in range(20):
        await harness.infer()
    comparer = harness.comparer
    assert comparer is not None
    await until(lambda: comparer._unfinished == 21)
    for module in (verdict_module, model_summary_module):
        monkeypatch.setattr(module, "judge", judge_and_count)
    harness.offload.may_run.set()
    await harness.check_results(within_noise=21)
    (summary,) = comparer.summaries()
    in_gateway = {id(each.differences) for each in summary.routes["m"]["m"].outputs.values()}
    assert [len(each.arguments[0]) for each in harness.offload.jobs] == [1, 20]
    assert sum(id(each) in in_gateway for each in judged) == 2 * len(outputs)


async def test_differing_outputs_beyond_a_limit_share_a_name() -> None:
    harness = Harness()
    for number in range(MAX_DIFFERENCES - 2):
        harness.counters.count_difference(f"y{number}", "values")
    for number in range(4):
        harness.mirror.answer = response(output(1, 2), output(1, name=f"z{number}"))
        await harness.infer()
        await harness.check_results(different=number + 1)
    counts = {key: n for key, n in harness.counters.differences.items() if key[1] == "extra"}
    assert counts == {("z0", "extra"): 1, ("z1", "extra"): 1, (OTHER_OUTPUTS, "extra"): 2}
