"""Benchmark results without a run."""

from collections.abc import Sequence

from bench.load import PERCENTILES, Measured
from bench.results import Runs


def runs(
    name: str,
    variant: str = "",
    *,
    speeds: Sequence[float] = (),
    cpus: Sequence[float] = (),
    times: Sequence[float] = (),
) -> Runs:
    """Return a round for each of the given requests/s, CPU values of the proxy, or times."""
    return Runs(
        name,
        variant,
        tuple(
            Measured(
                100,
                speeds[i] if speeds else 1000.0,
                ((times[i] if times else 1.0),) * len(PERCENTILES),
                cpus[i] if cpus else 50.0,
                (cpus[i] if cpus else 50.0) + 10,
            )
            for i in range(len(speeds) or len(cpus) or len(times))
        ),
    )
