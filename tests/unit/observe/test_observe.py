from __future__ import annotations

import io
import json
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infergate.core.log_events import ADVICE
from infergate.core.request_context import RequestContext
from infergate.core.request_record import RequestRecord
from infergate.observe.access_log import FORMATS, AccessLog, iso_time, log_fields
from infergate.observe.label_names import MetricNames
from infergate.observe.metrics import Metrics
from request_records import make_record


def on_dropped() -> None:
    raise AssertionError("no line is dropped")


def finished_request(
    peer: str = "127.0.0.1:5", request_id: str = "", **fields: Any
) -> RequestContext:
    return RequestContext(peer, request_id=request_id, record=finished_record(**fields))


def finished_record(**changes: Any) -> RequestRecord:
    numbers = {"bytes_in": 10, "bytes_out": 20, "backend_seconds": 0.25}
    return make_record(**{"model": "resnet", **LABELS, **numbers, **changes})


def line_of(log_format: str, context: RequestContext, now: float = 0.0) -> bytes:
    return FORMATS[log_format](log_fields(context, 0.5, now))


def json_line(context: RequestContext, now: float = 0.0) -> Any:
    return json.loads(line_of("json", context, now))


def logged_lines(log_format: str, *requests: RequestContext) -> list[str]:
    """Return the lines that a log writes for ``requests``."""
    out = io.BytesIO()
    log = AccessLog(FORMATS[log_format], on_dropped, out)
    for request in requests:
        log.record(request, 0.5, 0.0)
    log.close()
    return out.getvalue().decode().splitlines()


LABELS = {
    "route": "res*", "protocol": "v2-rest", "backend": "triton", "backend_protocol": "v2-grpc",
    "operation": "infer",
}  # fmt: skip


def test_a_request_is_counted_with_its_duration_and_bytes() -> None:
    metrics = Metrics()
    metrics.record(finished_record(), 0.5)
    metrics.record(finished_record(outcome="timeout"), 0.5)

    def value(name: str, **more: str) -> float | None:
        return metrics.registry.get_sample_value(name, {**LABELS, **more})

    assert value("infergate_requests_total", outcome="ok") == 1
    assert value("infergate_requests_total", outcome="timeout") == 1
    assert value("infergate_request_seconds_sum") == 1.0
    assert value("infergate_backend_seconds_sum") == 0.5
    assert value("infergate_request_bytes_total") == 20
    assert value("infergate_response_bytes_total") == 40
    assert b"infergate_build_info" in metrics.text()


def test_the_model_name_of_a_client_is_not_a_label() -> None:
    metrics = Metrics()
    for number in range(100):
        metrics.record(finished_record(model=f"made-up-{number}", route=""), 0.1)
    assert b"made-up" not in metrics.text()
    assert metrics.text().count(b"infergate_requests_total{") == 1


def test_gateway_time_excludes_the_backend_and_receiving_the_body() -> None:
    metrics = Metrics()
    metrics.record(finished_record(started_at=10.0, received_at=10.1), 0.5)
    metrics.record(finished_record(started_at=10.0, received_at=10.1, response_count=3), 0.5)
    metrics.record(finished_record(started_at=10.0), 0.5)
    metrics.record(finished_record(started_at=10.0, received_at=10.0, backend_seconds=0.9), 0.5)
    get = metrics.registry.get_sample_value
    assert get("infergate_gateway_seconds_count", LABELS) == 2
    assert get("infergate_gateway_seconds_sum", LABELS) == pytest.approx(0.15)


def test_removed_names_are_no_longer_reported() -> None:
    metrics = Metrics()
    for backend in ("old", "new"):
        metrics.record(finished_record(route=f"{backend}*", backend=backend), 0.1)
        metrics.backends.backend_counters(backend).queue_rejected += 1
        metrics.backends.route_counters(f"{backend}*").fallbacks += 1
    metrics.record(finished_record(route="new*", backend="old"), 0.1)
    metrics.record(finished_record(route="", backend=""), 0.1)
    assert b'"old' in metrics.text()
    metrics.restrict_labels(lambda: MetricNames({"", "new*"}, {"", "new"}))
    text = metrics.text()
    assert b'"old' not in text
    assert b'infergate_requests_total{backend="new"' in text
    assert b'infergate_requests_total{backend=""' in text
    assert b'infergate_queue_refusals_total{backend="new",reason="full"} 1.0' in text
    assert b'infergate_fallbacks_total{route="new*"} 1.0' in text


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_each_request_is_logged_as_a_line(log_format: str) -> None:
    late = finished_request(outcome="timeout", error="too slow", detail="10.0.0.7")
    _, line = logged_lines(log_format, finished_request(), late)
    assert "timeout" in line
    assert "too slow" in line


def test_an_unread_log_blocks_no_request() -> None:
    class UnreadPipe(io.RawIOBase):
        def __init__(self) -> None:
            self.reached = threading.Event()
            self.freed = threading.Event()

        def write(self, data: object) -> int:
            self.reached.set()
            self.freed.wait(20)
            return 0

    pipe = UnreadPipe()
    dropped: list[int] = []
    log = AccessLog(FORMATS["json"], lambda: dropped.append(1), pipe)  # type: ignore[arg-type]
    log.record(finished_request(), 0.5, 0.0)
    assert pipe.reached.wait(20)
    for _ in range(10_100):
        log.record(finished_request(), 0.5, 0.0)
    assert len(dropped) == 100
    pipe.freed.set()
    log.close()


