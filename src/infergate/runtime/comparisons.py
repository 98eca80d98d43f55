"""Comparisons of mirrored responses: the helper process that compares responses, the folders of
mismatches, and the path ``/comparisons`` of the admin listener.

The modules that compare and summarize are imported only if a route has a comparison or a client
requests ``/comparisons``, because they take time and memory in every process.
"""

# ruff: noqa: PLC0415 - see the module's docstring

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson

from infergate.comparison.settings import MirrorComparison
from infergate.core.counters import RouteCounters
from infergate.core.log_events import AUDIT, with_fields
from infergate.core.request_context import RequestContext
from infergate.core.wire import HttpRequest, HttpResponse
from infergate.routing.table import Route
from infergate.runtime.admin import TEXT, json_response, text_response
from infergate.runtime.console import browser_checks
from infergate.runtime.offload import HelperPool

if TYPE_CHECKING:
    from infergate.comparison.summary import Summary
    from infergate.gateway.comparer import MirrorComparer
    from infergate.recording.mismatches import MismatchFolder
    from infergate.runtime.console.sources import ConsoleSource

PATH: Final = "/comparisons"
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
    """Return the comparer of ``routes``, or None if no route has a comparison. The comparer has its
    own helper process, so that requests never wait for comparisons. The comparer continues the
    summaries of ``previous``."""
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


@dataclass(frozen=True, slots=True, eq=False)
class ComparisonsApp:
    """Serves GET and, if ``allows_reset``, DELETE ``/comparisons``. GET returns the merged summary,
    or a report as JSON (``?format=report``) or as a page (``?format=html``). Both methods require a
    trusted name in the Host header, because a summary contains elements of responses."""

    source: ConsoleSource
    hosts: Collection[str]
    allows_reset: bool

    async def respond(self, wire: HttpRequest, context: RequestContext) -> HttpResponse:
        if wire.path != PATH:
            return text_response(404, f"not found; the path is {PATH}")
        if rejected := browser_checks.reject_untrusted_host(wire, self.hosts, TEXT):
            return rejected
        if wire.method in {"GET", "HEAD"}:
            return await self._report(wire.query.removeprefix("format="))
        if wire.method != "DELETE":
            allowed = {"allow": "GET, HEAD, DELETE"}
            return text_response(405, "method not allowed; use GET, HEAD or DELETE", allowed)
        if not self.allows_reset:
            disabled = "DELETE is disabled; 'listeners.admin.actions: true' enables it"
            return text_response(403, disabled)
        if problem := browser_checks.browser_problem(wire.headers):
            return text_response(403, problem)
        await self.source.reset_comparisons()
        fields = with_fields(AUDIT, operation="reset_comparisons", peer=context.peer, outcome="ok")
        _audit.info("reset comparisons peer=%s", context.peer, extra=fields)
        return text_response(200, "new summaries begin now")

    async def _report(self, report_format: str) -> HttpResponse:
        total = await self._merged()
        match report_format:
            case "report":
                from infergate.comparison.report import report_json

                return await asyncio.to_thread(lambda: json_response(report_json(total)))
            case "html":
                from infergate.comparison.report_html import render_html

                page = await asyncio.to_thread(render_html, total)
                return HttpResponse(200, _HTML, [page.encode()])
            case "":
                return await self._as_json(total)
            case _:
                return text_response(
                    400, "unknown format; expected format=report, format=html or no query"
                )

    async def _merged(self) -> Summary:
        from infergate.comparison.summary import Summary

        total = Summary()
        for encoded in await self.source.comparisons():
            total.merge(Summary.from_json(orjson.loads(encoded)))
            await asyncio.sleep(0)
        return total

    async def _as_json(self, total: Summary) -> HttpResponse:
        from infergate.comparison.summary import Summary

        document = Summary().as_json()
        for summary in total.by_model():
            for route, models in summary.as_json()["routes"].items():
                document["routes"].setdefault(route, {}).update(models)
            await asyncio.sleep(0)
        return json_response(document)


async def encode_summaries(summaries: Iterable[Summary]) -> list[bytes]:
    """Return ``summaries`` as JSON documents, one for each model of a route. A route may have 33
    models of 65 outputs each; encoding all of them in one step would block the event loop for
    100 ms."""
    encoded = []
    for summary in summaries:
        for part in summary.by_model():
            encoded.append(orjson.dumps(part.as_json()))
            await asyncio.sleep(0)
    return encoded
