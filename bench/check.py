"""``make bench-check`` tests whether a change makes requests more expensive than a baseline.

*Strategy.* The baseline's sources are checked out into their own folder and run by this interpreter
with the installed packages. Baseline and working tree handle the same requests in alternating
rounds. CPU per request is compared, because other load on the machine disturbs it least. Only the
ratio within a round counts.

*Rule.* A row fails if the median of its ratios exceeds LIMIT and even the smallest ratio exceeds 1.
If the smallest ratio does not exceed 1, the rounds disagree, and the row reports this without
failing."""

import argparse
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from . import PROJECT, load, servers
from .comparisons import (
    CHANNELS_LAST,
    ECHO_CASES,
    IMAGE,
    LEGACY_ECHO_CASES,
    TINY,
    old_echo,
    proxied,
)
from .load import Contender
from .results import Result, Spread, proxy_cpu, ratio
from .rounds import Comparison, Rounds
from .variants import NAMES, Variant, available

LIMIT = 1.25
"""The largest accepted ratio."""
BASELINE, CHANGED = "baseline", "changed"
_ENGINES = ("own", "compat")
_ROWS = {**ECHO_CASES, **LEGACY_ECHO_CASES}


def main(argv: Sequence[str]) -> int:
    """Return 0, or 1 after printing the rows that became more expensive or why the run failed."""
    options = _options(argv)
    try:
        load.required_tool()
        with tempfile.TemporaryDirectory(prefix="infergate-check-") as folder:
            results = _measure(options, Path(folder))
    except (load.LoadError, RuntimeError) as error:
        print(f"bench-check: {error}", file=sys.stderr)
        return 1
    verdicts = {result.name: judge(result) for result in results}
    print(f"CPU per request, relative to {options.base}:")
    for name, (cpu_ratio, verdict) in verdicts.items():
        print(f"  {name:<44} {cpu_ratio}  {verdict}")
    regressed = [name for name, (_, verdict) in verdicts.items() if verdict == "regressed"]
    for name in regressed:
        print(f"bench-check: '{name}': {verdicts[name][0]} times the CPU", file=sys.stderr)
    return 1 if regressed else 0


def judge(result: Result) -> tuple[Spread | None, str]:
    """Return the ratio of CPU per request, changed to baseline, and the verdict: ``ok``,
    ``regressed``, or the reason why the measurement is not conclusive."""
    runs = {each.name: each for each in result.contenders}
    cpu_ratio = ratio(runs[CHANGED], runs[BASELINE], proxy_cpu)
    if cpu_ratio is None:
        return cpu_ratio, "too little to measure"
    if cpu_ratio.median <= LIMIT:
        return cpu_ratio, "ok"
    return cpu_ratio, "regressed" if cpu_ratio.minimum > 1 else "unclear: the rounds do not agree"


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.check", description=__doc__)
    parser.add_argument("--base", default="", help="a revision; default: the merge base with "
                        "origin/main, or the previous commit")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=0.6, help="default: %(default)s")
    parser.add_argument("--only", default="", help="rows whose name contains this text")
    parser.add_argument("--variant", choices=NAMES, help="the variant of the changed sources; "
                        "default: own and compat, uncompiled")  # fmt: skip
    options = parser.parse_args(argv)
    options.base = options.base or _default_base()
    return options


def _default_base() -> str:
    """Return the merge base with origin/main, or the previous commit if there is no origin/main or
    the sources have not changed since the merge base."""
    try:
        base = _git("merge-base", "HEAD", "origin/main")
    except RuntimeError:
        return "HEAD~1"
    clean = not _git("status", "--porcelain", "--", "src")
    return "HEAD~1" if clean and base == _git("rev-parse", "HEAD") else base


def _measure(options: argparse.Namespace, folder: Path) -> list[Result]:
    rounds = Rounds(options.rounds, options.seconds, folder)
    with checked_out(options.base, folder / "baseline") as baseline:
        pairs = _pairs(baseline / "src", options.variant)
        rows = [row for row in _ROWS if options.only in row]
        if not rows:
            raise load.LoadError(f"no row's name contains '{options.only}'")
        with _comparisons(pairs, rows, folder) as chosen:
            return [result for each in chosen for result in rounds.compared([each])]


def _pairs(baseline: Path, variant: str | None) -> list[tuple[Variant, Variant]]:
    """Return the baseline and the changed sources as variants, for each engine. Raises LoadError if
    ``variant`` cannot run here."""
    if variant is None:
        changed = [Variant(CHANGED, engine, source=PROJECT / "src") for engine in _ENGINES]
    else:
        usable, notes = available([variant])
        if not usable:
            raise load.LoadError(notes[0])
        changed = [replace(usable[0], name=CHANGED)]
    return [(Variant(BASELINE, each.engine, source=baseline), each) for each in changed]


@contextmanager
def _comparisons(
    pairs: Sequence[tuple[Variant, Variant]], rows: Sequence[str], folder: Path
) -> Iterator[list[Comparison]]:
    with ExitStack() as stack:
        echoes = {
            case: stack.enter_context(servers.echo(case.response(), folder))
            for case in (TINY, IMAGE, CHANNELS_LAST)
        }
        urls = {case: f"grpc://{echo.addresses[0]}" for case, echo in echoes.items()}
        for make, case in LEGACY_ECHO_CASES.values():
            echoes[case], urls[case] = stack.enter_context(old_echo(make, case, folder))
        config = servers.routed(urls)
        gateways = {
            variant: stack.enter_context(servers.infergate(config, variant, folder))
            for pair in pairs
            for variant in pair
        }

        def contender(variant: Variant, row: str) -> Contender:
            make, case = _ROWS[row]
            proxy = proxied(gateways[variant], make, case, echoes[case].pid, variant.engine)
            return replace(proxy, name=variant.name)

        yield [
            Comparison(
                f"{row} ({pair[0].engine})",
                tuple(contender(variant, row) for variant in pair),
            )
            for row in rows
            for pair in pairs
        ]


@contextmanager
def checked_out(revision: str, folder: Path) -> Iterator[Path]:
    """Check out ``revision`` into ``folder``, so that its sources can run."""
    _git("worktree", "add", "--detach", "--quiet", str(folder), revision)
    try:
        _declare_plugins(folder)
        yield folder
    finally:
        _git("worktree", "remove", "--force", str(folder))


def _declare_plugins(folder: Path) -> None:
    """Write the entry points of the sources in ``folder``. Python finds them before those of the
    installed package, which may have more entry points."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    info = folder / "src" / f"{project['name']}-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n")
    groups = (
        "\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())])
        for group, entries in project["entry-points"].items()
    )
    (info / "entry_points.txt").write_text("\n\n".join(groups))


def _git(*arguments: str) -> str:
    """Run git and return its output. Raises RuntimeError with git's message if it fails."""
    done = subprocess.run(
        ["git", "-C", str(PROJECT), *arguments],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
