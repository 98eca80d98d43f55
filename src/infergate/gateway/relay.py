"""Relays inferences without a task: callbacks turn a complete request message into its response
(docs/decisions/0048-callback-fast-path.md).

A dispatcher's ``relay`` replaces ``respond`` on routes that need only the steps below. On these
routes, ``sender`` of ``PassThrough`` or ``RoutePlan`` is not None.

- ``Relay.start`` reads the summary, applies the name rule, finds the route and authorizes the
  request. If ``respond`` must serve the request, ``start`` returns None and sends nothing.
- ``RelayedRequest`` sends the request, and receives the response or the error by a callback of the
  upstream. ``RelayedPassThrough`` checks and rewrites messages, and ``RelayedTranslation``
  translates short messages. As in ``respond``, the request ends with a response, metrics and a log
  line.
- If a step must wait, a task continues the request: it prepares the request, waits in the queue,
  waits for the exchange, or delivers the response.
- ``cancel`` ends a request without a task. If the request has a task, the transport cancels the
  task.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

from infergate.backends.base import attribute_parse_error
from infergate.backends.codec_offload import BackendCodecOffload
from infergate.backends.relayed_exchange import RelayedExchange, RelayState
from infergate.codecs.base import (
    OutputsNeedTranslationError,
    ParsedRequest,
    PartialInferRequest,
    RequestSummary,
)
from infergate.core.bounded_cache import BoundedCache
from infergate.core.errors import GatewayError
from infergate.core.limits import NeedsOffloadError
from infergate.core.messages import OPERATION_NAMES, InferRequest, InferResponse
from infergate.core.priorities import requested_priority
from infergate.core.request_context import RequestContext
from infergate.gateway.frontend import Frontend
from infergate.gateway.internal_error import internal_error
from infergate.gateway.pass_through import PassThrough
from infergate.gateway.rename import inference_to_backend
from infergate.gateway.route_binding import RouteBinding
from infergate.gateway.route_plan import RoutePlan
from infergate.transport.base import Cancellable, RelayCallbacks

Req = TypeVar("Req")
Resp = TypeVar("Resp")
P = TypeVar("P")

_MAX_CACHED_NAMES: Final = 4096
_MAX_CACHED_CHARACTERS: Final = 256
_INFER: Final = OPERATION_NAMES[InferRequest]
_Factory = Callable[
    [Req, RequestSummary, RouteBinding, RequestContext, RelayCallbacks[Resp]],
    "RelayedRequest[Req, Resp, Any]",
]


class Relay(Generic[Req, Resp]):
    """Relays the inferences of ``frontend``. ``finish`` and ``record_cancelled`` are methods of the
    dispatcher."""

    def __init__(
        self,
        frontend: Frontend[Req, Resp],
        finish: Callable[[Resp, RequestContext], None],
        record_cancelled: Callable[[RequestContext], None],
    ) -> None:
        self.frontend: Final = frontend
        self.finish: Final = finish
        self.record_cancelled: Final = record_cancelled
        self._summarize: Final = frontend.codec.summarize
        self.translation: Final = frontend.translation
        self._factories: Final[dict[RouteBinding, _Factory[Req, Resp] | None]] = {}
        """Functions that create relayed requests, by route. The value is None for a route that
        needs tasks."""
        self._routes: Final = BoundedCache[
            tuple[str, str], tuple[RouteBinding, _Factory[Req, Resp] | None]
        ](_MAX_CACHED_NAMES)
        """The routes of valid models and versions, with the routes' factories. Routes that depend
        on a request's headers are not included."""
        self.known_metadata: Final = frontend.gateway.known_metadata
        self.check_inference: Final = frontend.gateway.check_inference

    def _make_factory(self, binding: RouteBinding) -> _Factory[Req, Resp] | None:
        """Create, keep and return the factory of ``binding``."""
        frontend = self.frontend
        pipeline = frontend.pipelines.get(binding) or frontend.make_pipeline(binding)
        factory: _Factory[Req, Resp] | None = None
        if isinstance(pipeline, PassThrough):
            if pipeline.sender is not None:
                factory = functools.partial(RelayedPassThrough, self, pipeline)
        elif not frontend.unsupported_datatypes:  # otherwise responses may have to be cast
            plan = frontend.gateway.relay_plan(binding)
            if plan is not None:
                factory = functools.partial(RelayedTranslation, self, plan)
        self._factories[binding] = factory
        return factory

    def _find_route(
        self, names: tuple[str, str], context: RequestContext
    ) -> tuple[RouteBinding, _Factory[Req, Resp] | None] | None:
        """Return the route of ``names``, a model and a version, with the route's factory. Return
        None if no route matches. Raises BAD_REQUEST."""
        gateway, factories = self.frontend.gateway, self._factories
        gateway.name_rule.check_model(*names)
        binding = gateway.find_binding(*names, context.headers)
        if binding is None:
            return None
        create = factories[binding] if binding in factories else self._make_factory(binding)
        is_short = sum(map(len, names)) <= _MAX_CACHED_CHARACTERS
        if is_short and not gateway.depends_on_headers(names[0]):
            self._routes[names] = binding, create
        return binding, create

    def start(
        self, wire: Req, context: RequestContext, callbacks: RelayCallbacks[Resp]
    ) -> Cancellable | None:
        """Start to serve ``wire``, or return None if ``respond`` must serve it. Never raises."""
        frontend = self.frontend
        try:
            summary = self._summarize(wire)
            if summary.operation is not InferRequest or not summary.can_pass_through:
                return None
            names = summary.model, summary.version
            route = self._routes.get(names) or self._find_route(names, context)
            if route is None:
                return None
            binding, create = route
            if create is None:
                return None
        except Exception:  # noqa: BLE001 - the error recurs in ``respond``, which reports it
            return None
        request = create(wire, summary, binding, context, callbacks)
        record = context.record
        record.protocol, record.operation = frontend.codec.name, _INFER
        record.model = summary.model
        context.unsupported_datatypes = frontend.unsupported_datatypes
        try:
            if frontend.decide is not None:
                permitted = frontend.decide(summary, context)
                if permitted is None:
                    return None
                request.summary = permitted
            if frontend.open_request is not None:
                frontend.open_request(wire)
            binding.apply_to(context)
            request.send()
        except GatewayError as error:
            request.refuse(error)
        except Exception:  # noqa: BLE001 - a bug must affect only one request
            request.refuse(internal_error(f"relaying {frontend.codec.name}"))
        return request


