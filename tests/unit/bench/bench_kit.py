"""Build benchmark results from given numbers."""

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
    """Return runs with a round per value of ``speeds`` (requests/s), ``cpus`` or ``times``."""
    count = len(speeds) or len(cpus) or len(times)
    rounds = zip(
        speeds or [1000.0] * count, cpus or [50.0] * count, times or [1.0] * count, strict=True
    )
    measured = [
        Measured(100, speed, (time,) * len(PERCENTILES), cpu, cpu + 10)
        for speed, cpu, time in rounds
    ]
    return Runs(name, variant, tuple(measured))
