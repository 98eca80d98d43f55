"""Results, and the metrics derived from them, as plain data that is stored as JSON."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from statistics import median
from typing import Any

from .load import Measured

Metric = Callable[[Measured], float]

speed: Metric = attrgetter("per_second")
p50: Metric = attrgetter("p50_ms")
p99: Metric = attrgetter("p99_ms")
proxy_cpu: Metric = attrgetter("proxy_cpu")
all_cpu: Metric = attrgetter("all_cpu")


@dataclass(frozen=True)
class Spread:
    """A median with its minimum and maximum."""

    median: float
    minimum: float
    maximum: float

    def __str__(self) -> str:
        if self.minimum == self.maximum:
            return f"{self.median:.2f}"
        return f"{self.median:.2f} [{self.minimum:.2f}..{self.maximum:.2f}]"


def spread(values: Iterable[float]) -> Spread:
    """Return the spread of at least one value."""
    numbers = list(values)
    return Spread(median(numbers), min(numbers), max(numbers))


@dataclass(frozen=True)
class Runs:
    """The runs of one contender, one per round."""

    name: str
    variant: str
    rounds: tuple[Measured, ...]

    def median(self, metric: Metric) -> float:
        """Return the median of all rounds."""
        return median(map(metric, self.rounds))


@dataclass(frozen=True)
class Result:
    """One comparison. The first contender other than infergate is the peer. Further contenders are
    the same peer again, another peer, or another reference."""

    name: str
    contenders: tuple[Runs, ...]
    at: int = 0

    @property
    def ours(self) -> dict[str, Runs]:
        """Return infergate's runs by variant."""
        return {runs.variant: runs for runs in self.contenders if runs.variant}

    @property
    def others(self) -> tuple[Runs, ...]:
        return tuple(runs for runs in self.contenders if not runs.variant)


@dataclass(frozen=True)
class Peak:
    """The peak of resident memory for one tensor, as a ratio to the tensor's size."""

    variant: str
    pair: str
    ratio: float


@dataclass(frozen=True)
class Account:
    """The CPU of one request in microseconds, by stage."""

    name: str
    variant: str
    stages: Mapping[str, float]


@dataclass
class Bench:
    """All results. ``idle`` is resident memory in bytes, by variant. ``notes`` say what was not
    measured, and why."""

    conditions: str = ""
    results: list[Result] = field(default_factory=list)
    peaks: list[Peak] = field(default_factory=list)
    idle: dict[str, int] = field(default_factory=dict)
    accounts: list[Account] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def result(self, name: str) -> Result | None:
        """Return the comparison ``name``, or None."""
        return next((each for each in self.results if each.name == name), None)

    def curve(self, name: str) -> list[Result]:
        """Return all comparisons called ``name``, sorted by the varied parameter."""
        return sorted((each for each in self.results if each.name == name), key=lambda r: r.at)

    @property
    def variants(self) -> list[str]:
        """Return the variants that were measured."""
        measured = [variant for result in self.results for variant in result.ours]
        return list(dict.fromkeys([*measured, *self.idle, *(peak.variant for peak in self.peaks)]))


def ratio(ours: Runs, theirs: Runs, metric: Metric) -> Spread | None:
    """Return the ratios within each round, or None if a value is zero, because it is too small to
    measure or there is no proxy."""
    pairs = [(metric(a), metric(b)) for a, b in zip(ours.rounds, theirs.rounds, strict=True)]
    return spread(a / b for a, b in pairs) if all(a and b for a, b in pairs) else None


def difference(ours: Runs, theirs: Runs, metric: Metric) -> Spread:
    """Return the differences within each round."""
    pairs = zip(ours.rounds, theirs.rounds, strict=True)
    return spread(metric(a) - metric(b) for a, b in pairs)


def cpu_ratio(ours: Runs, theirs: Runs) -> Spread | None:
    """Compare the CPU of the proxies or, if the other contender has no proxy, the CPU of all
    processes."""
    return ratio(ours, theirs, proxy_cpu if any(map(proxy_cpu, theirs.rounds)) else all_cpu)


def ratios(ours: Runs, theirs: Runs) -> dict[str, Spread | None]:
    """Return the ratios of all metrics, by the names of the metrics."""
    metrics = {"requests/s": speed, "p50": p50, "p99": p99}
    spreads = {name: ratio(ours, theirs, metric) for name, metric in metrics.items()}
    return {**spreads, "CPU per request": cpu_ratio(ours, theirs)}


def as_json(bench: Bench) -> dict[str, Any]:
    return asdict(bench)


def from_json(values: Mapping[str, Any]) -> Bench:
    """Return the results for which ``as_json`` returns ``values``."""
    return Bench(
        values["conditions"],
        [
            Result(each["name"], tuple(map(_runs, each["contenders"])), each["at"])
            for each in values["results"]
        ],
        [Peak(**each) for each in values["peaks"]],
        dict(values["idle"]),
        [Account(**each) for each in values["accounts"]],
        list(values["notes"]),
    )


def _runs(values: Mapping[str, Any]) -> Runs:
    rounds = (
        Measured(**{**each, "times_ms": tuple(each["times_ms"])}) for each in values["rounds"]
    )
    return Runs(values["name"], values["variant"], tuple(rounds))
