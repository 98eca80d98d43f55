"""The interface of backends that exchange messages without a task. mypyc cannot compile this
module, because ``isinstance`` needs the protocol class."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from infergate.backends.codec_offload import BackendCodecOffload
from infergate.backends.request_sender import RequestSender
from infergate.codecs.base import Codec, Profile
from infergate.core.messages import ModelMetadata


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
        """Return the profile with which ``perform`` builds an inference, or None if it must be
        detected."""
        ...

    def cached_metadata(self, model: str, version: str) -> ModelMetadata | None:
        """Return the metadata of a model, or None if the server must be queried."""
        ...
