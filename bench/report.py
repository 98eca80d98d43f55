"""From runs to one table, made so that it can be pasted, and the same as JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from .load import Measured

_HEADER = (
    "compared", "contender", "requests/s", "p50 ms", "p99 ms", "proxy CPU µs", "all CPU µs",
    "infergate is … as fast", "p50 ratio", "p99 ratio", "CPU ratio",
)  # fmt: skip


@dataclass(frozen=True)
class Runs:
    """One contender's run in each round."""

    name: str
    rounds: tuple[Measured, ...]


@dataclass(frozen=True)
class Result:
    """One comparison; infergate comes first."""

    name: str
    contenders: tuple[Runs, ...]


@dataclass(frozen=True)
class Ratio:
    """infergate's figure divided by another's in the same round: median, least and most."""

    median: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.least:.2f} to {self.most:.2f})"


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


def ratio(ours: Runs, theirs: Runs, figure: Callable[[Measured], float]) -> Ratio | None:
    """None where a figure is zero: too little to measure, or no proxy to measure."""
    pairs = [(figure(a), figure(b)) for a, b in zip(ours.rounds, theirs.rounds, strict=True)]
    if not all(b for _, b in pairs):
        return None
    quotients = [a / b for a, b in pairs]
    return Ratio(median(quotients), min(quotients), max(quotients))


def ratios(ours: Runs, theirs: Runs) -> dict[str, Ratio | None]:
    """CPU is compared proxy with proxy, or all with all where the other has no proxy."""
    cpu = ratio(ours, theirs, proxy_cpu) or ratio(ours, theirs, all_cpu)
    return {
        "speed": ratio(ours, theirs, speed),
        "p50": ratio(ours, theirs, p50),
        "p99": ratio(ours, theirs, p99),
        "cpu": cpu,
    }


def table(results: list[Result]) -> str:
    """A Markdown table that is also readable as it stands."""
    rows = [_HEADER]
    for result in results:
        ours = result.contenders[0]
        for runs in result.contenders:
            first = runs is ours
            against = ["" for _ in range(4)] if first else _spelled(ratios(ours, runs))
            rows.append((result.name if first else "", runs.name, *_figures(runs), *against))
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADER))]
    lines = [
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(lines)


def as_json(results: list[Result]) -> list[dict[str, Any]]:
    """Every run and every ratio."""
    return [
        {
            "compared": result.name,
            "runs": {runs.name: [asdict(r) for r in runs.rounds] for runs in result.contenders},
            "infergate_to": {
                runs.name: {
                    what: asdict(quotient) if quotient else None
                    for what, quotient in ratios(result.contenders[0], runs).items()
                }
                for runs in result.contenders[1:]
            },
        }
        for result in results
    ]


def _figures(runs: Runs) -> list[str]:
    def middle(figure: Callable[[Measured], float]) -> float:
        return median(map(figure, runs.rounds))

    proxy = middle(proxy_cpu)
    return [
        f"{middle(speed):.0f}",
        f"{middle(p50):.2f}",
        f"{middle(p99):.2f}",
        f"{proxy:.0f}" if proxy else "-",
        f"{middle(all_cpu):.0f}",
    ]


def _spelled(quotients: dict[str, Ratio | None]) -> list[str]:
    return [str(quotient) if quotient else "-" for quotient in quotients.values()]
