"""The text of a scrape, compared with that of prometheus_client, and its division into pieces."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterable, Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Info
from prometheus_client.core import Exemplar, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.parser import text_string_to_metric_families

from infergate.core.request_context import RequestContext
from infergate.core.stats import EndpointStats
from infergate.core.wire import HttpRequest
from infergate.observe.aggregation import AggregatedMetrics
from infergate.observe.exposition import exposition
from infergate.observe.family import HistogramValue, MetricFamily, Row, in_batches
from infergate.observe.metrics import Metrics
from infergate.runtime.admin import AdminApp
from infergate.runtime.config_history import ConfigHistory
from request_records import make_record

TEXT, OPENMETRICS = "text/plain", "application/openmetrics-text;version=1.0.0,*/*;q=0.1"
ACCEPT_HEADERS = [
    "",
    TEXT,
    "text/plain;version=1.0.0;escaping=allow-utf-8",
    OPENMETRICS,
    "application/openmetrics-text",
    "application/openmetrics-text;version=1.0.0;escaping=underscores",
]

numbers = st.one_of(
    st.integers(0, 10**18), st.floats(allow_nan=True), st.integers(-5, 5), st.booleans()
)
labels = st.text(st.characters(exclude_categories=("Cs",)), max_size=5) | st.text(
    '"\\\n', max_size=4
)
exemplars = st.builds(
    lambda label, value, timestamp: Exemplar({"trace_id": label, "a": "b"}, value, timestamp),
    labels, st.floats(0, 1e9), st.none() | st.floats(0, 2e9),
)  # fmt: skip
histograms = st.builds(
    HistogramValue,
    st.tuples(*[st.integers(0, 10**7)] * 3),
    st.floats(0, 1e9),
    st.dictionaries(st.integers(0, 2), exemplars),
)
NAMES = ("route", "backend", "zone", "le_", "kind")


@st.composite
def families(draw: st.DrawFn) -> MetricFamily:
    kind = draw(st.sampled_from(["counter", "gauge", "histogram"]))
    names = draw(st.permutations(NAMES).map(lambda each: tuple(each[: len(each) // 2 + 1])))
    names = names[: draw(st.integers(0, 3))]
    values = histograms if kind == "histogram" else numbers
    rows: list[Row] = draw(st.lists(st.tuples(st.tuples(*[labels] * len(names)), values)))
    unit = draw(st.sampled_from(["", "seconds"]))
    description = draw(labels)
    return MetricFamily(kind, "things", description, names, rows, unit=unit, bounds=(0.1, 2.5))


class Collector:
    def __init__(self, *families: Metric) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def text(
    metrics: Collector | CollectorRegistry | AggregatedMetrics, accept: str
) -> tuple[str, str]:
    result = exposition(metrics, accept)
    return result.content_type, b"".join(result.chunks).decode()


def library_text(metrics: Collector | CollectorRegistry, accept: str) -> tuple[str, str]:
    encode, content_type = choose_encoder(accept)
    return content_type, encode(metrics).decode()


@given(families(), st.sampled_from(ACCEPT_HEADERS))
def test_any_family_is_written_as_the_library_does(family: MetricFamily, accept: str) -> None:
    assert text(Collector(family), accept) == library_text(Collector(family), accept)


def metrics_with_routes(routes: int) -> Metrics:
    metrics = Metrics()
    for number in range(routes):
        record = make_record(started_at=10.0, received_at=10.001, bytes_in=10, bytes_out=2_000_000)
        record.route = record.backend = f'some "model" {number}'
        record.protocol, record.operation, record.backend_protocol = "v2-rest", "infer", "v2-grpc"
        record.backend_seconds = 0.01 * number + 0.001
        metrics.record(record, 0.02 * number + 0.001)
        counters = metrics.backends.backend_counters(record.backend)
        counters.hedges_won += number
        counters.retries["broken"] = number
        counters.queue_wait.observe(0.1)
        metrics.backends.route_counters(record.route).fallbacks += number
    stats = [EndpointStats(f"b{number}", "http://x", ok=number) for number in range(routes)]
    metrics.endpoints.source = lambda: iter(stats)
    metrics.reloads.labels("ok").inc()
    return metrics


def without_process(scrape: tuple[str, str]) -> tuple[str, list[str]]:
    """Return ``scrape`` without process metrics, which change between two scrapes."""
    content_type, body = scrape
    return content_type, [line for line in body.splitlines() if "process_" not in line]


@pytest.mark.parametrize("accept", ACCEPT_HEADERS)
@pytest.mark.parametrize("routes", [0, 1, 50])
def test_all_metrics_are_written_as_the_library_does(routes: int, accept: str) -> None:
    registry = metrics_with_routes(routes).registry
    result = without_process(text(registry, accept))
    assert result == without_process(library_text(registry, accept))
    assert sum('route="some' in line for line in result[1]) >= 50 * routes


@pytest.mark.parametrize("escaping", ["dots", "values"])
@pytest.mark.parametrize("kind", ["text/plain", "application/openmetrics-text"])
def test_an_unsupported_escaping_falls_back_to_underscores(kind: str, escaping: str) -> None:
    content_type, body = text(
        metrics_with_routes(1).registry, f"{kind};version=1.0.0;escaping={escaping}"
    )
    assert content_type.startswith(f"{kind}; version=1.0.0")
    assert content_type.endswith("escaping=underscores")
    assert "infergate_requests_total{" in body


@pytest.mark.parametrize("version", ["x", "1.x", "2.0.0", "1.0.0.\xe9", ""])
@pytest.mark.parametrize("kind", ["text/plain", "application/openmetrics-text"])
def test_an_unknown_version_falls_back_to_a_known_one(kind: str, version: str) -> None:
    content_type, body = text(Metrics().registry, f"{kind};version={version}")
    is_open = content_type.startswith("application/openmetrics-text; version=1.0.0; charset=utf-8")
    assert is_open == body.endswith("# EOF\n")
    assert is_open or content_type.startswith(
        ("text/plain; version=0.0.4;", "text/plain; version=1.0.0;")
    )


@pytest.mark.parametrize("accept", ACCEPT_HEADERS)
def test_metrics_received_in_pieces_are_written_as_the_library_does(accept: str) -> None:
    registry = CollectorRegistry()
    Counter("done", "Done.", ["way"], registry=registry).labels("in").inc()
    Info("build", "Version.", registry=registry).info({"version": "1"})
    for each in (metrics_with_routes(50), Metrics()):
        aggregated, pieces = AggregatedMetrics(), 0
        for piece in in_batches((*each.registry.collect(), *registry.collect())):
            assert sum(len(list(f.rows)) for f in piece if isinstance(f, MetricFamily)) <= 256
            aggregated.add(pickle.loads(pickle.dumps(piece)))
            pieces += 1
        assert pieces > 3 or each.flows() == ([], [])
        expected = Collector(*each.registry.collect(), *registry.collect())
        result = without_process(text(aggregated, accept))
        assert result == without_process(library_text(expected, accept))


class LoopCounter:
    """Counts the iterations of the event loop."""

    def __init__(self) -> None:
        self.loop_runs = 0
        self._next()

    def _next(self) -> None:
        self.loop_runs += 1
        self._handle = asyncio.get_running_loop().call_soon(self._next)

    def stop(self) -> None:
        self._handle.cancel()


async def scrape(metrics: Metrics, method: str = "GET") -> tuple[list[bytes], list[int]]:
    """Return a scrape's pieces, and the loop iterations before its head and each streamed part."""

    async def ready() -> bool:
        return True

    counter = LoopCounter()
    app = AdminApp(metrics.scrape, ready, ConfigHistory())
    response = await app.respond(HttpRequest(method, "/metrics"), RequestContext(""))
    pieces, loop_runs = [bytes(part) for part in response.body], [counter.loop_runs]
    if response.body_stream is not None:
        while (body := await response.body_stream.next()) is not None:
            pieces += map(bytes, body)
            loop_runs.append(counter.loop_runs)
        await response.body_stream.close()
    counter.stop()
    return pieces, loop_runs


