"""What a server tells of its models, asked for when it is needed and remembered for a while.

*Rule 1.* Clients name models: no more than ``MOST`` are remembered, the least wanted is forgotten
first, and of a name that the server does not know nothing is kept.
*Rule 2.* Only metadata is needed. That the largest batch cannot be told is no error; where that may
not last it is believed for a second.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from infergate.backends.remembered import Remembered
from infergate.core.call import Call
from infergate.core.errors import GatewayError
from infergate.core.messages import ModelMetadata
from infergate.core.tensor import Parameters

MOST: Final = 1024
LIFETIME: Final = 60.0
"""Seconds: a model may be replaced by another."""

Ask = Callable[[str, str, Call], Awaitable[tuple[ModelMetadata, float]]]
"""The metadata of a model and version, and for how many seconds to believe it."""


class Descriptions:
    """Remembers what ``ask`` finds out of each model and version."""

    def __init__(self, ask: Ask, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask: Final = ask
        self._clock: Final = clock
        self._of: Final[OrderedDict[tuple[str, str], Remembered[ModelMetadata]]] = OrderedDict()

    async def get(
        self, model: str, version: str, call: Call, *, newer: bool = False
    ) -> ModelMetadata:
        """The description of a model. ``newer``: of the last second. ``call`` has a deadline.

        Raises what ``ask`` raises, TimeoutError where another's question outlasts the deadline.
        """
        key = (model, version)
        one = self._of.get(key)
        if one is None:
            one = self._of[key] = Remembered(partial(self._ask, model, version), self._clock)
            if len(self._of) > MOST:
                self._of.popitem(last=False)
        else:
            self._of.move_to_end(key)
        try:
            return await one.get(call, newer=newer)
        except GatewayError:
            if one.is_empty and self._of.get(key) is one:
                del self._of[key]
            raise

    def forget(self, model: str) -> None:
        """Another model may have taken the place of ``model``, in all versions."""
        for key in [key for key in self._of if key[0] == model]:
            del self._of[key]

    def doubt(self, model: str, version: str) -> None:
        """A request that should have fitted the description did not."""
        one = self._of.get((model, version))
        if one is not None:
            one.doubt()


def configured(told: ModelMetadata, settings: Parameters) -> ModelMetadata:
    """``told`` and what is known by a model's configuration alone."""
    size = settings.get("max_batch_size", 0)  # Triton's default
    policy = settings.get("model_transaction_policy")
    batching = settings.get("sequence_batching")
    return replace(
        told,
        max_batch_size=size if type(size) is int and size >= 0 else None,
        decoupled=isinstance(policy, Mapping) and policy.get("decoupled") is True,
        sequence_batching=batching if isinstance(batching, Mapping) else None,
    )
