"""``python -m bench``: infergate next to Triton and Envoy in alternating rounds, and the project's
targets with the results."""

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from infergate import __version__

from . import PROJECT, comparisons, load, memory, report
from .publish import format_size, missing_parts, publish
from .results import Bench, as_json, from_json
from .rounds import Comparison, Rounds
from .stages import account

ENGINES = ("own", "compat")
PARTS = ("rows", "stages", "workers", "sizes", "routes", "memory")
_DEFAULT_ROUNDS = 5
_CURVE_ROUNDS = 3


def main(argv: Sequence[str]) -> int:
    """Return 0, or 1 with a message if a peer is missing or a response is wrong."""
    options = _options(argv)
    path = Path(options.json)
    try:
        if options.again:
            bench = from_json(json.loads(path.read_text()))
        else:
            load.required_tool()
            with tempfile.TemporaryDirectory(prefix="infergate-bench-") as folder:
                bench = _measured(options, Path(folder))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(as_json(bench), indent=1) + "\n")
    except (load.LoadError, RuntimeError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print("\n\n".join(_sections(bench)))
    if options.publish:
        if missing := missing_parts(bench):
            print(f"bench: not published, for the run lacks {', '.join(missing)}", file=sys.stderr)
            return 1
        publish(bench, PROJECT)
    return 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=_DEFAULT_ROUNDS, help="default: %(default)s")
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="length of one run; default: %(default)s"
    )
    parser.add_argument(
        "--engine", choices=(*ENGINES, "both"), default="both", help="default: %(default)s"
    )
    parser.add_argument(
        "--parts", default=",".join(PARTS), help="what to measure; default: %(default)s"
    )
    parser.add_argument("--only", default="", help="comparisons whose name holds this text")
    parser.add_argument("--json", default=".peers/bench.json", help="default: %(default)s")
    parser.add_argument(
        "--publish", action="store_true", help="write docs/benchmarks.md, its plots, and the "
        "figures in README.md and docs/performance.md",
    )  # fmt: skip
    parser.add_argument(
        "--again", action="store_true", help="measure nothing: tell of the last run's JSON"
    )
    options = parser.parse_args(argv)
    options.parts = tuple(options.parts.split(","))
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"--parts: no {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    options.engines = ENGINES if options.engine == "both" else (options.engine,)
    if options.publish and not options.again and (options.parts != PARTS or options.only):
        parser.error("--publish needs all parts, measured in one run")
    return options


def _measured(options: argparse.Namespace, folder: Path) -> Bench:
    bench = Bench(_conditions(options))
    engines, parts = options.engines, options.parts
    if "rows" in parts or "stages" in parts:
        with comparisons.rows(engines, folder) as found:
            _measure_rows(_chosen(found, options), options, folder, bench)
    if "workers" in parts:
        rounds = Rounds(options.rounds, options.seconds, folder)
        with comparisons.workers(engines[0], folder) as found:
            bench.results += rounds.compared(_chosen(found, options))
    curves = Rounds(*_of_curves(options), folder)
    if "sizes" in parts:
        with comparisons.sizes(engines, folder) as found:
            bench.results += curves.compared(_chosen(found, options))
    if "routes" in parts:  # the same for every engine
        with comparisons.routes(engines[0], folder) as found:
            bench.results += curves.compared(_chosen(found, options))
    if "memory" in parts:
        bench.idle.update({engine: memory.idle(engine, folder) for engine in engines})
        bench.peaks += memory.peaks(engines, folder)
    return bench


def _measure_rows(
    chosen: Sequence[Comparison], options: argparse.Namespace, folder: Path, bench: Bench
) -> None:
    rounds = Rounds(options.rounds, options.seconds, folder)
    slow = replace(
        rounds, seconds=2 * options.seconds
    )  # few requests a second, but enough for a p99
    for each in chosen if "rows" in options.parts else ():
        bench.results += (slow if each.pace.rate else rounds).compared([each])
    busy = [each for each in chosen if not each.pace.rate]
    for each in busy if "stages" in options.parts else ():
        for contender in (each for each in each.contenders if each.engine):
            print(f"{each.name}: stages, {contender.engine}", file=sys.stderr)
            found = account(contender, options.seconds, folder)
            bench.accounts.append(replace(found, name=each.name))


def _chosen(found: Sequence[Comparison], options: argparse.Namespace) -> list[Comparison]:
    return [each for each in found if options.only in each.name]


def _sections(bench: Bench) -> Iterator[str]:
    yield bench.conditions
    yield report.targets(bench)
    if any(result.others for result in bench.results):
        yield report.details(bench)
    yield report.machine(bench)
    for name in (comparisons.BINARY_SIZES, comparisons.GRPC_SIZES):
        if found := bench.curve(name):
            yield f"{name}:\n{report.curve(found, 'payload', format_size)}"
    for name in (comparisons.JSON_ROUTES, comparisons.GRPC_ROUTES):
        if found := bench.curve(name):
            yield f"{name}:\n{report.curve(found, 'routes', str)}"
    if bench.peaks:
        yield report.peaks(bench)
    if bench.accounts:
        yield report.stages(bench)


def _of_curves(options: argparse.Namespace) -> tuple[int, float]:
    """Rounds, and seconds per run, of a comparison with many points."""
    return min(_CURVE_ROUNDS, options.rounds), options.seconds / 2


def _conditions(options: argparse.Namespace) -> str:
    rounds, seconds = _of_curves(options)
    return (
        f"infergate {__version__}, Python {platform.python_version()}, {os.cpu_count()} cores; "
        f"{options.rounds} rounds of {options.seconds:g} s, 4 connections (16 for "
        "workers), one request at a time "
        f"on each; by size (one connection) and by routes {rounds} rounds of {seconds:g} s; "
        "h2load, servers and proxies share the machine; one process each for infergate and Envoy, "
        "which has one worker thread."
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
