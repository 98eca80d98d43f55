"""Watches the EndpointSlices of a Kubernetes service: one list, then one stream of changes.

1. The watch continues from the last resource version that it has seen, even after a connection
   breaks. The slices are listed again only if the API server no longer has that version (410), if
   the watch reports an error, or if a response cannot be understood.
2. Bookmarks advance the version while nothing changes, so that it rarely expires.
3. Attempts that make no progress are repeated after a growing, random delay.
4. The token is read from its file for each request, because the kubelet rotates it.

Reference: Kubernetes API concepts, "Efficient detection of changes"."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.parse import urlencode

import orjson

from infergate.backends.endpoint_slices import (
    MAX_SLICES,
    EndpointSlices,
    MalformedObjectError,
    PodAddress,
)
from infergate.core.errors import GatewayError, Kind, backend_failure
from infergate.core.log_events import (
    ENDPOINT_WATCH_CURRENT,
    ENDPOINT_WATCH_FAILS,
    ENDPOINTS_TRUNCATED,
    ENDPOINTS_WITHOUT_PORT,
)
from infergate.core.wire import HttpRequest, HttpResponse, join_parts
from infergate.transport.base import Endpoint, HttpStreamingUpstream

_PAGE_SLICES: Final = 10
"""Maximum number of slices in one response to a list request. It limits the time for parsing a
response: by default, Kubernetes puts up to 100 endpoints into a slice, which then has about
45 kB."""
_MAX_PAGES: Final = MAX_SLICES // _PAGE_SLICES
_MAX_TOKEN_BYTES: Final = 64 * 1024
_MAX_REASON_CHARS: Final = 300
_MAX_CONTINUE_CHARS: Final = 8192
_MAX_VERSION_CHARS: Final = 64
_OK: Final = 200
_GONE: Final = 410
_UPDATES: Final = frozenset({"ADDED", "MODIFIED"})
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WatchTimes:
    """Times in seconds. ``request`` is the timeout of a list request, and of connecting a watch.
    The client requests a watch of a random duration, from ``watch`` to twice ``watch``. If the API
    server has not ended the watch ``grace`` after this duration, the connection is dead, and the
    client ends the watch. Delays between attempts grow from ``min_delay`` to ``max_delay``. They
    start again at ``min_delay`` after an attempt that has lasted for ``progress`` or has received
    an event. Changes that arrive within ``merge`` are published together."""

    request: float = 10.0
    watch: float = 120.0
    grace: float = 10.0
    min_delay: float = 0.5
    max_delay: float = 30.0
    progress: float = 5.0
    merge: float = 0.2


@dataclass(frozen=True, slots=True)
class WatchedService:
    """A service, the API server to query, and the file with the token for the API server."""

    namespace: str
    service: str
    api: Endpoint
    token_file: Path | None = None

    def __str__(self) -> str:
        return f"service {self.namespace}/{self.service}"


class _ExpiredError(Exception):
    """The API server no longer has the resource version."""


class EndpointSliceWatch:
    """Watches ``service`` over ``upstream``, whose streams must yield lines. The watch closes
    ``upstream`` when the watch ends."""

    _on_change: Callable[[Sequence[PodAddress]], None]
    _on_state: Callable[[bool], None]

    def __init__(  # noqa: PLR0913 - dependency injection
        self,
        backend: str,
        service: WatchedService,
        slices: EndpointSlices,
        upstream: HttpStreamingUpstream,
        times: WatchTimes = WatchTimes(),
        *,
        replace_latest: Callable[[EndpointSliceWatch], EndpointSliceWatch | None] | None = None,
    ) -> None:
        """``replace_latest`` makes this watch the latest watch of the service, and returns the
        previous watch or None. It is called once, when this watch starts."""
        self._backend: Final = backend
        self.service: Final = service
        self.slices: Final = slices
        self._upstream: Final = upstream
        self._replace_latest = replace_latest
        self._times: Final = times
        self._path: Final = (
            f"/apis/discovery.k8s.io/v1/namespaces/{service.namespace}/endpointslices"
        )
        self.version = ""
        """The last resource version that was seen, or an empty string if the slices must be
        listed."""
        self._made_progress = False
        self._last_reason: str | None = ""
        self._publishing: asyncio.TimerHandle | None = None
        self._has_no_port = False
        self._was_truncated = False
        self.has_listed = False
        """Whether the slices have been read at least once."""

    def known_addresses(self) -> Sequence[PodAddress] | None:
        """Take over the slices and the resource version of the previous watch, so that this watch
        need not list the slices. Return the addresses, or None if no previous watch has read them.
        This watch becomes the latest watch of the service."""
        replace_latest, self._replace_latest = self._replace_latest, None
        previous = None if replace_latest is None else replace_latest(self)
        if previous is None or not previous.has_listed:
            return None
        self.slices.copy_from(previous.slices)
        self.version = previous.version
        self.has_listed = True
        return self.slices.addresses()

    async def run(
        self,
        on_change: Callable[[Sequence[PodAddress]], None],
        on_state: Callable[[bool], None],
    ) -> NoReturn:
        """Pass the addresses to ``on_change`` whenever they may have changed. Call ``on_state``
        with true when the slices have been listed or a watch has begun, and with false when an
        attempt has failed."""
        self._on_change, self._on_state = on_change, on_state
        loop = asyncio.get_running_loop()
        failures = 0
        try:
            while True:
                began, self._made_progress = loop.time(), False
                await self._attempt()
                lasted = loop.time() - began >= self._times.progress
                failures = 0 if lasted or self._made_progress else failures + 1
                delay = min(self._times.max_delay, self._times.min_delay * 2.0 ** min(failures, 16))
                await asyncio.sleep(delay * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
        finally:
            if self._publishing is not None:
                self._publishing.cancel()
            await self._upstream.close()

    async def _attempt(self) -> None:
        try:
            if not self.version:
                await self._list()
                self.has_listed = True
                self._publish()
                self._report(None)
            await self._watch()
        except _ExpiredError:
            if not self.version:
                self._report("the list expired while it was being read")
            self.version = ""
        except MalformedObjectError as error:
            self.version = ""
            self._report(f"a response cannot be understood: {error}")
        except TimeoutError:
            self._report("the API server did not respond in time")
        except GatewayError as error:
            self._report(f"{error} {error.detail}".strip())
        except OSError as error:
            self._report(f"the token cannot be read: {error}")

    def _report(self, reason: str | None) -> None:
        """Report that the addresses are up to date (``reason`` is None), or the reason why an
        attempt failed. Log the report if it differs from the previous report."""
        self._on_state(reason is None)
        if reason == self._last_reason:
            return
        if reason is not None:
            _log.warning(
                "backend '%s': cannot watch %s; %s: %s",
                self._backend,
                self.service,
                "its last addresses stay in use" if self.has_listed else "DNS is used instead",
                reason[:_MAX_REASON_CHARS],
                extra=ENDPOINT_WATCH_FAILS,
            )
        else:
            _log.info(
                "backend '%s': watching %s", self._backend, self.service,
                extra=ENDPOINT_WATCH_CURRENT,
            )  # fmt: skip
        self._last_reason = reason

    # ---- requests

    async def _request(self, **query: str) -> HttpRequest:
        headers = {"accept": "application/json"}
        if self.service.token_file is not None:
            token = await asyncio.to_thread(_read_token, self.service.token_file)
            headers["authorization"] = f"Bearer {token}"
        selector = f"kubernetes.io/service-name={self.service.service}"
        return HttpRequest(
            "GET", self._path, urlencode({"labelSelector": selector, **query}), headers
        )

    async def _list(self) -> None:
        listed = self.slices.empty_copy()
        position = ""
        for _ in range(_MAX_PAGES):
            query = {"limit": str(_PAGE_SLICES)} | ({"continue": position} if position else {})
            wire = await self._request(**query)
            response = await self._upstream.exchange(wire, self.service.api, self._times.request)
            document = _parse_response(response)
            items = [] if document.get("items") is None else document["items"]
            if not isinstance(items, list):
                raise MalformedObjectError("the member 'items' of the list is not an array")
            for item in items:
                listed.update(item)
            position = str(_object(document, "metadata").get("continue") or "")
            if not position:
                break
            if len(position) > _MAX_CONTINUE_CHARS:
                raise MalformedObjectError("metadata.continue of the list is too long")
        self.slices.copy_from(listed)
        self.version = _resource_version(document)

    async def _watch(self) -> None:
        seconds = int(self._times.watch * random.uniform(1.0, 2.0)) + 1  # noqa: S311 - no secret
        wire = await self._request(
            watch="true",
            allowWatchBookmarks="true",
            resourceVersion=self.version,
            timeoutSeconds=str(seconds),
        )
        responses = self._upstream.stream(wire, self.service.api, self._times.request)
        async with asyncio.timeout(seconds + self._times.grace), aclosing(responses):
            async for response in responses:
                if response.status == _OK and not response.body[0]:  # the watch has begun
                    self._report(None)
                    continue
                event = _parse_response(response)
                kind, item = str(event.get("type")), _object(event, "object")
                if kind == "ERROR":
                    error = _status_error(item.get("code"), item.get("message"))
                    if not isinstance(error, _ExpiredError):
                        self.version = ""
                    raise error
                version = _resource_version(item)
                if kind in _UPDATES:
                    self.slices.update(item)
                elif kind == "DELETED":
                    self.slices.remove(item)
                elif kind != "BOOKMARK":
                    raise MalformedObjectError("the event has an unknown type")
                self.version, self._made_progress = version, True
                if kind != "BOOKMARK" and self._publishing is None:
                    loop = asyncio.get_running_loop()
                    self._publishing = loop.call_later(self._times.merge, self._publish)

    def _publish(self) -> None:
        if self._publishing is not None:
            self._publishing.cancel()
            self._publishing = None
        self._on_change(self.slices.addresses())
        if self.slices.has_no_port and not self._has_no_port:
            _log.warning(
                "backend '%s': no endpoint of %s has the backend's port; DNS is used instead",
                self._backend, self.service, extra=ENDPOINTS_WITHOUT_PORT,
            )  # fmt: skip
        self._has_no_port = self.slices.has_no_port
        limit = self.slices.exceeded_limit
        if limit and not self._was_truncated:
            _log.error(
                "backend '%s': only %s of %s are used", self._backend, limit, self.service,
                extra=ENDPOINTS_TRUNCATED,
            )  # fmt: skip
        self._was_truncated = bool(limit)


def _read_token(path: Path) -> str:
    """Read a token. Raises OSError if the file cannot be read or does not contain a token."""
    with path.open("rb") as file:
        data = file.read(_MAX_TOKEN_BYTES).strip()
    if not data or not data.isascii() or not data.decode("ascii").isprintable():
        raise OSError(f"'{path}' does not contain a token")
    return data.decode("ascii")


def _parse_response(response: HttpResponse) -> dict[str, Any]:
    """Return the JSON object of a response. Raises MalformedObjectError, GatewayError for an error
    status, and _ExpiredError."""
    try:
        document = orjson.loads(join_parts(response.body))
    except orjson.JSONDecodeError:
        document = None
    if response.status != _OK:
        message = document.get("message") if isinstance(document, dict) else ""
        raise _status_error(response.status, message)
    if not isinstance(document, dict):
        raise MalformedObjectError("it is not a JSON object")
    return document


def _object(holder: dict[str, Any], key: str) -> dict[str, Any]:
    value = holder.get(key)
    if not isinstance(value, dict):
        raise MalformedObjectError(f"it has no object '{key}'")
    return value


def _resource_version(item: dict[str, Any]) -> str:
    version = _object(item, "metadata").get("resourceVersion")
    if not isinstance(version, str) or not 0 < len(version) <= _MAX_VERSION_CHARS:
        raise MalformedObjectError("its metadata.resourceVersion is missing or too long")
    return version


def _status_error(code: object, message: object) -> Exception:
    if code == _GONE:
        return _ExpiredError()
    text = f"the API server responded with status {code}: {message}"
    return backend_failure(Kind.BACKEND_ERROR, text[:_MAX_REASON_CHARS])
