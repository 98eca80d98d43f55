"""Formats results as Markdown tables that are readable without rendering."""

from collections.abc import Callable, Sequence

from .results import (
    Bench,
    Result,
    Runs,
    Spread,
    all_cpu,
    p50,
    p99,
    proxy_cpu,
    ratios,
    speed,
)
from .stages import STAGES
from .targets import envoy_latency, noise, rows

_HOW_TO_READ = (
    "Results are the median [minimum..maximum] over the rounds; a ratio compares measurements of "
    "the same round. A question mark means that the rounds disagree. The floor is a relay without "
    "features, compared in the same way. Calls from legacy clients to legacy servers are "
    "compared with an earlier revision, by `make bench-check BASE=revision`."
)


def targets(bench: Bench) -> str:
    """Return the project's targets with each variant's result."""
    variants = bench.variants
    lines = [["workload", "compared with", "required", "target", "floor", *variants]]
    for row in rows(bench):
        line = [row.work, row.baseline, row.bound.format_value(row.bound.required)]
        line += [row.bound.format_value(row.bound.desired), str(row.floor or "")]
        for spread in map(row.results.get, variants):
            line.append(f"{spread}: {row.bound.judged(spread)}" if spread else "-")
        lines.append(line)
    text = " ".join(filter(None, (_HOW_TO_READ, envoy_latency(bench))))
    return "\n\n".join([_table(lines), text, *(f"- {note}" for note in bench.notes)])


def machine(bench: Bench) -> str:
    """Return the noise of the machine."""
    spreads = noise(bench)
    if not spreads:
        return ""
    columns = next(iter(spreads.values()))
    lines = [["Envoy compared with itself, in alternating rounds", *columns]]
    lines += [[name, *map(_format, each.values())] for name, each in spreads.items()]
    return _table(lines)


def details(bench: Bench) -> str:
    """Return every comparison that is not a curve, with medians, and with ratios to the peer."""
    header = (
        "compared", "contender", "requests/s", "p50 ms", "p99 ms", "proxy CPU µs", "all CPU µs",
        "requests/s ratio", "p50 ratio", "p99 ratio", "CPU ratio",
    )  # fmt: skip
    lines: list[Sequence[str]] = [header]
    for result in bench.results:
        if not result.at:
            lines += _compared(result)
    return _table(lines)


def peaks(bench: Bench) -> str:
    """Return the peak memory of each pair of protocols, as a ratio to the tensor's size."""
    pairs = dict.fromkeys(peak.pair for peak in bench.peaks)
    by_pair = {(peak.pair, peak.variant): peak.ratio for peak in bench.peaks}
    variants = list(dict.fromkeys(peak.variant for peak in bench.peaks))
    lines = [["one tensor of 256 MiB", *variants]]
    lines += [[pair, *(f"{by_pair[pair, variant]:.2f}" for variant in variants)] for pair in pairs]
    return _table(lines)


def curve(results: Sequence[Result], axis: str, format_value: Callable[[int], str]) -> str:
    """Return CPU and time per request, for each value of the varied parameter."""
    variants = list(results[0].ours) if results else []
    lines = [
        [axis, *(f"{variant}: {each}" for variant in variants for each in ("CPU µs", "p50 ms"))]
    ]
    for result in results:
        line = [format_value(result.at)]
        for runs in result.ours.values():
            line += [f"{runs.median(proxy_cpu):.0f}", f"{runs.median(p50):.2f}"]
        lines.append(line)
    return _table(lines)


def stages(bench: Bench) -> str:
    """Return the CPU per request of infergate's processes, by stage."""
    lines = [["CPU µs per request", "variant", *STAGES, "total"]]
    lines += [
        [
            each.name,
            each.variant,
            *(f"{each.stages.get(stage, 0):.0f}" for stage in STAGES),
            f"{sum(each.stages.values()):.0f}",
        ]
        for each in bench.accounts
    ]
    return _table(lines)


def _compared(result: Result) -> list[list[str]]:
    peer = next(iter(result.others), None)
    lines = []
    for runs in result.contenders:
        is_compared = peer is not None and runs is not peer
        against = map(_format, ratios(runs, peer).values()) if is_compared else [""] * 4
        name = result.name if runs is result.contenders[0] else ""
        lines.append([name, runs.name, *_cells(runs), *against])
    return lines


def _cells(runs: Runs) -> list[str]:
    proxy = runs.median(proxy_cpu)
    return [
        f"{runs.median(speed):.0f}",
        f"{runs.median(p50):.2f}",
        f"{runs.median(p99):.2f}",
        f"{proxy:.0f}" if proxy else "-",
        f"{runs.median(all_cpu):.0f}",
    ]


def _format(spread: Spread | None) -> str:
    return str(spread) if spread else "-"


def _table(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    rows = [
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    ]
    rows.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(rows)
