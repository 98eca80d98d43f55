"""Results as Markdown tables that are readable without rendering."""

from collections.abc import Callable, Mapping, Sequence

from .results import (
    Bench,
    Result,
    Runs,
    Spread,
    all_cpu,
    cpu_ratio,
    p50,
    p99,
    proxy_cpu,
    ratio,
    speed,
)
from .stages import STAGES
from .targets import noise, of_latency, of_workers, rows

_HOW_TO_READ = (
    "Results are the median [minimum..maximum] over the rounds; a ratio compares measurements of "
    "the same round. A question mark means that the rounds disagree."
)


def targets(bench: Bench) -> str:
    """Return the project's targets with each engine's result."""
    engines = bench.engines
    header = ["workload", "compared with", "required", "target"]
    for engine in engines:
        header += [f"{engine}: result", "met"]
    lines = [header]
    for row in rows(bench):
        line = [row.work, row.beside, row.bound.format_value(row.bound.must)]
        line.append(row.bound.format_value(row.bound.aim))
        for engine in engines:
            found = row.found.get(engine)
            line += [str(found), row.bound.judged(found)] if found else ["-", ""]
        lines.append(line)
    text = " ".join(filter(None, (_HOW_TO_READ, of_latency(bench), of_workers(bench))))
    return f"{_table(lines)}\n\n{text}"


def machine(bench: Bench) -> str:
    """Return the noise of the machine."""
    found = noise(bench)
    if not found:
        return ""
    figures = next(iter(found.values()))
    lines = [["Envoy compared with itself, in alternating rounds", *figures]]
    lines += [[name, *map(_or_none, each.values())] for name, each in found.items()]
    return _table(lines)


def details(bench: Bench) -> str:
    """Return every comparison with a peer: medians, and infergate's ratios to the peer."""
    header = (
        "compared", "contender", "requests/s", "p50 ms", "p99 ms", "proxy CPU µs", "all CPU µs",
        "requests/s ratio", "p50 ratio", "p99 ratio", "CPU ratio",
    )  # fmt: skip
    lines: list[Sequence[str]] = [header]
    for result in bench.results:
        if result.others:
            lines += _compared(result)
    return _table(lines)


def peaks(bench: Bench) -> str:
    """Return the peak memory of each pair, as a ratio to the tensor's size."""
    pairs = dict.fromkeys(peak.pair for peak in bench.peaks)
    found = {(peak.pair, peak.engine): peak.ratio for peak in bench.peaks}
    engines = list(dict.fromkeys(peak.engine for peak in bench.peaks))
    lines = [["one tensor of 256 MiB", *engines]]
    lines += [[pair, *(f"{found[pair, engine]:.2f}" for engine in engines)] for pair in pairs]
    return _table(lines)


def curve(results: Sequence[Result], what: str, format_value: Callable[[int], str]) -> str:
    """Return CPU and time per request, by the varied parameter."""
    engines = list(results[0].ours) if results else []
    lines = [[what, *(f"{engine}: {each}" for engine in engines for each in ("CPU µs", "p50 ms"))]]
    for result in results:
        line = [format_value(result.at)]
        for runs in result.ours.values():
            line += [f"{runs.middle(proxy_cpu):.0f}", f"{runs.middle(p50):.2f}"]
        lines.append(line)
    return _table(lines)


def stages(bench: Bench) -> str:
    """Return the CPU per request of infergate's processes, by stage."""
    lines = [["CPU µs per request", "engine", *STAGES, "total"]]
    lines += [
        [
            each.name,
            each.engine,
            *(f"{each.stages.get(stage, 0):.0f}" for stage in STAGES),
            f"{sum(each.stages.values()):.0f}",
        ]
        for each in bench.accounts
    ]
    return _table(lines)


def _compared(result: Result) -> list[list[str]]:
    peer = result.others[0]
    lines = []
    for runs in result.contenders:
        against = [""] * 4 if runs is peer else list(map(_or_none, _ratios(runs, peer).values()))
        name = result.name if runs is result.contenders[0] else ""
        lines.append([name, runs.name, *_figures(runs), *against])
    return lines


def _ratios(ours: Runs, theirs: Runs) -> Mapping[str, Spread | None]:
    figures = {figure.__name__: ratio(ours, theirs, figure) for figure in (speed, p50, p99)}
    return {**figures, "cpu": cpu_ratio(ours, theirs)}


def _figures(runs: Runs) -> list[str]:
    proxy = runs.middle(proxy_cpu)
    return [
        f"{runs.middle(speed):.0f}",
        f"{runs.middle(p50):.2f}",
        f"{runs.middle(p99):.2f}",
        f"{proxy:.0f}" if proxy else "-",
        f"{runs.middle(all_cpu):.0f}",
    ]


def _or_none(found: Spread | None) -> str:
    return str(found) if found else "-"


def _table(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    rows = [
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    ]
    rows.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(rows)
