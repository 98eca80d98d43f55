"""``python -m bench`` measures infergate and its peers in alternating rounds, and prints the
project's targets with the results."""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from infergate import __version__

from . import PROJECT, comparisons, load, memory, report, variants
from .publish import format_size, missing_parts, publish
from .results import Bench, Result, as_json, from_json
from .rounds import Comparison, Rounds
from .stages import account
from .variants import Variant

PARTS = ("rows", "clients", "workers", "stages", "sizes", "routes", "memory")
_DEFAULT_ROUNDS = 5
_CURVE_ROUNDS = 3
_QUICK = {
    "rounds": 3, "seconds": 0.4, "parts": "rows,clients,workers",
    "variants": ",".join(variants.QUICK),
}  # fmt: skip
_QUICK_ROWS = (
    comparisons.JSON_IMAGE, comparisons.BINARY_IMAGE, comparisons.JSON_TINY, comparisons.GRPC_TINY,
    comparisons.GRPC_IMAGE,
)  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Return 0, or 1 after printing why the run failed or was not published."""
    options = _options(argv)
    path = Path(options.json)
    try:
        if options.again:
            bench = from_json(json.loads(path.read_text()))
        else:
            load.required_tool()
            with tempfile.TemporaryDirectory(prefix="infergate-bench-") as folder:
                bench = _measure(options, Path(folder))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(as_json(bench), indent=1) + "\n")
    except (load.LoadError, RuntimeError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print("\n\n".join(_sections(bench)))
    if options.publish:
        if missing := missing_parts(bench):
            text = f"not published, because the run did not measure {', '.join(missing)}"
            print(f"bench: {text}", file=sys.stderr)
            return 1
        publish(bench, PROJECT)
    return 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="measure only the targets for CPU and rates, in "
        "fewer and shorter rounds, which takes less than three minutes",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=_DEFAULT_ROUNDS, help="default: %(default)s")
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="length of one run; default: %(default)s"
    )
    parser.add_argument(
        "--variants", default=",".join(variants.DEFAULT), help="variants to measure, some of "
        f"{', '.join(variants.NAMES)}; 'system' is the system's Python; sizes, stages and peak "
        "memory are measured only for own and compat; default: %(default)s",
    )  # fmt: skip
    parser.add_argument(
        "--parts", default=",".join(PARTS), help="what to measure; default: %(default)s"
    )
    parser.add_argument("--only", default="", help="comparisons whose name contains this text")
    parser.add_argument("--json", default=".peers/bench.json", help="default: %(default)s")
    parser.add_argument(
        "--publish", action="store_true", help="write docs/benchmarks.md, its plots, and the "
        "figures in README.md and docs/performance.md",
    )  # fmt: skip
    parser.add_argument(
        "--again", action="store_true", help="measure nothing; report from the JSON of the last run"
    )
    if "--quick" in argv:
        parser.set_defaults(**_QUICK)
    options = parser.parse_args(argv)
    for name, choices in (("parts", PARTS), ("variants", variants.NAMES)):
        chosen = tuple(getattr(options, name).split(","))
        if unknown := set(chosen) - set(choices):
            parser.error(
                f"--{name}: unknown {', '.join(sorted(unknown))}; expected {', '.join(choices)}"
            )
        setattr(options, name, chosen)
    if options.publish and not options.again and (options.parts != PARTS or options.only):
        parser.error("--publish needs all parts, measured in one run")
    return options


def _measure(options: argparse.Namespace, folder: Path) -> Bench:
    parts = options.parts
    usable, missing = variants.available(options.variants)
    if not usable:
        raise RuntimeError("; ".join(missing))
    plain = [each for each in usable if each.name in variants.PLAIN]
    bench = Bench(_conditions(options), notes=[*missing, *comparisons.missing_peers()])
    if "rows" in parts or "stages" in parts:
        with comparisons.rows(usable, folder) as group:
            _measure_rows(_chosen(group, options), options, folder, bench)
    if "clients" in parts:
        with comparisons.real_clients(usable, folder) as group:
            bench.results += _paced_rounds(options, folder).compared(_chosen(group, options))
    if "workers" in parts:
        bench.results += _by_workers(usable, options, _paced_rounds(options, folder))
    curves = Rounds(*_curve_rounds(options), folder)
    if "sizes" in parts and plain:
        with comparisons.sizes(plain, folder) as group:
            bench.results += curves.compared(_chosen(group, options))
    if "routes" in parts:  # all variants have the same result
        with comparisons.routes(usable[0], folder) as group:
            bench.results += curves.compared(_chosen(group, options))
    if "memory" in parts:
        bench.idle.update({each.name: memory.idle(each, folder) for each in usable})
        bench.peaks += memory.peaks(plain, folder)
    return bench


def _by_workers(
    usable: Sequence[Variant], options: argparse.Namespace, rounds: Rounds
) -> Iterator[Result]:
    """Measure one variant after the other, because their workers would disturb each other."""
    parts = []
    for variant in usable:
        with comparisons.workers(variant, rounds.folder) as group:
            parts.append(rounds.compared(_chosen(group, options)))
    for same in zip(*parts, strict=True):
        contenders = tuple(runs for result in same for runs in result.contenders)
        yield replace(same[0], contenders=contenders)


def _measure_rows(
    chosen: Sequence[Comparison], options: argparse.Namespace, folder: Path, bench: Bench
) -> None:
    rounds = Rounds(options.rounds, options.seconds, folder)
    paced = _paced_rounds(options, folder)
    if options.quick:
        chosen = [each for each in chosen if each.name in _QUICK_ROWS]
    for each in chosen if "rows" in options.parts else ():
        bench.results += (paced if each.pace.rate else rounds).compared([each])
    busy = [each for each in chosen if not each.pace.rate]
    for comparison in busy if "stages" in options.parts else ():
        for contender in comparison.contenders:
            if contender.variant in variants.PLAIN:
                print(f"{comparison.name}: stages, {contender.variant}", file=sys.stderr)
                cost = account(contender, options.seconds, folder)
                bench.accounts.append(replace(cost, name=comparison.name))


def _chosen(group: Sequence[Comparison], options: argparse.Namespace) -> list[Comparison]:
    return [each for each in group if options.only in each.name]


def _sections(bench: Bench) -> Iterator[str]:
    yield bench.conditions
    yield report.targets(bench)
    if any(not result.at for result in bench.results):
        yield report.details(bench)
    yield report.machine(bench)
    for name in (comparisons.BINARY_SIZES, comparisons.GRPC_SIZES):
        if results := bench.curve(name):
            yield f"{name}:\n{report.curve(results, 'payload', format_size)}"
    if results := bench.curve(comparisons.WORKERS):
        yield f"{comparisons.WORKERS}:\n{report.curve(results, 'workers', str)}"
    for name in (comparisons.JSON_ROUTES, comparisons.GRPC_ROUTES):
        if results := bench.curve(name):
            yield f"{name}:\n{report.curve(results, 'routes', str)}"
    if bench.peaks:
        yield report.peaks(bench)
    if bench.accounts:
        yield report.stages(bench)


def _paced_rounds(options: argparse.Namespace, folder: Path) -> Rounds:
    """Return longer rounds for paced runs, which send few requests per second but need enough
    of them for a p99."""
    return Rounds(options.rounds, 2 * options.seconds, folder)


def _curve_rounds(options: argparse.Namespace) -> tuple[int, float]:
    """Return the number of rounds, and the seconds per run, of a comparison with many points."""
    return min(_CURVE_ROUNDS, options.rounds), options.seconds / 2


def _conditions(options: argparse.Namespace) -> str:
    rounds, seconds = _curve_rounds(options)
    return (
        f"infergate {__version__}, {variants.describe()}; {os.cpu_count()} cores. Each row has "
        f"{options.rounds} rounds of {options.seconds:g} s with 4 connections, and each connection "
        f"sends one request at a time. Rows that name {comparisons.RATE:,} requests/s send this "
        "rate over 16 connections. The rows by size (one connection) and by routes have "
        f"{rounds} rounds of {seconds:g} s. h2load, other clients, servers and proxies share the "
        "machine. infergate and Envoy have one process each, and Envoy has one worker thread."
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
