from bench.load import PERCENTILES, Pace, percentiles, waited


def test_percentiles_use_nearest_rank() -> None:
    found = dict(zip(PERCENTILES, percentiles([float(n) for n in range(1000, 0, -1)]), strict=True))
    assert (found[0], found[50], found[99], found[100]) == (1, 501, 991, 1000)


def test_one_time_is_every_percentile() -> None:
    assert percentiles([7.0]) == (7.0,) * len(PERCENTILES)


def test_a_closed_loop_measures_from_the_start() -> None:
    assert waited([(0, 2_000), (2_000, 9_000)], 0) == [2.0, 7.0]


def test_a_delayed_request_is_measured_from_its_scheduled_time() -> None:
    # 100/s: due at 0, 10, 20 and 30 ms. The first takes 25 ms, so two others start late.
    times = [(0, 25_000), (25_000, 26_000), (26_000, 27_000), (30_000, 31_000)]
    assert waited(times, 100) == [25.0, 16.0, 7.0, 1.0]


def test_lateness_of_the_generator_is_not_counted() -> None:
    assert waited([(0, 1_000), (10_900, 11_900)], 100) == [1.0, 1.0]


def test_an_early_request_is_measured_from_its_start() -> None:
    assert waited([(0, 12_000), (9_000, 13_000)], 100) == [12.0, 4.0]


def test_an_open_loop_has_one_connection_with_many_requests() -> None:
    assert Pace(rate=100).arguments() == ("-c1", "-m100", "--rps=100")
    assert Pace(connections=3).arguments() == ("-c3", "-m1")
