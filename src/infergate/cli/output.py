"""``infergate routes``, ``backends`` and ``health``: print the state of a running gateway, failures
first."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

from infergate.cli.admin_client import AdminQueryError, Json, get_json
from infergate.cli.command import Arguments
from infergate.core.name_rules import escape_unsafe
from infergate.terminal import Table, print_tables, show_live

_WAIT_INTERVAL: Final = 0.1
"""Seconds between two queries of a gateway that is not ready."""
_NUMBERS: Final = "REQS", "FAILED", "CLIENT ERRORS", "P50", "P99"
_FAILING: Final = ("down", "ejected", "failing", "degraded")
"""The states of failing endpoints, worst first."""
_HEALTHY: Final = frozenset({"unknown", "draining", "up"})


def run(arguments: Arguments) -> int:
    """Print the result of a query, or of repeated queries. Return the exit code, which is 1 if a
    single query of ``health`` finds that the gateway is not ready. Raises AdminQueryError."""
    command, admin = arguments.command, arguments.admin
    if command == "health" and arguments.wait:
        _wait_until_ready(admin, arguments.wait)
    if arguments.watch or arguments.count:
        return follow(lambda: _query(command, admin), arguments)
    return _query(command, admin).show(as_json=arguments.json)


class CommandResult:
    """The result of a command: tables for people, JSON for programs, and the exit code. In the
    tables, characters that control a terminal are escaped."""

    def __init__(self, tables: list[Table], data: Any, exit_code: int = 0) -> None:
        self.tables: Final = [*map(_escape_table, tables)]
        self.data: Final = data
        self.exit_code: Final = exit_code

    def show(self, *, as_json: bool) -> int:
        """Print the tables or the JSON data, and return the exit code."""
        if as_json:
            print(json.dumps(self.data, indent=2, ensure_ascii=False))
        else:
            print_tables(self.tables)
        return self.exit_code


def _escape_table(table: Table) -> Table:
    rows = [[escape_unsafe(cell) for cell in row] for row in table.rows]
    return replace(table, title=escape_unsafe(table.title), rows=rows)


def _query(command: str, admin: str) -> CommandResult:
    return QUERIES[command](get_json(admin, "/console/state"), get_json(admin, "/console/plan"))


def _wait_until_ready(admin: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with suppress(AdminQueryError):
            if get_json(admin, "/console/state")["ready"]:
                return
        time.sleep(_WAIT_INTERVAL)


# ---- repeated queries


def follow(query: Callable[[], CommandResult], arguments: Arguments) -> int:
    """Show the result of ``query`` every ``--interval`` seconds until Ctrl-C, or ``--count`` times,
    and return 0. Raises AdminQueryError if the first query fails. Later failures are shown and do
    not end the command, because the gateway may be restarting."""
    results = _repeat(query, arguments.interval, arguments.count)
    try:
        if arguments.json:
            for result in results:
                print(json.dumps(result.data, ensure_ascii=False), flush=True)
        elif arguments.count is None:
            show_live(result.tables for result in results)
        else:
            for result in results:
                print_tables(result.tables)
                print(flush=True)
    except KeyboardInterrupt:  # Ctrl-C is the usual end of top and --watch
        pass
    return 0


def _repeat(
    query: Callable[[], CommandResult], interval: float, count: int | None
) -> Iterator[CommandResult]:
    yield query()
    shown = 1
    while count is None or shown < count:
        time.sleep(interval)
        try:
            yield query()
        except AdminQueryError as error:
            yield CommandResult([Table(str(error), (), [])], {"error": str(error)})
        shown += 1


# ---- the commands


def _routes(state: Json, plan: Json) -> CommandResult:
    data = []
    flows, endpoints = grouped(state["flows"], "route"), grouped(state["endpoints"], "backend")
    for number, route in enumerate(plan["routes"], 1):
        traffic = totals(flows.get(route["label"], ()))
        data.append(route | {"number": number, "traffic": traffic})
    data.sort(
        key=lambda route: (
            worst_health(endpoints.get(route["backend"], ())),
            *failures_first(route["traffic"]),
        )
    )
    rows = [
        (
            str(route["number"]), route["label"], _targets(route), _or_dash(route["rewrites"]),
            *_cells(route["traffic"]),
        )
        for route in data
    ]  # fmt: skip
    headings = ("#", "MODEL", "BACKEND", "REWRITE", *_NUMBERS)
    table = Table(
        "routes, failures first; if several match, the lowest number wins",
        headings, rows, frozenset({0, *range(4, 9)}),
    )  # fmt: skip
    return CommandResult([table], data)


def _backends(state: Json, plan: Json) -> CommandResult:
    counters = {entry["backend"]: entry for entry in state["backends"]}
    flows = grouped(state["flows"], "backend")
    data = []
    for backend, endpoints in backend_endpoints(state, plan):
        traffic = totals(flows.get(backend["name"], ()))
        counts = counters.get(backend["name"], {})
        data.append(backend | {"traffic": traffic, "endpoints": endpoints, "tally": counts})
    data.sort(key=lambda each: (worst_health(each["endpoints"]), *failures_first(each["traffic"])))
    cells = [
        (
            each["name"], each["protocol"],
            f"{sum(each['tally'].get('retries', {}).values()):.0f}",
            f"{each['tally'].get('waiting', 0):.0f}", *_cells(each["traffic"]),
        )
        for each in data
    ]  # fmt: skip
    headings = ("BACKEND", "PROTOCOL", "RETRIES", "QUEUED", *_NUMBERS)
    tables = [Table("backends, failures first", headings, cells, frozenset(range(2, 9)))]
    ranked = [(each["name"], entry) for each in data for entry in each["endpoints"]]
    if ranked:
        ranked.sort(key=lambda pair: (_health_rank(pair[1]), -_failed_requests(pair[1])))
        endpoint_rows = [(name, *_endpoint(entry)) for name, entry in ranked]
        columns = ("BACKEND", "ENDPOINT", "HEALTH", "ACTIVE", "OK", "FAILED", "EJECTIONS")
        numbers = frozenset(range(3, 7))
        tables.append(Table("endpoints, failures first", columns, endpoint_rows, numbers))
    return CommandResult(tables, data)


def backend_endpoints(state: Json, plan: Json) -> Iterator[tuple[Json, list[Json]]]:
    """Yield the backends of ``plan`` with the state of their endpoints. An endpoint without state
    has only its URL."""
    stats = {(each["backend"], each["endpoint"]): each for each in state["endpoints"]}
    for backend in plan["backends"]:
        name = backend["name"]
        yield backend, [stats.get((name, url), {"endpoint": url}) for url in backend["endpoints"]]


def _endpoint(entry: Json) -> tuple[str, ...]:
    requests = entry.get("requests", {})
    return (
        entry["endpoint"],
        entry.get("health", "unknown"),
        f"{entry.get('active', 0):.0f}",
        f"{requests.get('ok', 0):.0f}",
        f"{_failed_requests(entry):.0f}",
        f"{entry.get('ejections', 0):.0f}",
    )


def _failed_requests(entry: Json) -> float:
    return float(entry.get("requests", {}).get("failed", 0))


def _health_rank(entry: Json) -> int:
    """Return the rank of an endpoint's health; a lower rank is worse. ``unknown`` (unused) and
    ``draining`` have the same rank as ``up``, because these endpoints need no attention."""
    health = entry.get("health", "unknown")
    if health in _HEALTHY:
        return len(_FAILING)
    return _FAILING.index(health) if health in _FAILING else 0


def worst_health(endpoints: Iterable[Json]) -> int:
    """Return the rank of the worst health among ``endpoints``; a lower rank is worse."""
    return min(map(_health_rank, endpoints), default=len(_FAILING))


def failures_first(traffic: Json) -> tuple[float, float]:
    """Return a sort key for traffic (``totals``): most failures first, then most requests."""
    return -traffic["failures"], -traffic["requests"]


def _health(state: Json, plan: Json) -> CommandResult:
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
    endpoints = [
        (backend["name"], endpoint)
        for backend, entries in backend_endpoints(state, plan)
        for endpoint in entries
    ]
    endpoints.sort(key=lambda pair: _health_rank(pair[1]))
    endpoint_rows = [(name, *_endpoint(entry))[:3] for name, entry in endpoints]
    ports = [
        (item["name"], item["address"], "yes" if item["tls"] else "no", _or_dash(item["protocols"]))
        for item in plan["listeners"]
    ]
    tables = [
        Table("health", ("PROPERTY", "VALUE"), list(facts.items())),
        Table("listeners", ("LISTENER", "ADDRESS", "TLS", "PROTOCOLS"), ports),
    ]
    if endpoint_rows:
        headings = ("BACKEND", "ENDPOINT", "HEALTH")
        tables.append(Table("endpoints, failures first", headings, endpoint_rows))
    data = {key: state[key] for key in ("ready", "version", "workers", "config", "totals")}
    listeners = {"listeners": plan["listeners"], "endpoints": state["endpoints"]}
    return CommandResult(tables, data | listeners, 0 if state["ready"] else 1)


QUERIES: Final[Mapping[str, Callable[[Json, Json], CommandResult]]] = {
    "routes": _routes,
    "backends": _backends,
    "health": _health,
}


# ---- statistics


def grouped(entries: Iterable[Json], key: str) -> dict[str, list[Json]]:
    """Group ``entries`` by the value of ``key``."""
    groups: dict[str, list[Json]] = {}
    for each in entries:
        groups.setdefault(each[key], []).append(each)
    return groups


def totals(flows: Iterable[Json]) -> Json:
    """Return the total requests and errors of ``flows``, and duration statistics in seconds."""
    requests = errors = client_errors = total = 0.0
    buckets: dict[float, float] = {}
    for flow in flows:
        outcomes = flow["outcomes"]
        requests += sum(outcomes.values())
        errors += sum(outcomes.values()) - outcomes.get("ok", 0)
        client_errors += flow["client_errors"]
        total += flow["seconds"]["sum"]
        for bound, count in flow["seconds"]["buckets"]:
            limit = float("inf") if bound is None else bound
            buckets[limit] = buckets.get(limit, 0) + count
    ordered = sorted(buckets.items())
    return {
        "requests": int(requests),
        "errors": int(errors),
        "client_errors": int(client_errors),
        "failures": int(errors - client_errors),
        "mean_seconds": total / requests if requests else None,
        "p50_seconds": quantile(ordered, 0.5),
        "p99_seconds": quantile(ordered, 0.99),
    }


def quantile(buckets: list[tuple[float, float]], share: float) -> float | None:
    """Return the quantile ``share`` (0 to 1), estimated like Prometheus' histogram_quantile: by
    interpolation within a bucket, or the last finite bound for the last bucket.

    ``buckets`` are upper bounds and cumulative counts. Return None if all counts are 0.
    """
    if not buckets or not buckets[-1][1]:
        return None
    rank = share * buckets[-1][1]
    for (low, before), (high, count) in pairwise([(0.0, 0.0), *buckets]):
        if count >= rank and count > before:
            if high == float("inf"):
                return low
            return low + (high - low) * (rank - before) / (count - before)
    return buckets[-1][0]


def _cells(traffic: Json) -> tuple[str, ...]:
    return (
        str(traffic["requests"]),
        str(traffic["failures"]),
        str(traffic["client_errors"]),
        *(duration(traffic[f"{key}_seconds"]) for key in ("p50", "p99")),
    )


def duration(value: float | None) -> str:
    """Return ``value``, a duration in seconds, as text with a unit."""
    if value is None:
        return "-"
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"


def _or_dash(texts: Iterable[str]) -> str:
    return ", ".join(texts) or "-"


def _targets(route: Json) -> str:
    texts = [route["backend"]]
    texts += [f"{target['percent']:g}% {target['backend']}" for target in route["split"]]
    texts += [f"else {route['fallback']}"] if route["fallback"] else []
    texts += [f"copy {route['mirror']}"] if route["mirror"] else []
    return ", ".join(texts)
