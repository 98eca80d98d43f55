"""The interfaces of backends that exchange wire messages: ``SupportsRelay`` needs no task, and
``SupportsRawMessages`` needs a task. mypyc cannot compile this module, because ``isinstance`` needs
the protocol classes."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol, runtime_checkable

from infergate.backends.codec_offload import BackendCodecOffload
from infergate.backends.request_sender import RequestSender
from infergate.codecs.base import Codec, Profile
from infergate.core.messages import ModelMetadata
from infergate.core.request_context import RequestContext
from infergate.core.sequences import SequenceKey


@runtime_checkable
class SupportsRelay(Protocol):
    """A backend that exchanges messages without a task."""

    codec: Codec[Any, Any]
    codec_offload: BackendCodecOffload[Any, Any]

    @property
    def relay_sender(self) -> RequestSender[Any, Any] | None:
        """The sender of the backend's messages, or None if the upstream needs tasks."""
        ...

    def current_profile(self) -> Profile | None:
        """Return the profile for a request, or None if ``request_profile`` must detect the
        profile."""
        ...

    def inference_profile(self) -> Profile | None:
        """Return the profile for an inference that ``perform`` builds, or None if the profile must
        be detected."""
        ...

    def cached_metadata(self, model: str, version: str) -> ModelMetadata | None:
        """Return the metadata of a model, or None if the server must be queried."""
        ...


@runtime_checkable
class SupportsRawMessages(Protocol):
    """A backend that sends wire messages without translating them."""

    codec: Codec[Any, Any]

    @property
    def has_several_endpoints(self) -> bool:
        """Whether there are several endpoints, in which case a sequence must stay on one."""
        ...

    def infer(
        self, wire: Any, context: RequestContext, sequence: SequenceKey | None = None
    ) -> Awaitable[Any]:
        """Send the inference ``wire`` and return the wire response. ``sequence`` contains the
        backend's name for the model."""
        ...

    @property
    def has_queue(self) -> bool:
        """Whether inferences may wait in a queue."""
        ...

    @property
    def fixed_profile(self) -> Profile | None:
        """The configured profile of the servers, or None if the profile is detected."""
        ...

    async def request_profile(self, context: RequestContext) -> Profile:
        """Return the servers' profile for a request. The profile is detected only if the request
        depends on it."""
        ...
