from collections.abc import Mapping

import pytest
from bench import comparisons as work
from bench.report import details, peaks, targets
from bench.results import Bench, Peak, Result, Spread
from bench.targets import Bound, envoy_latency, noise, rows
from bench_kit import runs

AT_OR_ABOVE = Bound(0.8, 1.1)
AT_OR_BELOW = Bound(2, 1, is_maximum=True)


def curve(name: str, cpus: Mapping[int, float]) -> Bench:
    """Return results with the CPU in ``cpus`` at each value of the varied parameter."""
    return Bench(
        results=[Result(name, (runs("us", "own", cpus=[cpu]),), at) for at, cpu in cpus.items()]
    )


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize(
    ("bound", "value", "verdict"),
    [
        (AT_OR_ABOVE, 0.79, "no"), (AT_OR_ABOVE, 0.8, "required"), (AT_OR_ABOVE, 1.1, "target"),
        (AT_OR_BELOW, 2.01, "no"), (AT_OR_BELOW, 2, "required"), (AT_OR_BELOW, 1, "target"),
    ],
)  # fmt: skip
def test_a_value_reaches_the_target_the_requirement_or_neither(
    bound: Bound, value: float, verdict: str
) -> None:
    assert bound.reached(value) == verdict


def test_the_median_is_judged_and_rounds_that_disagree_are_marked() -> None:
    assert AT_OR_ABOVE.judged(Spread(0.9, 0.85, 1.0)) == "required"
    assert AT_OR_ABOVE.judged(Spread(0.9, 0.7, 1.0)) == "required ?"
    assert AT_OR_BELOW.judged(Spread(2.5, 1.9, 3.0)) == "no ?"


def test_bounds_are_formatted_with_their_unit() -> None:
    assert AT_OR_ABOVE.format_value(0.8) == "≥ 0.8"
    assert Bound(100, 70, "MB", is_maximum=True).format_value(70) == "≤ 70 MB"


def test_every_comparison_is_a_row_of_the_table() -> None:
    names = (
        work.JSON_IMAGE, work.BINARY_IMAGE, work.JSON_TINY, work.GRPC_TINY, work.GRPC_IMAGE,
        work.GRAPHPIPE_IMAGE, work.LEGACY_IMAGE, work.ROWS_IMAGE, work.PREDICT_IMAGE,
        work.JSON_LATENCY, work.GRPC_LATENCY,
    )  # fmt: skip
    ours, peer = runs("us", "own", speeds=[4, 4]), runs("them", speeds=[1, 2])
    bench = Bench(results=[Result(name, (ours, peer)) for name in names])
    table = rows(bench)
    # Both latencies, tiny JSON, and gRPC of 600 KB have two rows each.
    assert len(table) == len(names) + 4
    assert [row.work for row in table if not row.results] == [work.JSON_TINY]  # rest-proxy
    images = {row.work: row for row in table if row.baseline.startswith("Triton")}
    assert images[work.JSON_IMAGE].results == {"own": Spread(3, 2, 4)}


def test_the_worst_pair_is_judged() -> None:
    own_peaks = [Peak("own", "a", 1.5), Peak("own", "b", 2.5)]
    bench = Bench(peaks=[*own_peaks, Peak("compat", "a", 4.0), Peak("compat", "b", 1.0)])
    (row,) = rows(bench)
    judged = {engine: row.bound.judged(each) for engine, each in row.results.items()}
    assert judged == {"own": "required", "compat": "no"}
    assert cells(peaks(bench).splitlines()[2])[1:] == ["1.50", "4.00"]


def test_resident_memory_is_in_megabytes() -> None:
    (row,) = rows(Bench(idle={"own": 69_000_000}))
    assert row.bound.judged(row.results["own"]) == "target"


def test_cost_by_size_is_cpu_per_byte() -> None:
    (row,) = rows(curve(work.GRPC_SIZES, {1024: 90, 2**20: 100, 2**24: 1600}))
    assert row.results["own"].median == pytest.approx(1)
    (row,) = rows(curve(work.GRPC_SIZES, {2**20: 100, 2**24: 3200}))
    assert row.bound.judged(row.results["own"]) == "no"


