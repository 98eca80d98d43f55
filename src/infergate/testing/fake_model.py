"""Models for tests of clients. A Python function computes the responses of a model."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import replace
from threading import Thread
from typing import Any, Final, TypeVar

import numpy.typing as npt

from infergate.backends.builtin.model import Signature
from infergate.core.datatypes import DATATYPES_BY_NAME, Datatype
from infergate.core.errors import GatewayError, Kind, backend_failure
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, TensorMetadata
from infergate.core.tensor import Tensor
from infergate.library.tensors import tensor

T = TypeVar("T")
TensorSpec = tuple[Datatype | str, Sequence[int]]
"""A datatype or its Open Inference Protocol name, and a shape, in which -1 matches any size."""
ModelFunction = Callable[[Mapping[str, npt.NDArray[Any]]], Any]
"""A sync or async function that returns or yields mappings from output names to values."""


class FakeModel:
    """A model with version 1. ``function`` computes its responses.

    The model checks each request against ``inputs``, and passes the inputs to the function as
    arrays by name. The function returns the outputs by name. A generator function may yield any
    number of responses to a request. A function that is not async runs in a thread and may block.
    Calls may run concurrently.

    If the function raises ``GatewayError``, the client gets this error. If the function raises
    another exception, or returns outputs that do not match ``outputs``, the client gets a backend
    error with the model's name and the reason.

    If ``max_batch_size`` is not 0, the first dimension of every shape is the batch."""

    def __init__(
        self,
        name: str,
        function: ModelFunction,
        *,
        inputs: Mapping[str, TensorSpec],
        outputs: Mapping[str, TensorSpec],
        max_batch_size: int = 0,
    ) -> None:
        """Raises ValueError for an unknown datatype."""
        self._function: Final = function
        self._is_decoupled: Final = inspect.isgeneratorfunction(
            function
        ) or inspect.isasyncgenfunction(function)
        self._signature: Final = Signature(
            name,
            _metadata(inputs),
            _metadata(outputs),
            max_batch_size,
            decoupled=self._is_decoupled,
        )

    @property
    def metadata(self) -> ModelMetadata:
        return self._signature.metadata

    def infer(self, request: InferRequest) -> InferResponse:
        """Raise NotImplementedError: the backend of fake models uses ``stream``."""
        raise NotImplementedError

    async def stream(self, request: InferRequest) -> AsyncGenerator[InferResponse, None]:
        checked = self._signature.checked_inputs(request)
        arrays = {name: each.numpy() for name, each in checked.items()}
        async with aclosing(self._results(arrays)) as results:
            async for result in results:
                response = self._signature.build_response(request, self._tensors(result))
                yield response if self._is_decoupled else replace(response, is_last=True)

    async def _results(
        self, arrays: Mapping[str, npt.NDArray[Any]]
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the results of the function. Raises GatewayError."""
        function = self._function
        try:
            if inspect.isasyncgenfunction(function):
                async with aclosing(function(arrays)) as results:
                    async for result in results:
                        yield result
            elif inspect.isgeneratorfunction(function):
                generator = function(arrays)
                while (result := await _in_thread(next, generator, None)) is not None:
                    yield result
            else:
                result = await _in_thread(function, arrays)
                yield await result if inspect.isawaitable(result) else result
        except GatewayError:
            raise
        except Exception as error:
            raise self._failure(f"raised {type(error).__name__}: {error}") from error

    def _tensors(self, result: Mapping[str, Any]) -> list[Tensor]:
        declared = {each.name: each for each in self._signature.outputs}
        if not isinstance(result, Mapping) or result.keys() != declared.keys():
            returned = sorted(result) if isinstance(result, Mapping) else type(result).__name__
            raise self._failure(f"returned {returned}; expected the outputs {sorted(declared)}")
        tensors = []
        for name, each in declared.items():
            try:
                output = tensor(name, result[name], DATATYPES_BY_NAME[each.datatype])
            except (TypeError, ValueError, OverflowError) as error:
                raise self._failure(f"returned an invalid output '{name}': {error}") from error
            if not each.accepts_shape(output.shape):
                raise self._failure(
                    f"returned output '{name}' with shape {list(output.shape)}; "
                    f"expected {list(each.shape)}"
                )
            tensors.append(output)
        return tensors

    def _failure(self, text: str) -> GatewayError:
        public = f"the function of fake model '{self._signature.model}' {text}"
        return backend_failure(Kind.BACKEND_ERROR, public)


async def _in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Run ``function(*arguments)`` in a daemon thread, and return the result. A test can end while
    such a thread still sleeps, but not while a thread of the loop's executor does."""
    future: Future[T] = Future()

    def run() -> None:
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function(*arguments))
            except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
                future.set_exception(error)

    Thread(target=run, name="infergate-fake-model", daemon=True).start()
    return await asyncio.wrap_future(future)


def _metadata(specs: Mapping[str, TensorSpec]) -> tuple[TensorMetadata, ...]:
    tensors = []
    for name, (datatype, shape) in specs.items():
        parsed = datatype if isinstance(datatype, Datatype) else DATATYPES_BY_NAME.get(datatype)
        if parsed is None:
            raise ValueError(
                f"tensor '{name}': unknown datatype '{datatype}'; expected one of: "
                f"{', '.join(DATATYPES_BY_NAME)}"
            )
        tensors.append(TensorMetadata(name, parsed.value, tuple(shape)))
    return tuple(tensors)