class RelayedRequest(RelayedExchange[Req, Resp], Generic[Req, Resp, P]):
    """A request in progress. ``summary`` is the authorizer's result if there is an authorizer.
    ``pipeline`` contains the steps of the request's route."""

    __slots__ = ("_binding", "_callbacks", "_pipeline", "_relay", "_response", "_wire", "summary")

    def __init__(  # noqa: PLR0913, PLR0917 - dependency injection
        self,
        relay: Relay[Req, Resp],
        pipeline: P,
        wire: Req,
        summary: RequestSummary,
        binding: RouteBinding,
        context: RequestContext,
        callbacks: RelayCallbacks[Resp],
    ) -> None:
        self.context = context  # a call of super().__init__ would slow down each request
        self.state = RelayState.LOCAL
        self.exchange = None
        self.error = None
        self.summary = summary
        self._relay: Final = relay
        self._pipeline: Final = pipeline
        self._wire: Final = wire
        self._binding: Final = binding
        self._callbacks: RelayCallbacks[Resp] | None = callbacks
        self._response: Resp | None = None

    # ---- subclasses implement these methods

    def send(self) -> None:
        """Check and send the message. Raises GatewayError."""
        raise NotImplementedError

    def _deliver(self) -> Awaitable[Resp]:
        """Convert ``_response``, the backend's response, to the client's response in a task."""
        raise NotImplementedError

    # ---- the result

    def _on_backend_error(self, error: Exception) -> None:
        if not isinstance(error, GatewayError):
            error = internal_error("relaying a request", error)
        self.refuse(error)

    def refuse(self, error: GatewayError) -> None:
        """Respond with ``error``."""
        if self.state is RelayState.EXCHANGING:  # a bug has interrupted the exchange
            self._cancel_exchange()
        self._respond(self._relay.frontend.refuse(error, self._wire, self.context))

    def _respond(self, response: Resp) -> None:
        callbacks, self._callbacks = self._callbacks, None
        self.state = RelayState.OVER
        try:
            self._relay.finish(response, self.context)
            if callbacks is not None:
                callbacks.on_response(response)
        except Exception:  # noqa: BLE001 - the error must not reach the transport
            internal_error("ending a relayed request")

    # ---- in a task

    def _continue(self, rest: Callable[[], Awaitable[Resp]]) -> None:
        assert self._callbacks is not None
        self._callbacks.continue_in_task(functools.partial(self._run, rest))

    def _continue_exchange(self) -> None:
        self._continue(self._exchange)

    async def _run(self, rest: Callable[[], Awaitable[Resp]]) -> Resp:
        """Finish the request with ``rest`` in a task, like ``Dispatch.respond``."""
        self.state = RelayState.IN_TASK
        self._callbacks = None
        relay, context = self._relay, self.context
        try:
            try:
                response = await rest()
            except GatewayError as error:
                response = relay.frontend.refuse(error, self._wire, context)
            except Exception:  # noqa: BLE001 - a bug must affect only one request
                failure = internal_error(f"serving {relay.frontend.codec.name}")
                response = relay.frontend.refuse(failure, self._wire, context)
        except BaseException:
            relay.record_cancelled(context)
            raise
        relay.finish(response, context)
        return response

    async def _exchange(self) -> Resp:
        self._response = await self._resume_exchange()
        return await self._deliver()

    # ---- called by the transport

    def cancel(self) -> None:
        """Cancel the request. If the request has a task, the transport cancels the task."""
        state = self.state
        if state is RelayState.IN_TASK or state is RelayState.OVER:
            return
        self._callbacks = None
        if state is RelayState.EXCHANGING:
            self._cancel_exchange()
        self.state = RelayState.OVER
        self._relay.record_cancelled(self.context)