def test_cost_by_routes_is_cpu_per_request() -> None:
    (row,) = rows(curve(work.JSON_ROUTES, {1: 100, 10_000: 120}))
    assert row.results["own"].median == pytest.approx(1.2)


def test_noise_is_a_contender_compared_with_itself() -> None:
    us, peer = runs("us", "own", speeds=[9]), runs("p", speeds=[2])
    again = runs(work.AGAIN, speeds=[3])
    bench = Bench(results=[Result("x", (us, peer, again)), Result("y", (us, peer, peer))])
    spreads = {name: each["requests/s"] for name, each in noise(bench).items()}
    assert spreads == {"x": Spread(1.5, 1.5, 1.5)}


def test_a_table_has_a_line_for_each_row() -> None:
    ours, peer = runs("us", "own", speeds=[4]), runs("them", speeds=[1])
    bench = Bench(
        results=[Result(work.GRPC_IMAGE, (ours, peer))], notes=["compat was not measured"]
    )
    table = targets(bench).split("\n\n")[0].splitlines()
    assert len(table) == 4  # a header of two lines, and rows for CPU and rate
    assert len({line.count("|") for line in table}) == 1
    assert cells(table[3])[-1] == "4.00: target"
    assert targets(bench).endswith("- compat was not measured")
    assert [cells(line)[1] for line in details(bench).splitlines()[2:]] == ["us", "them"]


def test_a_comparison_has_a_floor_and_a_row_for_each_peer() -> None:
    contenders = (
        runs("us", "own", cpus=[200]), runs("Envoy", cpus=[100]), runs(work.RELAY, cpus=[30]),
        runs(work.REST_PROXY, cpus=[150]),
    )  # fmt: skip
    envoy, rest_proxy = rows(Bench(results=[Result(work.JSON_TINY, contenders)]))
    assert (envoy.results["own"].median, envoy.floor) == (2, Spread(0.3, 0.3, 0.3))
    assert rest_proxy.results["own"].median == pytest.approx(4 / 3)
    assert rest_proxy.floor == Spread(0.2, 0.2, 0.2)


def test_real_clients_are_compared_with_h2load_by_variant() -> None:
    def result(name: str, own: float, system: float) -> Result:
        variants = (runs("a", "own", cpus=[own]), runs("b", "own-system", cpus=[system]))
        return Result(name, (*variants, runs("Envoy", cpus=[1]), runs(work.RELAY, cpus=[own - 80])))

    grpcio, grpc_go = rows(
        Bench(results=[result(work.BY_H2LOAD, 100, 50), result(work.BY_GRPCIO, 105, 60)])
    )
    judged = {name: grpcio.bound.judged(each) for name, each in grpcio.results.items()}
    assert judged == {"own": "target", "own-system": "no"}
    assert grpcio.results["own-system"].median == pytest.approx(1.2)
    assert grpcio.floor == Spread(1.25, 1.25, 1.25)
    assert (grpc_go.work, grpc_go.results) == (work.BY_GRPC_GO, {})


def test_several_workers_are_compared_with_one_worker() -> None:
    table = rows(curve(work.WORKERS, {4: 109, 1: 100, 2: 104}))
    assert [row.work.rpartition(" ")[2] for row in table] == ["2", "4"]
    assert [row.bound.judged(row.results["own"]) for row in table] == ["target", "required"]


def test_envoys_added_latency_is_shown() -> None:
    times = {"us": 1.9, "the echo": 0.25, "Envoy": 0.75}
    contenders = tuple(
        runs(name, "own" if name == "us" else "", times=[time]) for name, time in times.items()
    )
    text = envoy_latency(Bench(results=[Result(work.GRPC_LATENCY, contenders)]))
    assert text == "At 100 requests/s, Envoy adds 0.50 ms to gRPC requests (p50)."
    assert envoy_latency(Bench()) == ""
