"""The listener for callers in this process.

The listener has no socket, but it is a ``Server``, so in-process calls are counted and drained, and
use the active configuration, like the requests of clients.

*Rule.* Calls run in tasks of their own, with a copy of the caller's context variables. Stopping the
gateway cancels these tasks, but never the caller's task."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from infergate.core.errors import GatewayError
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, InferResponse, Operation, Response
from infergate.core.request_context import RequestContext
from infergate.gateway.canonical_frontend import IN_PROCESS, CanonicalFrontend, request_size
from infergate.transport.base import Address, BindFunction
from infergate.transport.server.admission import Admission, RequestAccount, shutting_down

T = TypeVar("T")
_CLEANUP_SECONDS: Final = 1.0
"""The time for cancelled calls to clean up, in seconds."""


class InProcessListener:
    """Serves callers in this process with ``app``. Implements ``transport.base.Server``."""

    address: Final = Address()
    sockets: Final = ()

    def __init__(self, app: CanonicalFrontend, admission: Admission) -> None:
        self._app = app
        self._admission: Final = admission
        self._calls: Final[set[_Call]] = set()
        self._is_stopping = False

    async def perform(
        self, operation: Operation, timeout: float | None, headers: Mapping[str, str]
    ) -> Response:
        """Perform ``operation``, within ``timeout`` seconds unless it is None. Raises
        GatewayError."""
        app = self._app
        with self._admitted(operation, timeout, headers) as call:
            return await call.run(app.perform(operation, call.context))

    async def stream(
        self, request: InferRequest, timeout: float | None, headers: Mapping[str, str]
    ) -> AsyncGenerator[InferResponse, None]:
        """Yield all responses to ``request`` on demand, within ``timeout`` seconds unless it is
        None. Raises GatewayError."""
        app = self._app
        with self._admitted(request, timeout, headers) as call:
            responses = call.responses = app.stream(request, call.context)
            try:
                while (response := await call.run(_next(responses))) is not None:
                    yield response
            finally:
                await call.close_responses()

    @contextmanager
    def _admitted(
        self, operation: Operation, timeout: float | None, headers: Mapping[str, str]
    ) -> Iterator[_Call]:
        deadline = None if timeout is None else time.monotonic() + timeout
        lower_case = {name.lower(): value for name, value in headers.items()}
        account = RequestAccount(self._admission)
        context = RequestContext(IN_PROCESS, deadline, headers=lower_case, memory=account)
        try:
            if self._is_stopping:
                raise shutting_down()
            account.admit(request_size(operation))
        except GatewayError as error:
            refuse = contextvars.copy_context().run
            raise refuse(self._app.refuse, error, operation, context) from None
        call = _Call(context)
        self._calls.add(call)
        try:
            yield call
        finally:
            account.release()
            self._calls.discard(call)
            call.finished.set_result(None)

    # ---- the interface of a server

    async def bind(self, bind: BindFunction | None = None, closing: Sequence[Any] = ()) -> None:
        """Do nothing, because there is no socket."""

    async def start(self) -> None:
        """Do nothing: calls are served from the beginning."""

    def set_app(self, app: CanonicalFrontend, limits: Limits) -> None:
        self._app = app
        self._admission.apply_limits(limits)

    def active_requests(self) -> Iterator[asyncio.Future[None]]:
        return iter([call.finished for call in self._calls])

    def stop_accepting(self) -> None:
        self._is_stopping = True

    async def stop(self, grace: float) -> None:
        """Let calls finish for up to ``grace`` seconds, then end them with an error."""
        self.stop_accepting()
        if not await self._wait(grace):
            await asyncio.gather(*[call.abort() for call in self._calls])
            await self._wait(_CLEANUP_SECONDS)

    async def _wait(self, seconds: float) -> bool:
        """Return whether all calls end within ``seconds``. Do not wait for abandoned streams,
        which end when their caller requests the next response."""
        calls = [call.finished for call in self._calls if not call.is_abandoned]
        return not calls or not (await asyncio.wait(calls, timeout=seconds))[1]


class _Call:
    """One call. ``responses`` are the responses of a stream, or None."""

    def __init__(self, context: RequestContext) -> None:
        self.context: Final = context
        self.finished: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()
        self.responses: AsyncGenerator[InferResponse, None] | None = None
        self.is_abandoned = False
        """Whether the gateway has closed the responses while the caller was not waiting for a
        response."""
        self._variables: Final = contextvars.copy_context()
        self._task: asyncio.Task[Any] | None = None

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of ``work``. Raises the abort error if the gateway stops."""
        context, caller = self.context, asyncio.current_task()
        if context.abort_error is not None:
            work.close()
            raise context.abort_error
        loop = asyncio.get_running_loop()
        task: asyncio.Task[T] = loop.create_task(work, context=self._variables)
        self._task = task
        try:
            return await task
        except asyncio.CancelledError:
            if context.abort_error is None or (caller is not None and caller.cancelling()):
                raise
            raise context.abort_error from None
        finally:
            self._task = None

    async def abort(self) -> None:
        """End the call with an error."""
        self.context.abort_error = shutting_down()
        if self._task is not None:
            self._task.cancel()
        else:
            self.is_abandoned = True
            await self.close_responses()

    def close_responses(self) -> Awaitable[object]:
        """Close the responses of a stream, in the context variables of the call."""
        closing = _close(self.responses)
        return asyncio.get_running_loop().create_task(closing, context=self._variables)


async def _next(responses: AsyncGenerator[InferResponse, None]) -> InferResponse | None:
    return await anext(responses, None)


async def _close(responses: AsyncGenerator[InferResponse, None] | None) -> None:
    if responses is not None:
        await responses.aclose()