class RelayedPassThrough(RelayedRequest[Req, Resp, PassThrough[Req, Resp]]):
    """A relayed request whose message passes through."""

    __slots__ = ("_checked",)

    _checked: Any
    """The client's message, or the validated message from ``prepare_now``."""

    # ---- the request

    def send(self) -> None:
        """Check, rewrite and send the message, like ``PassThrough.infer``. Raises GatewayError."""
        pipeline, wire, summary, context = self._pipeline, self._wire, self.summary, self.context
        self._checked = wire
        context.record.pipeline = pipeline.name
        if not summary.can_pass_through:
            self._continue(self._translate)
            return
        request, self._checked = pipeline.prepare_now(
            wire, summary, self._binding, context, self._relay.known_metadata
        )
        sender = pipeline.sender
        assert sender is not None
        if request is None or (sender.queue is not None and not sender.queue.try_enter()):
            self._continue(self._infer)
        else:
            self._start_exchange(sender, request)

    # ---- the result

    def _on_backend_response(self, response: Resp) -> None:
        pipeline, checked = self._pipeline, self._checked
        try:
            if pipeline.is_always_inline or pipeline.codec_offload.can_rewrite_inline(
                response, checked
            ):
                model = version = ""  # unchanged
                if pipeline.renames:
                    _, _, (model, version) = pipeline.rename(self.summary)
                self._respond(
                    pipeline.rewrite_response(response, checked, model, version, pipeline.limits)
                )
                return
        except (NeedsOffloadError, OutputsNeedTranslationError):
            pass  # the error recurs in ``deliver``, which handles it
        except GatewayError as error:
            self.refuse(attribute_parse_error(error, self._binding.backend.name))
            return
        except Exception:  # noqa: BLE001 - a bug must affect only one request
            self.refuse(internal_error("relaying a response"))
            return
        self._response = response
        self._continue(self._deliver)

    # ---- in a task

    def _infer(self) -> Awaitable[Resp]:
        """Serve the request from the beginning, because the backend has received nothing."""
        return self._pipeline.infer(
            self._wire, self.summary, self._binding, self.context, self._checked
        )

    def _translate(self) -> Awaitable[Resp]:
        return self._pipeline.translate(self._wire, self.summary, self._binding, self.context)

    def _deliver(self) -> Awaitable[Resp]:
        response, self._response = self._response, None
        assert response is not None
        return self._pipeline.deliver(
            response, self._checked, self.summary, self._binding, self.context
        )


