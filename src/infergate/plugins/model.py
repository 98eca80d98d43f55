"""The interface of models that run in the gateway's process."""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from typing import Any

import numpy.typing as npt

from infergate.core.messages import InferRequest, InferResponse, ModelMetadata
from infergate.plugins.base import Plugin, PluginCall

ModelResult = InferResponse | Mapping[str, npt.NDArray[Any]]
"""A response: outputs by name as numpy arrays, or a complete InferResponse. An array has the dtype
that ``Tensor.numpy`` returns for the declared datatype: BF16 is float32, and BYTES is an object
array of ``bytes``. Arrays are never cast. Outputs that the client did not request are dropped."""


class PythonModel(Plugin, abc.ABC):
    """A model in Python, for tests, small models and code that combines other services.

    The gateway checks requests against ``metadata`` before they reach the model, and responses
    before they reach the client. Methods may raise GatewayError, whose public text the client
    receives. All other exceptions are failures of the model.
    """

    @property
    @abc.abstractmethod
    def metadata(self) -> ModelMetadata:
        """The model's name, inputs and outputs. The gateway reads this property once, when it
        creates the model. If ``max_batch_size`` is above 0, the first dimension of every shape is
        the batch dimension (-1)."""

    @abc.abstractmethod
    def infer(
        self, request: InferRequest, call: PluginCall
    ) -> ModelResult | Awaitable[ModelResult]:
        """Return the only response to ``request``.

        A plain method runs in several threads at a time, up to the backend's
        ``limits.max_requests``. An ``async`` method runs on the plug-in's own event loop, where all
        inferences of the plug-in share one thread."""

    def stream(
        self, request: InferRequest, call: PluginCall
    ) -> AsyncIterator[ModelResult] | Iterator[ModelResult] | None:
        """Yield all responses to ``request``, as a generator or an asynchronous generator. Each
        response has its own timeout. By default, this method returns None, and the result of
        ``infer`` is the only response."""
        del request, call
        return None


def input_arrays(request: InferRequest) -> dict[str, npt.NDArray[Any]]:
    """Return the inputs as numpy arrays by name. BYTES are object arrays of ``bytes``, and BF16 is
    float32."""
    return {tensor.name: tensor.numpy() for tensor in request.inputs}
