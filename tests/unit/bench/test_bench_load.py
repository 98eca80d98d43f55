import os
import sys
from pathlib import Path

import pytest
from bench import load
from bench.load import PERCENTILES, Contender, LoadError, Pace, Request, percentiles, waited


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
    assert Pace(1, rate=100).arguments() == ("-c1", "-m100", "--rps=100")
    assert Pace(connections=3).arguments() == ("-c3", "-m1")


def test_a_rate_is_divided_among_connections_that_begin_one_after_the_other() -> None:
    assert Pace(connections=16, rate=1000).arguments() == (
        "-c16", "-m100", "--rps=62.5", "-r1", "--rate-period=1ms",
    )  # fmt: skip


CLIENT = """
import sys, time
print("ready", flush=True)
assert sys.stdin.readline() == "\\n"
now = time.time() * 1e6
rows = [(now + i * 10_000, 200, 5_000) for i in range(int(sys.argv[5]))]
time.sleep(int(sys.argv[5]) / 100)
open(sys.argv[8], "w").write("\\n".join("\\t".join(f"{each:.0f}" for each in row) for row in rows))
sys.exit(sys.argv[4] != "7")
"""


def _client(size: int) -> Contender:
    request = Request("http://127.0.0.1:1/a/B", {}, b"body", size, grpc=True)
    return Contender("x", request, 0, os.getsid(0), "own", (sys.executable, "-c", CLIENT))


def test_a_real_client_is_counted_after_its_connections_are_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent = iter([0.0, 0.0, 100.0, 1000.0, 200.0, 1300.0])  # before, settled, and after
    monkeypatch.setattr(load, "cpu", lambda _: next(spent))
    monkeypatch.setattr(load, "SETTLE_SECONDS", 0.1)
    run = load.run(_client(7), 30, Pace(2, 100), tmp_path)
    assert run.per_second == pytest.approx(30 / 0.295)
    assert 100 / 21 < run.proxy_cpu < 100 / 15  # about 20 of 30 requests
    assert run.all_cpu == pytest.approx(run.proxy_cpu * 4)


def test_a_real_client_that_fails_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="ready"):
        load.run(_client(8), 3, Pace(1, 100), tmp_path)
