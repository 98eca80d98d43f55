"""A request hook that keeps NaN and infinity away from models and from clients."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from infergate.plugins import (
    Datatype,
    GatewayError,
    InferRequest,
    InferResponse,
    Kind,
    PluginCall,
    RequestHook,
    Tensor,
)

_FLOATS = (Datatype.FP16, Datatype.BF16, Datatype.FP32, Datatype.FP64)
_MAX_INLINE_BYTES = 1 << 20
"""Larger tensors are checked in a thread, because the hook's calls share one event loop."""


@dataclass
class Options:
    """The options in the configuration."""

    outputs: bool = True
    """Whether the outputs of the model are checked as well."""


class FiniteHook(RequestHook):
    """Rejects requests with NaN or infinity, and reports models that return them."""

    options_type = Options

    async def before(self, request: InferRequest, call: PluginCall) -> InferRequest | None:
        """Reject requests with NaN or infinity, and leave all others unchanged."""
        del call
        name = await _find_non_finite(request.inputs)
        if name is not None:
            raise GatewayError(Kind.BAD_REQUEST, f"input '{name}' contains NaN or infinity")
        return None

    async def after(
        self, request: InferRequest, response: InferResponse, call: PluginCall
    ) -> InferResponse | None:
        """Reject responses with NaN or infinity, and mark all others as checked."""
        del request, call
        if not self.options.outputs:
            return None
        name = await _find_non_finite(response.outputs)
        if name is not None:
            raise GatewayError(
                Kind.BACKEND_GARBAGE, f"the model returned NaN or infinity in output '{name}'"
            )
        return replace(response, parameters={**response.parameters, "finite": True})


async def _find_non_finite(tensors: Sequence[Tensor]) -> str | None:
    """Return the name of the first tensor that contains NaN or infinity, or None."""
    for tensor in tensors:
        if tensor.datatype in _FLOATS:
            if len(tensor.data) <= _MAX_INLINE_BYTES:
                is_finite = _is_finite(tensor)
            else:
                is_finite = await asyncio.to_thread(_is_finite, tensor)
            if not is_finite:
                return tensor.name
    return None


def _is_finite(tensor: Tensor) -> bool:
    return bool(np.isfinite(tensor.numpy()).all())