def test_lines_are_written_while_requests_arrive_and_after_pauses() -> None:
    class Output(io.BytesIO):
        def __init__(self) -> None:
            super().__init__()
            self.flushed = threading.Semaphore(0)

        def flush(self) -> None:
            self.flushed.release()

    out = Output()
    log = AccessLog(FORMATS["json"], on_dropped, out)
    for count in range(1, 4):
        log.record(finished_request(), 0.5, 0.0)
        assert out.flushed.acquire(timeout=20)
        assert len(out.getvalue().splitlines()) == count
        time.sleep(0.5)  # let the writer thread become idle
    log.close()


def test_an_idle_log_uses_no_cpu() -> None:
    out = io.BytesIO()
    log = AccessLog(FORMATS["json"], on_dropped, out)
    log.record(finished_request(), 0.5, 0.0)
    task = Path(f"/proc/self/task/{log._writer.native_id}/status")

    def wake_ups() -> str:
        return next(line for line in task.read_text().splitlines() if line.startswith("voluntary"))

    for _ in range(20):  # wait until the writer is idle
        before = wake_ups()
        time.sleep(1)
        if wake_ups() == before:
            break
    assert out.getvalue()
    assert wake_ups() == before
    log.close()


def test_a_json_line_holds_every_field() -> None:
    assert json_line(finished_request(request_id="r1", pipeline="forward")) == {
        "time": "1970-01-01T00:00:00.000+00:00", "event": "request", "request_id": "r1",
        "peer": "127.0.0.1:5", **LABELS, "model": "resnet", "pipeline": "forward", "outcome": "ok",
        "seconds": 0.5, "backend_seconds": 0.25, "bytes_in": 10, "bytes_out": 20,
    }  # fmt: skip


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_no_model_name_can_forge_a_line(log_format: str) -> None:
    forged = 'x outcome=ok\n2026-01-01 model="y"'
    text = line_of(log_format, finished_request(model=forged))
    assert text.count(b"\n") == 1
    assert b'model="y"' not in text


HIDDEN_CHARACTERS = "a\x7fb\x85c\u2028d\u202ee\u2066f\x1bg"
"""Characters that end lines, or hide or reorder text."""


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_control_characters_are_escaped(log_format: str) -> None:
    fields = dict.fromkeys(("model", "error", "detail"), HIDDEN_CHARACTERS)
    line = line_of(log_format, finished_request(**fields)).decode()
    assert line[:-1].isprintable()
    assert line.count(r"a\u007fb\u0085c\u2028d\u202ee\u2066f\u001bg") == 3
    if log_format == "json":
        assert json.loads(line)["model"] == HIDDEN_CHARACTERS


@given(st.text(max_size=9), st.sampled_from(["127.0.0.1:5", "unix", "", 'a"b', "a b"]))
def test_any_request_id_and_peer_are_readable(request_id: str, peer: str) -> None:
    """Ids and peers that need no quotes are formatted by a template."""
    context = finished_request(peer, request_id)
    fields = json_line(context)
    assert (fields["request_id"], fields["peer"]) == (request_id, peer)
    text = line_of("text", context).decode()
    assert "\n" not in text[:-1]
    for key, value in (("request_id", request_id), ("peer", peer)):
        if not value:
            assert f"{key}=" not in text
        elif value.isascii() and value.isalnum():
            assert f" {key}={value} " in text
        elif value.isascii() and value.isprintable() and set(value) & set(' "=\\'):
            assert f" {key}={json.dumps(value)} " in text


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_lone_surrogates_are_escaped(log_format: str) -> None:
    request = finished_request(error="\ud800 of a backend", model="\udcff")
    line, _ = logged_lines(log_format, request, finished_request(error="another"))
    assert r"\ud800 of a backend" in line
    assert r"\udcff" in line


def test_long_names_and_errors_are_cut() -> None:
    line = json_line(finished_request(model="m" * 5000, error="e" * 5000, detail="d" * 5000))
    assert [len(line[key]) for key in ("model", "error", "detail")] == [256, 1024, 1024]


def test_a_closed_output_does_not_stop_the_gateway() -> None:
    out = io.BytesIO()
    out.close()
    log = AccessLog(FORMATS["json"], on_dropped, out)
    log.record(finished_request(), 0.5, 0.0)
    log.close()
    log.record(finished_request(), 0.5, 0.0)


TEXT = (
    'request_id="a b" peer=127.0.0.1:5 protocol=v2-rest operation=infer model={} route=res* '
    "backend=triton backend_protocol=v2-grpc outcome={} seconds=0.500000 backend_seconds=0.250000 "
    "bytes_in=10 bytes_out=20"
)


def test_a_line_describes_its_own_request_only() -> None:
    prefix = "2001-09-09T01:46:39.999+00:00 event=request "
    for model in ("resnet", '"bert x"', "resnet"):
        for outcome in ("ok", "timeout"):
            call = finished_request(request_id="a b", model=model.strip('"'), outcome=outcome)
            text = line_of("text", call, 999999999.9996)
            advice = "" if outcome == "ok" else f' advice="{ADVICE[outcome]}"'
            assert text.decode() == f"{prefix}{TEXT.format(model, outcome)}{advice}\n"
            line = json_line(call, 999999999.9996)
            assert (line["model"], line["outcome"]) == (call.record.model, outcome)
            assert line.get("advice") == ADVICE.get(outcome)


def test_empty_values_are_omitted_in_text_and_present_in_json() -> None:
    call = finished_request(peer="", response_count=0, detail="why")
    assert b"peer" not in line_of("text", call)
    assert line_of("text", call).endswith(b"bytes_out=20 messages=0 detail=why\n")
    line = json_line(call)
    assert (line["peer"], line["messages"], line["detail"]) == ("", 0, "why")


@pytest.mark.parametrize("now", [0.0, 0.9999996, 1.0005, 1763776403.9994, 1763776403.9996])
def test_the_time_is_cut_to_milliseconds(now: float) -> None:
    expected = datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds")
    assert iso_time(now) == expected
