"""``infergate trace``: shows the failed or slow requests with a given ID that a running gateway
remembers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from infergate.cli.admin_client import AdminQueryError, Json, get_json
from infergate.cli.command import Arguments
from infergate.cli.output import CommandResult, duration
from infergate.terminal import Table

_BAR_WIDTH: Final = 30
_FIELDS: Final = (
    ("kind", "outcome"),
    ("meaning", "meaning"),
    ("error", "error"),
    ("detail", "detail"),
    ("advice", "advice"),
    ("protocol", "client protocol"),
    ("operation", "operation"),
    ("model", "model"),
    ("route", "route"),
    ("backend", "backend"),
    ("backend_protocol", "backend protocol"),
    ("worker", "worker"),
)


def run(arguments: Arguments) -> int:
    """Print the requests with the given ID, and return 0. Raises AdminQueryError if the gateway
    remembers no such request or cannot be queried."""
    (request_id,), admin = arguments.operands, arguments.admin
    requests = _find(request_id, admin)
    if not requests:
        raise AdminQueryError(
            f"{admin} remembers no request with the ID '{_printable(request_id)}': it keeps the "
            "last failed requests and the slowest requests; the access log has all requests"
        )
    tables = [table for request in requests for table in _tables(request)]
    return CommandResult(tables, requests).show(as_json=arguments.json)


def _find(request_id: str, admin: str) -> list[Json]:
    """Return the requests with ``request_id``, newest first. A client's retries and the requests of
    a stream may share an ID."""
    samples: list[Json] = list(get_json(admin, "/console/state").get("failures", ()))
    with suppress(AdminQueryError):  # the gateway may have no history
        history = get_json(admin, "/console/history")
        samples = [*history.get("failed", ()), *history.get("slowest", ()), *samples]
    requests = {
        (sample["time"], sample.get("worker")): sample
        # The samples of the history have more fields, so they come last and take precedence.
        for sample in reversed(samples)
        if sample.get("request_id") == request_id
    }
    return sorted(requests.values(), key=lambda sample: -sample["time"])


def _tables(request: Json) -> Iterator[Table]:
    ended = datetime.fromtimestamp(request["time"], UTC).isoformat(timespec="milliseconds")
    facts = [
        (title, _printable(request[key]))
        for key, title in _FIELDS
        if request.get(key) not in {None, ""}
    ]
    title = f"request {_printable(request['request_id'])}"
    rows = [("ended", ended), ("duration", duration(request["seconds"])), *facts]
    yield Table(title, ("PROPERTY", "VALUE"), rows)
    phases = [(each["phase"], each["seconds"]) for each in request.get("phases", ())]
    if phases:
        yield Table(
            "timeline", ("PHASE", "BEGINS", "DURATION", ""), list(_timeline(phases)),
            frozenset({1, 2}),
        )  # fmt: skip
    inputs = [
        (_printable(each["name"]), _printable(each["datatype"]), str(list(each["shape"])))
        for each in request.get("inputs", ())
    ]
    if inputs:
        yield Table("inputs", ("NAME", "DATATYPE", "SHAPE"), inputs)


def _timeline(phases: list[tuple[str, float]]) -> Iterator[tuple[str, ...]]:
    total = sum(seconds for _, seconds in phases) or 1.0
    begin = 0.0
    for name, seconds in phases:
        start = round(begin / total * _BAR_WIDTH)
        length = round((begin + seconds) / total * _BAR_WIDTH) - start
        bar = " " * start + "█" * length
        if seconds and not length:
            bar = " " * min(start, _BAR_WIDTH - 1) + "▏"
        yield _printable(name), duration(begin), duration(seconds), f"|{bar.ljust(_BAR_WIDTH)}|"
        begin += seconds


def _printable(value: Any) -> str:
    return "".join(each if each.isprintable() else "�" for each in str(value))
