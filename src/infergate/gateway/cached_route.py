"""Caches the responses of a route, and collapses identical concurrent inferences.

- A key covers everything that can change the response (``caching.keys``), so a cached response is
  the response that the backend would have sent. Only its id is replaced.
- Requests of sequences, streams, requests with shared memory, requests that no key can identify
  (``UncacheableError``), and requests with ``Cache-Control: no-store`` bypass the cache. A request
  with ``no-cache`` is sent to the backend, and its response is cached.
- Errors and a fallback's responses are not cached.
- A *flight* is an inference in progress for which several clients may wait (as in Go's
  singleflight). It continues until its response arrives or no client waits for it, so a client that
  disconnects does not affect other clients. All waiting clients get the same error, with two
  exceptions. If the first client times out, clients with a later deadline start one new flight
  together. If the backend's queue rejects the first client, other clients start a new flight,
  because the queue is fair between clients and may accept them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from infergate.caching.entries import CachedResponse, decode, encode
from infergate.caching.fingerprints import fingerprint
from infergate.caching.keys import UncacheableError, digest, key_parts
from infergate.caching.response_cache import CacheKey, ResponseCache
from infergate.caching.store import MAX_BYTES_ON_LOOP, StoredValue
from infergate.core.bounded_cache import BoundedCache
from infergate.core.client_key import client_key
from infergate.core.counters import RouteCounters
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.memory import MIN_ACCOUNTED_BYTES
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.request_context import CLOCK_TOLERANCE, RequestContext
from infergate.core.sequences import sequence_key
from infergate.core.tensor import Buffer, data_bytes
from infergate.gateway.route_layers import RouteInferences
from infergate.gateway.shared_memory import uses_shared_memory

STATUS_HEADER: Final = "cache-status"
"""The header that reports how the cache handled the request (RFC 9211)."""
AGE_HEADER: Final = "age"
_CACHE_CONTROL: Final = "cache-control"
_NAME: Final = "infergate"
_UNCACHED_HEADERS: Final = frozenset(
    {"endpoint-load-metrics", "set-cookie", "x-request-id", "date", "retry-after", AGE_HEADER}
)
"""Headers of a backend's response that apply only to one exchange and are not cached."""
_MAX_VERSIONS: Final = 1024
_HIT, _MISS, _COLLAPSED, _BYPASS = "hit", "miss", "collapsed", "bypass"


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """The cache settings of a route. ``scope`` is a hash of everything in the configuration that
    can change a response. ``backend`` names the route's backend, and ``ttl`` is the lifetime of a
    response in seconds. ``timeout`` is the backend's timeout in seconds, or None if the route has
    its own timeout, because deadlines include the route's timeout. ``ignored`` contains the names
    of request parameters that are not part of keys. ``forwarded`` selects the headers that backends
    receive. With ``per_identity``, clients with different identities do not share responses. With
    ``min_uses`` of 2, the cache is used for an inference from its second occurrence."""

    scope: bytes
    backend: str
    ttl: float
    timeout: float | None = None
    ignored: frozenset[str] = frozenset()
    per_identity: bool = False
    min_uses: int = 1
    forwarded: Callable[[Mapping[str, str]], Mapping[str, str]] = lambda _: {}


@dataclass(frozen=True, slots=True)
class _Result:
    """The result of a flight: a response and its headers. ``cached`` is the cached value, or None
    if the backend sent the response. ``is_kept`` means that the cache has stored this response."""

    entry: CachedResponse
    cached: StoredValue | None = None
    is_kept: bool = False


_FlightKey = tuple[bytes, tuple[str, ...]]
"""The key of an inference, and the values of its ignored parameters. These parameters cannot change
the response, but they can delay it or cause an error, so only inferences with equal values share a
flight."""


@dataclass(slots=True, eq=False)
class _Flight:
    """An inference in progress, for which ``waiting`` clients wait. The flight has its own
    ``context``, so that it can outlive the client that started it."""

    key: _FlightKey
    task: asyncio.Task[_Result]
    context: RequestContext
    waiting: int = 0

    def outlive(self, context: RequestContext, size: int) -> None:
        """Take over the charge of ``size`` bytes from the first client's ``context``."""
        memory = self.context.memory = context.memory.detach(size)
        self.task.add_done_callback(lambda _: memory.close())