async def test_the_event_loop_runs_between_two_pieces_of_a_scrape() -> None:
    generated: list[int] = []

    class StreamedMetrics(Metrics):
        def text(self) -> bytes:
            raise AssertionError("the text is never generated as a whole")

    metrics = StreamedMetrics()
    metrics.registry.register(
        Collector(MetricFamily("gauge", "rows", "", ("n",), counted_rows(generated, 20_000)))
    )
    before = generated.copy()
    pieces, loop_runs = await scrape(metrics)
    assert before == []
    assert len(generated) == 20_000
    assert len(pieces) > 5
    assert max(map(len, pieces)) < 70_000, "pieces are bounded"
    assert all(later > earlier for earlier, later in pairwise(loop_runs))
    families = list(text_string_to_metric_families(b"".join(pieces).decode()))
    assert len(next(each for each in families if each.name == "rows").samples) == 20_000


def counted_rows(generated: list[int], rows: int) -> Iterator[Row]:
    for number in range(rows):
        generated.append(number)
        yield (str(number),), number


async def test_a_scrape_of_many_routes_yields_often() -> None:
    pieces, loop_runs = await scrape(metrics_with_routes(1000))
    assert len(loop_runs) > 150
    assert loop_runs[-1] >= len(loop_runs) - 1
    assert max(map(len, pieces)) < 70_000


async def test_a_head_request_generates_all_pieces_before_its_response() -> None:
    pieces, loop_runs = await scrape(metrics_with_routes(300), "HEAD")
    assert len(loop_runs) == 1, "the response has no body stream"
    assert len(pieces) > 2
    assert loop_runs[0] >= len(pieces) - 2


async def test_a_short_scrape_is_one_piece() -> None:
    pieces, loop_runs = await scrape(metrics_with_routes(1))
    assert (len(pieces), len(loop_runs)) == (1, 1)


def test_an_unused_queue_has_no_wait_times() -> None:
    metrics = Metrics()
    for backend in ("idle", "busy"):
        metrics.backends.backend_counters(backend)
    metrics.backends.backend_counters("busy").queue_wait.observe(0.1)
    _, body = text(metrics.registry, "")
    fields = {
        line.partition("{")[2] for line in body.splitlines() if "queue_seconds_count{" in line
    }
    assert fields == {'backend="busy"} 1.0'}
