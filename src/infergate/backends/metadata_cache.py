"""A cache of model metadata, fetched from the backend on first use.

*Rule 1.* Model names come from clients, so at most ``MAX_ENTRIES`` models are cached (the least
recently used model is evicted first), and nothing is cached for a model that the server does not
have.
*Rule 2.* Only the metadata itself is required. A missing maximum batch size is not an error; if the
cause may be temporary, the entry expires after a second."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from infergate.backends.single_flight import SingleFlightCache
from infergate.core.errors import GatewayError
from infergate.core.messages import ModelMetadata
from infergate.core.request_context import RequestContext
from infergate.core.tensor import Parameters

MAX_ENTRIES: Final = 1024
LIFETIME_SECONDS: Final = 60.0
"""Seconds until an entry expires, because the server may load another model under the same name."""

FetchMetadata = Callable[[str, str, RequestContext], Awaitable[tuple[ModelMetadata, float]]]
"""Fetches the metadata of a model and version. Returns the metadata and its lifetime in seconds."""


class ModelMetadataCache:
    """Caches the result of ``fetch`` per model and version."""

    def __init__(self, fetch: FetchMetadata, clock: Callable[[], float] = time.monotonic) -> None:
        self._fetch: Final = fetch
        self._clock: Final = clock
        self._entries: Final[OrderedDict[tuple[str, str], SingleFlightCache[ModelMetadata]]] = (
            OrderedDict()
        )

    async def get(
        self, model: str, version: str, context: RequestContext, *, refresh: bool = False
    ) -> ModelMetadata:
        """Return the metadata of a model. With ``refresh``, the metadata is at most a second old.
        ``context`` must have a deadline.

        Raises the errors of ``fetch``, and TimeoutError if another caller's fetch outlasts the
        deadline.
        """
        key = (model, version)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = SingleFlightCache(
                partial(self._fetch, model, version), self._clock
            )
            if len(self._entries) > MAX_ENTRIES:
                self._entries.popitem(last=False)
        else:
            self._entries.move_to_end(key)
        try:
            return await entry.get(context, refresh=refresh)
        except GatewayError:
            if entry.is_empty and self._entries.get(key) is entry:
                del self._entries[key]
            raise

    def cached(self, model: str, version: str) -> ModelMetadata | None:
        """Return the cached metadata of a model, or None if the metadata is not cached or has
        expired."""
        key = (model, version)
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry.cached

    def invalidate_model(self, model: str) -> None:
        """Drop the entries for all versions of ``model``, because the server may have replaced the
        model."""
        for key in [key for key in self._entries if key[0] == model]:
            del self._entries[key]

    def mark_stale(self, model: str, version: str) -> None:
        """Shorten the lifetime of an entry that did not match a request or response."""
        entry = self._entries.get((model, version))
        if entry is not None:
            entry.mark_stale()


def add_configuration(metadata: ModelMetadata, settings: Parameters) -> ModelMetadata:
    """Return ``metadata`` with the fields that only ``settings``, the model's configuration,
    contains."""
    size = settings.get("max_batch_size", 0)  # Triton's default
    policy = settings.get("model_transaction_policy")
    batching = settings.get("sequence_batching")
    return replace(
        metadata,
        max_batch_size=size if type(size) is int and size >= 0 else None,
        decoupled=isinstance(policy, Mapping) and policy.get("decoupled") is True,
        sequence_batching=batching if isinstance(batching, Mapping) else None,
    )