class CachedRoute:
    """Runs an inference on ``inner`` if its response is not in ``cache``."""

    def __init__(
        self,
        inner: RouteInferences,
        cache: ResponseCache,
        policy: CachePolicy,
        counters: RouteCounters,
    ) -> None:
        self._inner: Final = inner
        self._cache: Final = cache
        self._policy: Final = policy
        self._counters: Final = counters
        self._flights: Final[dict[_FlightKey, _Flight]] = {}
        self._tasks: Final[set[asyncio.Task[_Result]]] = set()
        """All running flights, including those for which no client waits."""
        self._versions: Final = BoundedCache[tuple[str, str], str](_MAX_VERSIONS)
        """The version in the last response to each requested model and version. If no inference has
        been sent to the backend yet, the value is the version of the first hit."""

    # ---- RouteInferences

    async def infer(self, request: InferRequest, context: RequestContext) -> InferResponse:
        directives = _directives(context.headers)
        if (
            "no-store" in directives
            or uses_shared_memory(request)
            or sequence_key(request) is not None
        ):
            return await self._bypass(request, context, by_request="no-store" in directives)
        try:
            parts = self._key_parts(request, context)
        except UncacheableError:
            return await self._bypass(request, context, by_request=False)
        if not directives and self._is_first_use(parts):
            self._count(context, _MISS)
            _report(context, "fwd=miss")
            response = await self._inner.infer(request, context)
            if context.record.backend == self._policy.backend:
                await self._check_version(request, response)
            return response
        key = await self._key(parts)
        if "no-cache" in directives:
            self._count(context, _BYPASS)
            remote = await self._cache.get_remote(key)
            result = await self._fetch(key, remote.tag, request, context)
            _report(context, "fwd=request; stored" if result.is_kept else "fwd=request")
            return result.entry.response
        cached = await self._cache.get(key)
        if cached is not None:
            return self._hit(_Result(decode(cached.value), cached), request, context)
        return await self._join(key, request, context)

    def stream(
        self, request: InferRequest, context: RequestContext
    ) -> AsyncGenerator[InferResponse, None]:
        self._count(context, _BYPASS)
        return self._inner.stream(request, context)

    async def _bypass(
        self, request: InferRequest, context: RequestContext, *, by_request: bool
    ) -> InferResponse:
        self._count(context, _BYPASS)
        _report(context, "fwd=request" if by_request else "fwd=bypass")
        return await self._inner.infer(request, context)

    # ---- keys

    def _key_parts(self, request: InferRequest, context: RequestContext) -> list[Buffer]:
        """Return the bytes that identify ``request``. Raises UncacheableError."""
        policy = self._policy
        extra: list[Any] = [
            sorted(datatype.value for datatype in context.unsupported_datatypes),
            sorted(policy.forwarded(context.headers).items()),
            context.identity if policy.per_identity else None,
        ]
        return key_parts(request, extra, policy.ignored)

    def _is_first_use(self, parts: Sequence[Buffer]) -> bool:
        """Return whether to skip the cache because the inference has not occurred before."""
        policy = self._policy
        if policy.min_uses == 1:
            return False
        return not self._cache.memory.seen.add(fingerprint(policy.scope, parts))

    async def _key(self, parts: Sequence[Buffer]) -> CacheKey:
        """Return the key of an inference. A thread hashes long inputs."""
        policy = self._policy
        if sum(map(len, parts)) > MAX_BYTES_ON_LOOP:
            hashed = await asyncio.to_thread(digest, policy.scope, parts)
        else:
            hashed = digest(policy.scope, parts)
        return self._cache.key(hashed, policy.backend)

    # ---- flights

    async def _join(
        self, key: CacheKey, request: InferRequest, context: RequestContext
    ) -> InferResponse:
        """Wait for the flight of ``key``. If there is no such flight, start it."""
        arrived, timeout = self._cache.clock(), self._policy.timeout
        ignored = sorted(self._policy.ignored)
        flight_key = key.in_memory, tuple([repr(request.parameters.get(name)) for name in ignored])
        while True:
            flight = self._flights.get(flight_key)
            is_first = flight is None
            if flight is None:
                flight = self._start(key, flight_key, request, context)
            elif timeout is not None:  # the backend's timeout also limits clients that only wait
                context.shorten_deadline(arrived + timeout)
            status = "fwd=miss" if is_first else "fwd=miss; collapsed"
            try:
                result = await self._wait(flight, request, context, is_first=is_first)
            except GatewayError:
                self._count(context, _MISS if is_first else _COLLAPSED)
                _report(context, status)
                raise
            if result is None:  # the error concerns only the first client
                self._forget(flight)
                continue
            if result.cached is not None:
                return self._hit(result, request, context)
            self._count(context, _MISS if is_first else _COLLAPSED)
            _report(context, f"{status}; stored" if is_first and result.is_kept else status)
            if is_first:
                return result.entry.response
            return _deliver(result.entry, request, context)

    def _start(
        self, key: CacheKey, flight_key: _FlightKey, request: InferRequest, context: RequestContext
    ) -> _Flight:
        child = context.child()
        child.record = context.record  # the first client's record reports the backend
        task = asyncio.create_task(self._run(key, request, child))
        self._tasks.add(task)
        flight = self._flights[flight_key] = _Flight(flight_key, task, child)

        def end(task: asyncio.Task[_Result]) -> None:
            self._tasks.discard(task)
            self._forget(flight)
            if not task.cancelled():
                task.exception()  # asyncio would log an error that no client retrieves

        task.add_done_callback(end)
        return flight

    def _forget(self, flight: _Flight) -> None:
        """Let later requests start a new flight."""
        if self._flights.get(flight.key) is flight:
            del self._flights[flight.key]

    async def _wait(
        self, flight: _Flight, request: InferRequest, context: RequestContext, *, is_first: bool
    ) -> _Result | None:
        """Return the result of ``flight``, or None if the client needs another flight. Raises
        GatewayError."""
        timeout = None
        if not is_first and context.deadline is not None:
            timeout = max(0.0, context.deadline - self._cache.clock())
        flight.waiting += 1
        try:
            await asyncio.wait([flight.task], timeout=timeout)
        finally:
            flight.waiting -= 1
            if not flight.task.done():
                if not flight.waiting:
                    flight.task.cancel()
                    self._forget(flight)
                elif is_first:
                    flight.outlive(context, data_bytes(request.inputs))
        if not flight.task.done():
            raise GatewayError(Kind.TIMEOUT, "the deadline passed before the response arrived")
        if is_first:
            headers = flight.context.response_headers
            context.response_headers = {**context.response_headers, **headers}
            return flight.task.result()
        try:
            return flight.task.result()
        except GatewayError as error:
            if self._concerns_first_only(error, context, flight.context):
                return None
            raise error.reworded(error.public) from None  # each client needs its own exception

    def _concerns_first_only(
        self, error: GatewayError, context: RequestContext, first: RequestContext
    ) -> bool:
        """Return whether the ``first`` client's inference failed for a reason that may not apply to
        ``context``: an earlier deadline, or that client's share of a full queue."""
        if error.kind is Kind.TIMEOUT:
            return self._has_time_left(context, first)
        if error.kind is Kind.OVERLOADED and error.origin is Origin.GATEWAY and not error.limit:
            return client_key(context)[0] != client_key(first)[0]
        return False

    def _has_time_left(self, context: RequestContext, first: RequestContext) -> bool:
        if first.deadline is None:
            return False
        deadline = math.inf if context.deadline is None else context.deadline
        return deadline > max(first.deadline, self._cache.clock()) + CLOCK_TOLERANCE

    async def _run(self, key: CacheKey, request: InferRequest, context: RequestContext) -> _Result:
        cached = await self._cache.get(key)  # an earlier flight may have ended since the lookup
        tag = b""
        if cached is None:
            remote = await self._cache.get_remote(key)
            cached, tag = remote.stored, remote.tag
        if cached is not None:
            return _Result(decode(cached.value), cached)
        return await self._fetch(key, tag, request, context)

    async def _fetch(
        self, key: CacheKey, tag: bytes, request: InferRequest, context: RequestContext
    ) -> _Result:
        """Run the inference, and keep its response if possible."""
        response = await self._inner.infer(request, context)
        headers = {
            name: value
            for name, value in context.response_headers.items()
            if name not in _UNCACHED_HEADERS
        }
        entry = CachedResponse(response, headers)
        if context.record.backend != self._policy.backend:  # a response of the fallback
            return _Result(entry)
        is_same_version = await self._check_version(request, response)
        is_kept = is_same_version and await self._keep(key, tag, entry, context)
        return _Result(entry, None, is_kept)

    async def _keep(
        self, key: CacheKey, tag: bytes, entry: CachedResponse, context: RequestContext
    ) -> bool:
        """Keep ``entry`` if it fits into the cache and there is memory for its copy. Return whether
        it was kept. A thread copies long responses."""
        response, account = entry.response, None
        size = data_bytes(response.outputs)
        if size > self._cache.max_entry_bytes:
            return False
        try:
            if size > MIN_ACCOUNTED_BYTES:
                account = context.memory.detach_optional(size)
            if size > MAX_BYTES_ON_LOOP:
                value = await asyncio.to_thread(encode, response, entry.headers)
            else:
                value = encode(response, entry.headers)
            return await self._cache.put(key, tag, value, self._policy.ttl)
        except (UncacheableError, GatewayError):
            return False
        finally:
            if account is not None:
                account.close()

    async def _check_version(self, request: InferRequest, response: InferResponse) -> bool:
        """Return whether ``response`` has the same version as the last response to the requested
        model and version, or is the first such response. If the versions differ, the server has
        loaded another version, so all cached responses of the backend are invalidated."""
        requested = request.model, request.version
        previous = self._versions.get(requested)
        if previous == response.version:
            return True
        self._versions[requested] = response.version
        if previous is None:
            return True
        await self._cache.invalidate(self._policy.backend)
        return False

    # ---- responses

    def _hit(
        self, result: _Result, request: InferRequest, context: RequestContext
    ) -> InferResponse:
        cached = result.cached
        assert cached is not None
        requested = request.model, request.version
        if requested not in self._versions:  # this process has not sent such an inference yet
            self._versions[requested] = result.entry.response.version
        self._count(context, _HIT)
        response = _deliver(result.entry, request, context)
        now = self._cache.clock()
        _report(context, f"hit; ttl={max(0, math.floor(cached.expires_at - now))}")
        age = str(max(0, math.floor(now - cached.created_at)))
        context.response_headers = {**context.response_headers, AGE_HEADER: age}
        return response

    def _count(self, context: RequestContext, result: str) -> None:
        context.record.cache = result
        self._counters.cache[result] += 1


def _deliver(
    entry: CachedResponse, request: InferRequest, context: RequestContext
) -> InferResponse:
    """Return the response in ``entry``, which other requests share, as the response to
    ``request``. Raises OVERLOADED if memory is short."""
    response = entry.response
    size = data_bytes(response.outputs)
    if size > MIN_ACCOUNTED_BYTES:
        context.memory.grow(size)
    context.response_headers = {**context.response_headers, **entry.headers}
    return replace(response, id=request.id)


def _report(context: RequestContext, status: str) -> None:
    """Append ``status`` to the response's Cache-Status header, which lists all caches on the path
    of the response."""
    earlier = context.response_headers.get(STATUS_HEADER)
    own = f"{_NAME}; {status}"
    value = own if earlier is None else f"{earlier}, {own}"
    context.response_headers = {**context.response_headers, STATUS_HEADER: value}


def _directives(headers: Mapping[str, str]) -> Sequence[str]:
    """Return which of the directives ``no-cache`` and ``no-store`` the client's Cache-Control
    header contains."""
    value = headers.get(_CACHE_CONTROL)
    if value is None:
        return ()
    names = {part.partition("=")[0].strip().lower() for part in value.split(",")}
    return [name for name in ("no-cache", "no-store") if name in names]
