"""Comparisons of mirrors: the helper process that compares, the folders of mismatches, and the path
``/comparisons`` of the admin listener.

The modules that compare and summarize are imported only if a route compares its mirror, because
importing them takes time and memory in every process.
"""

# ruff: noqa: PLC0415 - see the module's docstring

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import orjson

from infergate.comparison.settings import MirrorComparison
from infergate.core.counters import RouteCounters
from infergate.core.log_events import AUDIT, with_fields
from infergate.core.request_context import RequestContext
from infergate.core.wire import HttpRequest, HttpResponse
from infergate.routing.table import Route
from infergate.runtime.console import browser_checks
from infergate.runtime.offload import HelperPool

if TYPE_CHECKING:
    from infergate.comparison.summary import Summary
    from infergate.gateway.comparer import MirrorComparer
    from infergate.recording.mismatches import MismatchFolder

PATH: Final = "/comparisons"
_TEXT: Final = {"content-type": "text/plain; charset=utf-8"}
_JSON: Final = {"content-type": "application/json"}
_HTML: Final = {
    "content-type": "text/html; charset=utf-8",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'",
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_audit = logging.getLogger("infergate.audit")


def make_comparer(
    routes: Sequence[Route],
    counters_of: Callable[[str], RouteCounters],
    previous: MirrorComparer | None,
) -> MirrorComparer | None:
    """Return the comparer of ``routes``, or None if no route compares its mirror. It has its own
    helper process, so that requests never wait for comparisons. It continues the summaries of
    ``previous``."""
    if not any(route.mirror is not None and route.mirror.comparison for route in routes):
        return None
    from infergate.gateway.comparer import MirrorComparer

    pool = HelperPool(1)
    return MirrorComparer(routes, pool, pool.close, counters_of, _make_folder, previous)


def _make_folder(comparison: MirrorComparison) -> MismatchFolder | None:
    if comparison.storage is None:
        return None
    from infergate.recording.mismatches import MismatchFolder

    return MismatchFolder(comparison.storage)


class ComparisonSource(Protocol):
    """The comparisons of all processes."""

    async def comparisons(self) -> Sequence[bytes]:
        """Return the summaries of each process that compares, as JSON."""
        ...

    async def reset_comparisons(self) -> None:
        """Start new summaries."""
        ...


class ComparisonsApp:
    """Serves GET and, if ``allows_reset``, DELETE ``/comparisons``. GET returns the merged summary,
    or with ``?format=report`` the report as JSON, or with ``?format=html`` the report as a page.
    Both methods require a trusted name in the Host header, because a summary contains elements of
    responses."""

    def __init__(
        self, source: ComparisonSource, hosts: Collection[str], *, allows_reset: bool
    ) -> None:
        self._source: Final = source
        self._hosts: Final = hosts
        self._allows_reset: Final = allows_reset

    async def respond(self, wire: HttpRequest, context: RequestContext) -> HttpResponse:
        if rejected := browser_checks.reject_untrusted_host(wire, self._hosts, _TEXT):
            return rejected
        if wire.method in {"GET", "HEAD"}:
            return await self._report(wire.query.removeprefix("format="))
        if wire.method != "DELETE":
            allowed = {**_TEXT, "allow": "GET, HEAD, DELETE"}
            return HttpResponse(405, allowed, [b"this path supports only GET, HEAD and DELETE\n"])
        if not self._allows_reset:
            disabled = b"DELETE is disabled; 'listeners.admin.actions: true' enables it\n"
            return HttpResponse(403, _TEXT, [disabled])
        if browser_checks.is_from_browser(wire.headers) and (
            problem := browser_checks.rejection_reason(wire.headers)
        ):
            return HttpResponse(403, _TEXT, [f"refused: {problem}\n".encode()])
        await self._source.reset_comparisons()
        fields = with_fields(AUDIT, operation="reset_comparisons", peer=context.peer, outcome="ok")
        _audit.info("reset comparisons peer=%s", context.peer, extra=fields)
        return HttpResponse(200, _TEXT, [b"new summaries begin now\n"])

    async def _report(self, report_format: str) -> HttpResponse:
        total = await self._merged()
        match report_format:
            case "report":
                from infergate.comparison.report import report_json

                return HttpResponse(
                    200, _JSON, [await asyncio.to_thread(lambda: orjson.dumps(report_json(total)))]
                )
            case "html":
                from infergate.comparison.report_html import render_html

                page = await asyncio.to_thread(render_html, total)
                return HttpResponse(200, _HTML, [page.encode()])
            case "":
                return HttpResponse(200, _JSON, [await self._as_json(total)])
            case _:
                return HttpResponse(400, _TEXT, [b"the formats are report and html\n"])

    async def _merged(self) -> Summary:
        from infergate.comparison.summary import Summary

        total = Summary()
        for encoded in await self._source.comparisons():
            total.merge(Summary.from_json(orjson.loads(encoded)))
            await asyncio.sleep(0)
        return total

    async def _as_json(self, total: Summary) -> bytes:
        from infergate.comparison.summary import Summary

        document = Summary().as_json()
        for summary in total.by_model():
            for route, models in summary.as_json()["routes"].items():
                document["routes"].setdefault(route, {}).update(models)
            await asyncio.sleep(0)
        return orjson.dumps(document)


async def encode_summaries(summaries: Iterable[Summary]) -> list[bytes]:
    """Return ``summaries`` as JSON, one model at a time. A route may have 33 models of 65 outputs
    each, which together would block the event loop for 100 ms."""
    encoded = []
    for summary in summaries:
        for part in summary.by_model():
            encoded.append(orjson.dumps(part.as_json()))
            await asyncio.sleep(0)
    return encoded
