"""Results and the figures derived from them: plain data, to JSON and back."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from .load import Measured

Figure = Callable[[Measured], float]


def speed(run: Measured) -> float:
    return run.per_second


def p50(run: Measured) -> float:
    return run.p50_ms


def p99(run: Measured) -> float:
    return run.p99_ms


def proxy_cpu(run: Measured) -> float:
    return run.proxy_cpu


def all_cpu(run: Measured) -> float:
    return run.all_cpu


@dataclass(frozen=True)
class Spread:
    """Median, minimum and maximum."""

    median: float
    minimum: float
    maximum: float

    def __str__(self) -> str:
        middle = f"{self.median:.2f}"
        return (
            middle
            if self.minimum == self.maximum
            else f"{middle} [{self.minimum:.2f}..{self.maximum:.2f}]"
        )


def spread(values: Iterable[float]) -> Spread:
    """Return the spread of at least one value."""
    found = list(values)
    return Spread(median(found), min(found), max(found))


@dataclass(frozen=True)
class Runs:
    """One contender's run in each round."""

    name: str
    variant: str
    rounds: tuple[Measured, ...]

    def middle(self, figure: Figure) -> float:
        """The median of all rounds."""
        return median(map(figure, self.rounds))


@dataclass(frozen=True)
class Result:
    """One comparison. The first contender other than infergate is the peer; the rest are the same
    peer again, another peer or another reference."""

    name: str
    contenders: tuple[Runs, ...]
    at: int = 0

    @property
    def ours(self) -> dict[str, Runs]:
        """By variant."""
        return {runs.variant: runs for runs in self.contenders if runs.variant}

    @property
    def others(self) -> tuple[Runs, ...]:
        return tuple(runs for runs in self.contenders if not runs.variant)


@dataclass(frozen=True)
class Peak:
    """Peak resident memory for one tensor, as a ratio to its size."""

    variant: str
    pair: str
    ratio: float


@dataclass(frozen=True)
class Account:
    """CPU of one request in microseconds, by stage."""

    name: str
    variant: str
    stages: Mapping[str, float]


@dataclass
class Bench:
    """All results. ``idle`` is resident memory in bytes, by variant; ``notes`` list what was not
    measured, and why."""

    conditions: str = ""
    results: list[Result] = field(default_factory=list)
    peaks: list[Peak] = field(default_factory=list)
    idle: dict[str, int] = field(default_factory=dict)
    accounts: list[Account] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def result(self, name: str) -> Result | None:
        """The comparison of that name, or None."""
        return next((each for each in self.results if each.name == name), None)

    def curve(self, name: str) -> list[Result]:
        """All comparisons of that name, by the varied parameter."""
        return sorted((each for each in self.results if each.name == name), key=lambda r: r.at)

    @property
    def variants(self) -> list[str]:
        """Only those that were measured."""
        found = [variant for result in self.results for variant in result.ours]
        return list(dict.fromkeys([*found, *self.idle, *(peak.variant for peak in self.peaks)]))


def ratio(ours: Runs, theirs: Runs, figure: Figure) -> Spread | None:
    """Ratios within each round; None if a value is zero: too small to measure, or no proxy."""
    pairs = [(figure(a), figure(b)) for a, b in zip(ours.rounds, theirs.rounds, strict=True)]
    return spread(a / b for a, b in pairs) if all(a and b for a, b in pairs) else None


def difference(ours: Runs, theirs: Runs, figure: Figure) -> Spread:
    """Differences within each round."""
    pairs = zip(ours.rounds, theirs.rounds, strict=True)
    return spread(figure(a) - figure(b) for a, b in pairs)


def cpu_ratio(ours: Runs, theirs: Runs) -> Spread | None:
    """Compare proxy with proxy, or everything with everything if the other has no proxy."""
    return ratio(ours, theirs, proxy_cpu if any(map(proxy_cpu, theirs.rounds)) else all_cpu)


def as_json(bench: Bench) -> dict[str, Any]:
    return asdict(bench)


def from_json(values: Mapping[str, Any]) -> Bench:
    """Read the output of ``as_json``."""
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
