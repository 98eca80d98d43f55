"""``repeat``: a decoupled model, which gives several responses a request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

import numpy as np

from infergate.backends.builtin.model import Signature, invalid
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, TensorMetadata
from infergate.core.tensor import tensor_of

Sleep = Callable[[float], Awaitable[object]]
"""Waits so many seconds."""


class Repeat:
    """IN INT32 [-1], DELAY UINT32 [-1] (ms) → one response an element, each after its delay.

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
        """See :class:`Model`."""
        return self.signature.metadata

    def infer(self, request: InferRequest) -> InferResponse:  # noqa: ARG002 - the contract's name
        """Raises UNSUPPORTED: one answer cannot hold several responses."""
        raise GatewayError(
            Kind.UNSUPPORTED,
            "model 'repeat' sends several responses a request: use a stream",
            origin=Origin.BACKEND,
        )

    async def stream(self, request: InferRequest) -> AsyncGenerator[InferResponse, None]:
        """See :class:`Model`. Raises BAD_REQUEST where IN and DELAY differ in length."""
        given = self.signature.accept(request)
        values, delays = given["IN"].numpy(), given["DELAY"].numpy()
        if len(values) != len(delays):
            raise invalid(
                f"input 'DELAY' must have as many elements as input 'IN' for model 'repeat': "
                f"expected {len(values)}, got {len(delays)}"
            )
        for index in range(len(values)):
            await self._sleep(int(delays[index]) / 1000)
            yield self.signature.answer(
                request,
                (
                    tensor_of("OUT", Datatype.INT32, values[index : index + 1]),
                    tensor_of("IDX", Datatype.UINT32, np.array([index])),
                ),
            )
