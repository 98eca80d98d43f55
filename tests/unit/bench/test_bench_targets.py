import pytest
from bench import comparisons as of
from bench.report import details, peaks, targets
from bench.results import Bench, Peak, Result, Spread
from bench.targets import Bound, noise, of_latency, of_workers, rows
from bench_kit import runs

AT_OR_ABOVE = Bound(0.8, 1.1)
BELOW = Bound(2, 1, is_maximum=True)


@pytest.mark.parametrize(
    ("bound", "value", "said"),
    [
        (AT_OR_ABOVE, 0.79, "no"), (AT_OR_ABOVE, 0.8, "required"), (AT_OR_ABOVE, 1.1, "target"),
        (BELOW, 2.01, "no"), (BELOW, 2, "required"), (BELOW, 1, "target"),
    ],
)  # fmt: skip
def test_reached(bound: Bound, value: float, said: str) -> None:
    assert bound.reached(value) == said


def test_the_median_is_judged_and_rounds_that_disagree_are_marked() -> None:
    assert AT_OR_ABOVE.judged(Spread(0.9, 0.85, 1.0)) == "required"
    assert AT_OR_ABOVE.judged(Spread(0.9, 0.7, 1.0)) == "required ?"
    assert BELOW.judged(Spread(2.5, 1.9, 3.0)) == "no ?"


def test_bounds_are_spelled() -> None:
    assert AT_OR_ABOVE.format_value(0.8) == "≥ 0.8"
    assert Bound(100, 70, "MB", is_maximum=True).format_value(70) == "≤ 70 MB"


def test_every_comparison_of_the_table_is_a_row() -> None:
    names = (
        of.JSON_IMAGE, of.BINARY_IMAGE, of.JSON_TINY, of.GRPC_TINY, of.GRPC_IMAGE,
        of.GRAPHPIPE_IMAGE, of.LEGACY_IMAGE, of.JSON_LATENCY, of.GRPC_LATENCY,
    )  # fmt: skip
    ours, peer = runs("us", "own", speeds=[4, 4]), runs("them", speeds=[1, 2])
    bench = Bench(results=[Result(name, (ours, peer)) for name in names])
    found = rows(bench)
    assert len(found) == len(names) + 2  # p50 and p99 of the delays
    assert found[0].found == {"own": Spread(3, 2, 4)}
    assert all(row.found for row in found)


def test_the_worst_pair_is_judged() -> None:
    found = [Peak("own", "a", 1.5), Peak("own", "b", 2.5)]
    bench = Bench(peaks=[*found, Peak("compat", "a", 4.0), Peak("compat", "b", 1.0)])
    (row,) = rows(bench)
    assert {engine: row.bound.judged(each) for engine, each in row.found.items()} == {
        "own": "required",
        "compat": "no",
    }
    assert [cell.strip() for cell in peaks(bench).splitlines()[2].split("|")[2:4]] == [
        "1.50",
        "4.00",
    ]


def test_resident_memory_is_in_megabytes() -> None:
    (row,) = rows(Bench(idle={"own": 69_000_000}))
    assert row.bound.judged(row.found["own"]) == "target"


def test_cost_by_size_is_cpu_a_byte() -> None:
    def at(size: int, cpu: float) -> Result:
        return Result(of.GRPC_SIZES, (runs("us", "own", cpus=[cpu]),), size)

    linear = Bench(results=[at(1024, 90), at(2**20, 100), at(2**24, 1600)])
    (row,) = rows(linear)
    assert row.found["own"].median == pytest.approx(1)
    (row,) = rows(Bench(results=[at(2**20, 100), at(2**24, 3200)]))
    assert row.bound.judged(row.found["own"]) == "no"


def test_cost_by_routes_is_cpu_a_request() -> None:
    found = rows(
        Bench(
            results=[
                Result(of.JSON_ROUTES, (runs("us", "own", cpus=[cpu]),), at)
                for at, cpu in ((1, 100.0), (10_000, 120.0))
            ]
        )
    )
    assert [row.found["own"].median for row in found] == [pytest.approx(1.2)]


def test_noise_is_a_contender_compared_with_itself() -> None:
    us, peer, again = (
        runs("us", "own", speeds=[9]),
        runs("p", speeds=[2]),
        runs(of.AGAIN, speeds=[3]),
    )
    bench = Bench(results=[Result("x", (us, peer, again)), Result("y", (us, peer, peer))])
    assert {name: each["requests/s"] for name, each in noise(bench).items()} == {
        "x": Spread(1.5, 1.5, 1.5)
    }


def test_tables_have_a_line_each_and_the_same_columns() -> None:
    ours, peer = runs("us", "own", speeds=[4]), runs("them", speeds=[1])
    bench = Bench(results=[Result(of.GRPC_IMAGE, (ours, peer))])
    table = targets(bench).split("\n\n")[0].splitlines()
    assert len(table) == 3
    assert len({line.count("|") for line in table}) == 1
    assert [cell.strip() for cell in table[2].split("|")[-3:-1]] == ["4.00", "target"]
    assert "Two workers (required 1.6, target 1.9) were not measured" in targets(bench)
    assert [line.split("|")[2].strip() for line in details(bench).splitlines()[2:]] == [
        "us",
        "them",
    ]


def test_two_workers_are_compared_with_one() -> None:
    two, one = runs("two", "own", speeds=[180]), runs("one", speeds=[100])
    bench = Bench(results=[Result(of.TWO_WORKERS, (two, one))])
    [row] = rows(bench)
    assert row.found["own"].median == pytest.approx(1.8)
    assert row.bound.judged(row.found["own"]) == "required"
    found = [sum(run.all_cpu * run.per_second for run in each.rounds) / 1e6 for each in (two, one)]
    assert f"two workers got {found[0]:.2f} CPUs, the single worker {found[1]:.2f}" in of_workers(
        bench
    )


def test_envoys_added_latency_is_shown() -> None:
    times = {"us": 1.9, "the echo": 0.25, "Envoy": 0.75}
    contenders = tuple(
        runs(name, "own" if name == "us" else "", times=[time]) for name, time in times.items()
    )
    text = of_latency(Bench(results=[Result(of.GRPC_LATENCY, contenders)]))
    assert text == "At 100 requests/s, Envoy adds at p50 0.50 ms to gRPC requests."
    assert of_latency(Bench()) == ""
