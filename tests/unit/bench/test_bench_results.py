import json

import pytest
from bench import results
from bench_kit import runs


def test_a_ratio_is_formed_within_each_round() -> None:
    ours, theirs = runs("a", "own", speeds=[10, 40, 90]), runs("b", speeds=[10, 20, 30])
    assert results.ratio(ours, theirs, results.speed) == results.Spread(2, 1, 3)


def test_a_ratio_with_a_zero_is_none() -> None:
    positive, zero_last = runs("a", cpus=[1, 1]), runs("b", cpus=[1, 0])
    assert results.ratio(positive, zero_last, results.proxy_cpu) is None
    assert results.ratio(zero_last, positive, results.proxy_cpu) is None
    assert results.cpu_ratio(positive, zero_last) is None


def test_without_a_proxy_all_cpu_is_compared() -> None:
    ours, direct = runs("a", "own", cpus=[20.0]), runs("b", cpus=[0.0])
    assert results.cpu_ratio(ours, direct) == results.spread([30 / 10])
    assert results.cpu_ratio(ours, runs("c", cpus=[40.0])) == results.spread([0.5])


def test_rounds_must_match() -> None:
    with pytest.raises(ValueError, match="shorter"):
        results.ratio(runs("a", cpus=[1, 2]), runs("b", cpus=[1]), results.proxy_cpu)


def test_a_difference_is_formed_within_each_round() -> None:
    ours, direct = runs("a", times=[1.5, 2.0]), runs("b", times=[1.0, 1.0])
    assert results.difference(ours, direct, results.p50) == results.Spread(0.75, 0.5, 1.0)


def test_a_spread_is_formatted_with_its_range_unless_it_has_one_value() -> None:
    assert str(results.spread([2.0])) == "2.00"
    assert str(results.spread([1, 2, 4])) == "2.00 [1.00..4.00]"


def test_results_round_trip_through_json() -> None:
    bench = results.Bench(
        "here",
        [results.Result("row", (runs("a", "own", speeds=[1, 2]), runs("b", speeds=[3, 4])), at=7)],
        [results.Peak("own", "x → y", 1.5)],
        {"own": 60_000_000},
        [results.Account("row", "own", {"log, metrics": 1.0})],
        ["x was not measured"],
    )
    assert results.from_json(json.loads(json.dumps(results.as_json(bench)))) == bench


def test_curves_are_sorted_and_an_unknown_result_is_none() -> None:
    bench = results.Bench(
        results=[results.Result("c", (runs("a", "own", cpus=[1]),), at) for at in (9, 1, 4)]
    )
    assert [each.at for each in bench.curve("c")] == [1, 4, 9]
    assert bench.result("d") is None
    assert bench.variants == ["own"]
