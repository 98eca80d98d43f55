import os
import sys
from pathlib import Path

import pytest
from bench import load
from bench.load import PERCENTILES, Contender, LoadError, Pace, Request, latencies_ms, percentiles


def test_percentiles_use_nearest_rank() -> None:
    times = [float(n) for n in range(1000, 0, -1)]
    values = dict(zip(PERCENTILES, percentiles(times), strict=True))
    assert (values[0], values[50], values[99], values[100]) == (1, 501, 991, 1000)
    assert percentiles([7.0]) == (7.0,) * len(PERCENTILES)


# Requests of a paced run are due at 0, 10, 20 and 30 ms.
DELAYED = [(0, 25_000), (25_000, 26_000), (26_000, 27_000), (30_000, 31_000)]


@pytest.mark.parametrize(
    ("times", "rate", "latencies"),
    [
        pytest.param([(0, 2_000), (2_000, 9_000)], 0, [2, 7], id="closed loop"),
        pytest.param(DELAYED, 100, [25, 16, 7, 1], id="delayed by the first request"),
        pytest.param([(0, 1_000), (10_900, 11_900)], 100, [1, 1], id="late generator"),
        pytest.param([(0, 12_000), (9_000, 13_000)], 100, [12, 4], id="early request"),
    ],
)
def test_latencies_include_waits_for_earlier_responses(
    times: list[tuple[int, int]], rate: int, latencies: list[float]
) -> None:
    assert latencies_ms(times, rate) == latencies


@pytest.mark.parametrize(
    ("pace", "arguments"),
    [
        (Pace(connections=3), "-c3 -m1"),
        (Pace(1, rate=100), "-c1 -m100 --rps=100"),
        (Pace(connections=16, rate=1000), "-c16 -m100 --rps=62.5 -r1 --rate-period=1ms"),
    ],
)
def test_a_pace_becomes_arguments_of_h2load(pace: Pace, arguments: str) -> None:
    assert " ".join(pace.arguments()) == arguments


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


def test_a_real_client_is_measured_after_its_connections_are_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu_times = iter([0.0, 0.0, 100.0, 1000.0, 200.0, 1300.0])  # start, settled, end
    monkeypatch.setattr(load, "cpu", lambda _: next(cpu_times))
    monkeypatch.setattr(load, "SETTLE_SECONDS", 0.1)
    run = load.run(_client(7), 30, Pace(2, 100), tmp_path)
    assert run.per_second == pytest.approx(30 / 0.295)
    assert 100 / 21 < run.proxy_cpu < 100 / 15  # about 20 of 30 requests
    assert run.all_cpu == pytest.approx(run.proxy_cpu * 4)


def test_a_real_client_that_fails_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="ready"):
        load.run(_client(8), 3, Pace(1, 100), tmp_path)
