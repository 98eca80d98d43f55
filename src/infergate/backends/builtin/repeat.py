"""``repeat``: a decoupled model that sends several responses per request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

import numpy as np

from infergate.backends.builtin.model import Signature, invalid_request
from infergate.core.datatypes import Datatype
from infergate.core.errors import Kind, backend_failure
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, TensorMetadata
from infergate.core.tensor import tensor_from_array

Sleep = Callable[[float], Awaitable[object]]


class Repeat:
    """IN INT32 [-1], DELAY UINT32 [-1] (ms) → one response per element, after the element's delay.

    A response holds OUT INT32 [1], the element, and IDX UINT32 [1], its index.
    """

    signature: Final = Signature(
        "repeat",
        (TensorMetadata("IN", "INT32", (-1,)), TensorMetadata("DELAY", "UINT32", (-1,))),
        (TensorMetadata("OUT", "INT32", (1,)), TensorMetadata("IDX", "UINT32", (1,))),
        decoupled=True,
    )

    def __init__(self, sleep: Sleep = asyncio.sleep) -> None:
        self._sleep = sleep

    @property
    def metadata(self) -> ModelMetadata:
        return self.signature.metadata

    def infer(self, request: InferRequest) -> InferResponse:  # noqa: ARG002 - protocol
        """Raise UNSUPPORTED, because several responses require a stream."""
        raise backend_failure(
            Kind.UNSUPPORTED, "model 'repeat' sends several responses per request: use a stream"
        )

    async def stream(self, request: InferRequest) -> AsyncGenerator[InferResponse, None]:
        """Yield one response per element. Raises BAD_REQUEST if IN and DELAY differ in length."""
        inputs = self.signature.checked_inputs(request)
        values, delays = inputs["IN"].numpy(), inputs["DELAY"].numpy()
        if len(values) != len(delays):
            raise invalid_request(
                f"input 'DELAY' must have as many elements as input 'IN' for model 'repeat': "
                f"expected {len(values)}, got {len(delays)}"
            )
        for index in range(len(values)):
            await self._sleep(int(delays[index]) / 1000)
            yield self.signature.build_response(
                request,
                (
                    tensor_from_array("OUT", Datatype.INT32, values[index : index + 1]),
                    tensor_from_array("IDX", Datatype.UINT32, np.array([index])),
                ),
            )
