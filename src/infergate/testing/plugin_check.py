"""Runs Python models and request hooks as the gateway does, for the tests of their authors."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from infergate.core.limits import DEFAULT_LIMITS, Limits
from infergate.core.messages import InferRequest, InferResponse
from infergate.plugin_host.results import (
    InvalidResultError,
    check_metadata,
    check_request,
    check_response,
    model_response,
)
from infergate.plugins.base import PluginCall
from infergate.plugins.hook import RequestHook
from infergate.plugins.model import PythonModel


def check_model(
    model_class: type[PythonModel],
    options: Any,
    request: InferRequest,
    limits: Limits = DEFAULT_LIMITS,
) -> InferResponse:
    """Create a model with ``options``, and return its response to ``request`` as clients receive
    it.

    Raises AssertionError if the gateway would reject the metadata or the response, and raises the
    errors of the model."""

    async def run() -> InferResponse:
        model: Any = model_class(options)
        await model.start()
        try:
            metadata = check_metadata(model.metadata)
            result = model.infer(request, PluginCall())
            if inspect.isawaitable(result):
                result = await result
            return model_response(result, request, metadata, limits)
        finally:
            await model.close()

    return _checked(run())


def check_hook(
    hook_class: type[RequestHook],
    options: Any,
    request: InferRequest,
    response: InferResponse,
    limits: Limits = DEFAULT_LIMITS,
) -> InferResponse:
    """Create a hook with ``options``, and return the response that a client receives for
    ``request`` if the model returns ``response``.

    Raises AssertionError if the gateway would reject the result of the hook, and raises the errors
    of the hook."""

    async def run() -> InferResponse:
        hook, call = hook_class(options), PluginCall()
        await hook.start()
        try:
            changed: Any = await hook.before(request, call)
            if isinstance(changed, InferResponse):
                return check_response(changed, request, limits)
            if isinstance(changed, InferRequest):
                check_request(changed, request, limits)
            elif changed is not None:
                raise InvalidResultError(f"before returned {type(changed).__name__}")
            result: Any = await hook.after(request, response, call)
            if result is not None and not isinstance(result, InferResponse):
                raise InvalidResultError(f"after returned {type(result).__name__}")
            return response if result is None else check_response(result, request, limits)
        finally:
            await hook.close()

    return _checked(run())


def _checked(running: Any) -> InferResponse:
    try:
        response: InferResponse = asyncio.run(running)
    except InvalidResultError as error:
        raise AssertionError(f"the gateway refuses the result: {error}") from error
    return response
