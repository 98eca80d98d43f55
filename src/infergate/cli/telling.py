"""``infergate routes``, ``backends`` and ``health``: what a running gateway does, as tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any, Final

from infergate.cli.asking import Json, Unanswered, ask
from infergate.terminal import Table, show

_NUMBERS: Final = "REQUESTS", "ERRORS", "MEAN", "P50", "P99"


def tell(command: str, admin: str, *, as_json: bool) -> int:
    """Print what ``command`` tells of the gateway at ``admin``. Returns 0; 1 where it cannot be
    asked, and for ``health`` where it is not ready."""
    try:
        state = ask(admin, "/console/state")
        plan = ask(admin, "/console/plan")
    except Unanswered as error:
        print(f"infergate: {error}", file=sys.stderr)
        return 1
    told = COMMANDS[command](state, plan)
    if as_json:
        print(json.dumps(told.as_json, indent=2, ensure_ascii=False))
    else:
        show(told.tables)
    return told.code


class Told:
    """What a command tells: for people, for programs, and the process's exit code."""

    def __init__(self, tables: list[Table], as_json: Any, code: int = 0) -> None:
        self.tables: Final = tables
        self.as_json: Final = as_json
        self.code: Final = code


# ---- the commands


def _routes(state: Json, plan: Json) -> Told:
    rows, told = [], []
    for route in plan["routes"]:
        sums = _summed(f for f in state["flows"] if f["route"] == route["label"])
        told.append(route | {"traffic": sums})
        rows.append((route["label"], _target(route), _or_dash(route["rewrites"]), *_cells(sums)))
    headings = ("MODEL", "BACKEND", "REWRITE", *_NUMBERS)
    table = Table("routes, the first that matches is taken", headings, rows, _right(3))
    return Told([table], told)


def _backends(state: Json, plan: Json) -> Told:
    tallies = {each["backend"]: each for each in state["backends"]}
    rows, told, ends = [], [], []
    for backend in plan["backends"]:
        name = backend["name"]
        sums = _summed(f for f in state["flows"] if f["backend"] == name)
        found = {e["endpoint"]: e for e in state["endpoints"] if e["backend"] == name}
        tally = tallies.get(name, {})
        endpoints = [found.get(url, {"endpoint": url}) for url in backend["endpoints"]]
        told.append(backend | {"traffic": sums, "endpoints": endpoints, "tally": tally})
        retries = sum(tally.get("retries", {}).values())
        waiting = tally.get("waiting", 0)
        rows.append((name, backend["protocol"], f"{retries:.0f}", f"{waiting:.0f}", *_cells(sums)))
        ends += [(name, *_endpoint(each)) for each in endpoints]
    tables = [
        Table(
            "backends",
            ("BACKEND", "PROTOCOL", "RETRIES", "WAITING", *_NUMBERS),
            rows,
            _right(2, 9),
        )
    ]
    if ends:
        headings = ("BACKEND", "ENDPOINT", "HEALTH", "ACTIVE", "OK", "FAILED", "EJECTIONS")
        tables.append(Table("endpoints", headings, ends, _right(3, 7)))
    return Told(tables, told)


def _endpoint(each: Json) -> tuple[str, ...]:
    requests = each.get("requests", {})
    return (
        each["endpoint"],
        each.get("health", "unknown"),
        f"{each.get('active', 0):.0f}",
        f"{requests.get('ok', 0):.0f}",
        f"{requests.get('failed', 0):.0f}",
        f"{each.get('ejections', 0):.0f}",
    )


def _health(state: Json, plan: Json) -> Told:
    workers, config = state["workers"], state["config"]
    reload = config["last_reload"]
    facts = {
        "readiness": "ready" if state["ready"] else "not ready",
        "version": state["version"],
        "workers": f"{workers['serving']} of {workers['wanted']}",
        "configuration": f"number {config['number']}, {config['source'] or 'the embedded demo'}",
        "last reload": "-" if reload is None else "ok" if reload["ok"] else reload["error"],
        "in flight": f"{state['totals']['in_flight']:.0f} requests",
    }
    found = {(e["backend"], e["endpoint"]): e for e in state["endpoints"]}
    ends = [
        (backend["name"], *_endpoint(found.get((backend["name"], url), {"endpoint": url})))[:3]
        for backend in plan["backends"]
        for url in backend["endpoints"]
    ]
    ports = [
        (each["name"], each["address"], "yes" if each["tls"] else "no", _or_dash(each["protocols"]))
        for each in plan["listeners"]
    ]
    tables = [
        Table("health", ("WHAT", "HOW"), list(facts.items())),
        Table("listeners", ("LISTENER", "ADDRESS", "TLS", "PROTOCOLS"), ports),
    ]
    if ends:
        tables.append(Table("endpoints", ("BACKEND", "ENDPOINT", "HEALTH"), ends))
    told = {key: state[key] for key in ("ready", "version", "workers", "config", "totals")}
    listeners = {"listeners": plan["listeners"], "endpoints": state["endpoints"]}
    return Told(tables, told | listeners, 0 if state["ready"] else 1)


COMMANDS: Final[Mapping[str, Callable[[Json, Json], Told]]] = {
    "routes": _routes,
    "backends": _backends,
    "health": _health,
}


# ---- figures


def _summed(flows: Iterable[Json]) -> Json:
    """Of all ``flows``: ``requests``, ``errors``, and seconds since the start."""
    requests = errors = total = 0.0
    buckets: dict[float, float] = {}
    for flow in flows:
        outcomes = flow.get("outcomes", {})
        requests += sum(outcomes.values())
        errors += sum(outcomes.values()) - outcomes.get("ok", 0)
        times = flow.get("seconds", {"sum": 0.0, "buckets": []})
        total += times["sum"]
        for bound, count in times["buckets"]:
            key = float("inf") if bound is None else bound
            buckets[key] = buckets.get(key, 0) + count
    ordered = sorted(buckets.items())
    return {
        "requests": int(requests),
        "errors": int(errors),
        "mean_seconds": total / requests if requests else None,
        "p50_seconds": quantile(ordered, 0.5),
        "p99_seconds": quantile(ordered, 0.99),
    }


def quantile(buckets: list[tuple[float, float]], share: float) -> float | None:
    """As Prometheus' histogram_quantile: even within a bucket; above the last bound, that bound.
    ``buckets`` are bounds and counts up to them. None: nothing was counted."""
    if not buckets or not buckets[-1][1]:
        return None
    rank = share * buckets[-1][1]
    for (low, before), (high, count) in pairwise([(0.0, 0.0), *buckets]):
        if count >= rank and count > before:
            if high == float("inf"):
                return low
            return low + (high - low) * (rank - before) / (count - before)
    return buckets[-1][0]


def _cells(sums: Json) -> tuple[str, ...]:
    return (
        str(sums["requests"]),
        str(sums["errors"]),
        *(_seconds(sums[f"{key}_seconds"]) for key in ("mean", "p50", "p99")),
    )


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"


def _right(first: int, end: int = 8) -> frozenset[int]:
    return frozenset(range(first, end))


def _or_dash(texts: Iterable[str]) -> str:
    return ", ".join(texts) or "-"


def _target(route: Json) -> str:
    told = [route["backend"]]
    told += [f"{each['percent']:g}% {each['backend']}" for each in route["split"]]
    told += [f"else {route['fallback']}"] if route["fallback"] else []
    told += [f"copy {route['mirror']}"] if route["mirror"] else []
    return ", ".join(told)