class RelayedTranslation(RelayedRequest[Req, Resp, RoutePlan]):
    """A relayed request whose message is translated. If the message is long or a step must wait, a
    task continues the request."""

    __slots__ = ("_codec_offload", "_operation", "_parsed", "_result")

    _codec_offload: BackendCodecOffload[Any, Any]
    _operation: InferRequest
    """The parsed request with the backend's names."""
    _parsed: Any
    """The result of ``parse_inline``."""
    _result: InferResponse | None
    """The response that a task has yet to write."""

    # ---- the request

    def send(self) -> None:
        """Parse, build and send the message, like ``Translation.infer``. Raises GatewayError."""
        translation, context = self._relay.translation, self.context
        context.record.pipeline = translation.name
        parsed = self._parsed = translation.parse_inline(self._wire)
        request = None if parsed is None else self._build(parsed)
        if request is None:
            self._continue(self._infer)
            return
        sender = self._pipeline.sender
        assert sender is not None
        if sender.queue is not None and not sender.queue.try_enter():
            self.sender, self.request = sender, request
            self._continue(self._wait_and_exchange)
        else:
            self._start_exchange(sender, request)

    def _build(self, parsed: ParsedRequest | PartialInferRequest[ParsedRequest]) -> Any:
        """Return the request to the backend. If ``Translation.infer`` must build it, return None
        without any effect. Raises GatewayError."""
        if (
            isinstance(parsed, PartialInferRequest)
            or parsed.wants_stream
            or parsed.single_response_error
        ):
            return None
        operation, plan = parsed.operation, self._pipeline
        assert isinstance(operation, InferRequest)
        self._relay.check_inference(operation, self.context)
        profile = plan.relayed_profile(operation)
        if profile is None:
            return None
        assert plan.relaying is not None
        codec_offload = plan.relaying.codec_offload
        if plan.renames:
            operation = inference_to_backend(operation, plan.binding.route)
        self._operation, self._codec_offload = operation, codec_offload
        return codec_offload.write_inline(operation, profile, self.context)

    # ---- the result

    def _on_backend_response(self, response: Resp) -> None:
        client, parsed = self._relay.translation.codec_offload, self._parsed
        rest: Callable[[], Awaitable[Resp]] = self._deliver
        try:
            read = self._codec_offload.read_inline(response, self._operation, self.context)
            result = self._pipeline.for_client(read, parsed.operation)
            if client.is_short(result, parsed):
                self._respond(client.codec.build_response(result, parsed))
                return
            self._result, rest = result, self._write
        except NeedsOffloadError:
            self._response = response
        except GatewayError as error:
            self.refuse(error)
            return
        except Exception:  # noqa: BLE001 - a bug must affect only one request
            self.refuse(internal_error("relaying a response"))
            return
        self._continue(rest)

    # ---- in a task

    def _infer(self) -> Awaitable[Resp]:
        """Serve the request from the beginning, because the backend has received nothing."""
        return self._relay.translation.infer(
            self._wire, self.summary, self._binding, self.context, self._parsed
        )

    async def _wait_and_exchange(self) -> Resp:
        self.context.priority = requested_priority(self._operation.parameters)
        self._response = await self.sender.infer(self.request, self.context)
        return await self._deliver()

    async def _deliver(self) -> Resp:
        response, self._response = self._response, None
        read = await self._codec_offload.read_response(response, self._operation, self.context)
        del response
        self._result = self._pipeline.for_client(read, self._parsed.operation)
        del read
        return await self._write()

    def _write(self) -> Awaitable[Resp]:
        result, self._result = self._result, None
        assert result is not None
        return self._relay.translation.write(self.context, result, self._parsed)
