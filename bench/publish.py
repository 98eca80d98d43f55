"""The pages and plots that are made of a run: no figure of theirs is typed by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from . import comparisons as of
from . import report, svg
from .load import PERCENTILES
from .results import Bench, Figure, Result, p50, proxy_cpu

PAGE = Path("docs/benchmarks.md")
PLOTS = Path("docs/benchmarks")
HOLDING_BLOCKS = (Path("README.md"), Path("docs/performance.md"))
_METHOD = (
    "The method is in [0005](decisions/0005-benchmarks.md), what lies behind the figures in "
    "[performance.md](performance.md)."
)
_NOISE = "Equal things differ by so much. A ratio that is not further from 1 claims nothing."
_SIDE_BY_SIDE = (
    "Medians over the rounds; ratios are infergate's figure divided by that of the first contender "
    "that is not infergate."
)
_KIB = 1024
_SHOWN = [each for each in PERCENTILES if each < 100]
_ENGINE_COLOURS = {"own": 0, "compat": 1}
_OTHER = 2
_COMPARED = (
    of.JSON_IMAGE, of.BINARY_IMAGE, of.JSON_TINY, of.GRPC_TINY, of.GRPC_IMAGE, of.GRAPHPIPE_IMAGE,
    of.LEGACY_IMAGE, of.JSON_LATENCY, of.GRPC_LATENCY, of.BINARY_SIZES, of.GRPC_SIZES,
    of.JSON_ROUTES, of.GRPC_ROUTES, of.TWO_WORKERS,
)  # fmt: skip


def lacking(bench: Bench) -> list[str]:
    """What the pages tell that was not measured in ``bench``."""
    parts = {"memory": bench.peaks and bench.idle, "stages": bench.accounts}
    return [
        *(name for name in _COMPARED if bench.result(name) is None),
        *(name for name, measured in parts.items() if not measured),
    ]


def publish(bench: Bench, project: Path) -> None:
    """Write the page, the plots, and the blocks of other pages."""
    (project / PLOTS).mkdir(exist_ok=True)
    for name, drawn in plots(bench):
        (project / PLOTS / name).write_text(drawn)
    (project / PAGE).write_text(page(bench))
    told = blocks(bench)
    for path in HOLDING_BLOCKS:
        text = (project / path).read_text()
        (project / path).write_text(filled(text, told))


def blocks(bench: Bench) -> dict[str, str]:
    """What other pages show, by name."""
    return {
        "conditions": bench.conditions,
        "targets": report.targets(bench),
        "noise": report.machine(bench),
        "peaks": report.peaks(bench),
        "stages": report.stages(bench),
    }


def filled(text: str, told: dict[str, str]) -> str:
    """``text`` with what stands between ``<!-- bench: NAME -->`` and ``<!-- /bench -->`` replaced.
    Raises ValueError for a block that has no end."""
    for name, block in told.items():
        begin, end = f"<!-- bench: {name} -->", "<!-- /bench -->"
        if begin in text:
            before, _, rest = text.partition(begin)
            if end not in rest:
                raise ValueError(f"'{begin}' has no '{end}'")
            text = f"{before}{begin}\n{block}\n{end}{rest.partition(end)[2]}"
    return text


def page(bench: Bench) -> str:
    """All tables, as docs/benchmarks.md."""
    parts = (
        "# Benchmarks",
        "<!-- Made by `make bench ARGS=--publish`. -->",
        _METHOD,
        bench.conditions,
        "## Targets",
        report.targets(bench),
        "## The machine's noise",
        _NOISE,
        report.machine(bench),
        "## Side by side",
        _SIDE_BY_SIDE,
        report.details(bench),
        "## Peak memory",
        report.peaks(bench),
        "## Cost by size",
        *(_plot(name) for name in ("cost-by-size", "time-by-size")),
        *_curves(bench, (of.BINARY_SIZES, of.GRPC_SIZES), "payload"),
        "## Latency at 100 requests/s",
        *(_plot(name) for name in ("latency-json", "latency-grpc")),
        "## Cost by number of routes",
        _plot("cost-by-routes"),
        *_curves(bench, (of.JSON_ROUTES, of.GRPC_ROUTES), "routes"),
        "## CPU by stage",
        report.stages(bench),
    )
    return "\n\n".join(parts) + "\n"


def plots(bench: Bench) -> Iterator[tuple[str, str]]:
    """File names and SVG documents of what was measured."""
    sizes = {"binary REST → gRPC": of.BINARY_SIZES, "gRPC → gRPC": of.GRPC_SIZES}
    if bench.curve(of.GRPC_SIZES):
        yield "cost-by-size.svg", _by_size(bench, sizes, "CPU a request by size", proxy_cpu, "µs")
        yield "time-by-size.svg", _by_size(bench, sizes, "Time a request by size", p50, "ms")
    for name, comparison in (("json", of.JSON_LATENCY), ("grpc", of.GRPC_LATENCY)):
        if (result := bench.result(comparison)) is not None:
            yield f"latency-{name}.svg", _latency(result)
    if bench.curve(of.GRPC_ROUTES):
        routes = {"JSON → gRPC": of.JSON_ROUTES, "gRPC → gRPC": of.GRPC_ROUTES}
        lines = _lines(bench, routes, proxy_cpu)
        counts = [result.at for result in bench.curve(of.GRPC_ROUTES)]
        across = replace(svg.decades(counts, lambda n: f"{n:,.0f}"), title="routes")
        up = replace(svg.from_zero([y for line in lines for _, y in line.points]), title="µs")
        yield (
            "cost-by-routes.svg",
            svg.chart("CPU a tiny request by number of routes", across, up, lines),
        )


def size_spelled(size: int) -> str:
    """In the largest unit that it has one of."""
    unit = min(2, int(math.log(size, _KIB)) - 1)
    return f"{size // _KIB ** (unit + 1)} {('KiB', 'MiB', 'GiB')[unit]}"


def _by_size(bench: Bench, names: dict[str, str], title: str, figure: Figure, unit: str) -> str:
    lines = _lines(bench, names, figure)
    sizes = [result.at for result in bench.curve(of.GRPC_SIZES)]
    across = svg.Axis("payload", [(size, size_spelled(size)) for size in sizes], math.log10)
    values = [y for line in lines for _, y in line.points]
    up = replace(svg.decades(values, lambda n: f"{n:,g}"), title=unit)
    return svg.chart(title, across, up, lines)


def _lines(bench: Bench, names: dict[str, str], figure: Figure) -> list[svg.Line]:
    lines = []
    for number, (name, comparison) in enumerate(names.items()):
        curve = bench.curve(comparison)
        for engine in curve[0].ours:
            points = [(float(r.at), r.ours[engine].middle(figure)) for r in curve]
            colour = _ENGINE_COLOURS.get(engine, _OTHER)
            lines.append(svg.Line(f"{name}, {engine}", points, colour, dashed=number > 0))
    return lines


def _latency(result: Result) -> str:
    lines = []
    for runs in result.contenders:
        points = [
            (float(each), runs.middle(lambda run, i=i: run.times_ms[i]))  # type: ignore[misc]
            for i, each in enumerate(_SHOWN)
        ]
        lines.append(svg.Line(runs.name, points, _ENGINE_COLOURS.get(runs.engine, _OTHER)))
    across = svg.Axis(
        "percentile of requests",
        [(each, f"{each:g}") for each in _SHOWN if each not in (10, 25, 95)],
        lambda percent: -math.log10(1 - percent / 100),
    )
    up = replace(svg.from_zero([y for line in lines for _, y in line.points]), title="ms")
    return svg.chart(f"Latency, {result.name}", across, up, lines)


def _curves(bench: Bench, names: Sequence[str], what: str) -> Iterator[str]:
    spelled = size_spelled if what == "payload" else "{:,}".format
    for name in names:
        yield f"{name}:"
        yield report.curve(bench.curve(name), what, spelled)


def _plot(name: str) -> str:
    return f"![{name.replace('-', ' ')}](benchmarks/{name}.svg)"
