"""The backend that answers from models inside this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Final

from infergate import __version__
from infergate.backends.builtin.accumulate import Accumulate
from infergate.backends.builtin.arithmetic import Simple, SimpleString
from infergate.backends.builtin.digits import Digits
from infergate.backends.builtin.identity import Identity
from infergate.backends.builtin.model import VERSION, Model
from infergate.backends.builtin.repeat import Repeat
from infergate.codecs.base import Profile
from infergate.core.call import Call
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.messages import (
    OPERATIONS,
    Answer,
    Health,
    InferRequest,
    InferResponse,
    ModelIndex,
    ModelIndexEntry,
    ModelIndexRequest,
    ModelLoadRequest,
    ModelMetadata,
    ModelMetadataRequest,
    ModelReadyRequest,
    ModelUnloadRequest,
    Operation,
    ServerLiveRequest,
    ServerMetadata,
    ServerMetadataRequest,
    ServerReadyRequest,
)

_PROFILE: Final = Profile("builtin", classifies=True)
EXTENSIONS: Final = ("classification", "sequence")


def embedded_models() -> tuple[Model, ...]:
    """All models that ship with infergate, each with a state of its own."""
    return (Simple(), SimpleString(), Identity(), Repeat(), Accumulate(), Digits())


class BuiltinBackend:
    """Implements :class:`infergate.backends.base.Backend` with ``models``, by default all."""

    protocol = "builtin"
    datatypes = frozenset(Datatype)
    sequences = True

    def __init__(self, name: str, models: Iterable[Model] | None = None) -> None:
        self.name = name
        served = embedded_models() if models is None else models
        self._models: Final = {model.metadata.name: model for model in served}

    async def perform(self, operation: Operation, call: Call) -> Answer:  # noqa: ARG002 - instant
        """See Backend. Raises NOT_FOUND, BAD_REQUEST, UNSUPPORTED, OVERLOADED."""
        match operation:
            case ServerLiveRequest() | ServerReadyRequest():
                return Health(ok=True)
            case ServerMetadataRequest():
                return ServerMetadata("infergate", __version__, EXTENSIONS)
            case ModelIndexRequest():  # every model is always ready
                return ModelIndex(
                    tuple(ModelIndexEntry(name, VERSION, "READY") for name in self._models)
                )
            case ModelReadyRequest(model, version):
                self._find(model, version)
                return Health(ok=True)
            case ModelMetadataRequest(model, version):
                return self._find(model, version).metadata
            case InferRequest(model, version):
                return self._find(model, version).infer(operation)
            case ModelLoadRequest(model) | ModelUnloadRequest(model):
                raise GatewayError(
                    Kind.UNSUPPORTED,
                    f"model '{model}' is inside infergate, where none is loaded or unloaded",
                    origin=Origin.BACKEND,
                )
            case _:
                raise GatewayError(
                    Kind.UNSUPPORTED,
                    f"embedded models know nothing of {OPERATIONS[type(operation)]}",
                    origin=Origin.BACKEND,
                )

    async def describe(
        self,
        model: str,
        version: str,
        call: Call,  # noqa: ARG002 - instant
        *,
        newer: bool = False,  # noqa: ARG002 - nothing changes
    ) -> ModelMetadata:
        """See Backend. Raises NOT_FOUND."""
        return self._find(model, version).metadata

    async def everywhere(self, operation: Operation, call: Call) -> Sequence[Answer]:
        """See Backend. There is one place."""
        return (await self.perform(operation, call),)

    async def kind(self, call: Call) -> Profile:  # noqa: ARG002 - instant
        """See Backend."""
        return _PROFILE

    async def classifies(self, call: Call) -> bool:  # noqa: ARG002 - instant
        """Every model does."""
        return True

    async def stream(
        self, operation: InferRequest, call: Call
    ) -> AsyncGenerator[InferResponse, None]:
        """All responses to ``operation``, each made when it is pulled, before ``call.deadline``.

        A model with one answer gives that. Raises like ``perform``, and TIMEOUT.
        """
        responses = self._find(operation.model, operation.version).stream(operation)
        async with aclosing(responses) as pulled:
            while True:
                # Around each pull and not around the loop: between two pulls the caller's own
                # code runs, and a timeout would cancel that.
                try:
                    async with asyncio.timeout(_left(call)):
                        response = await anext(pulled, None)
                except TimeoutError:
                    raise GatewayError(
                        Kind.TIMEOUT,
                        f"model '{operation.model}' did not answer before the deadline",
                        origin=Origin.BACKEND,
                    ) from None
                if response is None:
                    return
                yield response

    async def close(self) -> None:
        """Nothing is held."""

    def _find(self, name: str, version: str) -> Model:
        model = self._models.get(name)
        if model is None:
            raise GatewayError(Kind.NOT_FOUND, f"unknown model '{name}'", origin=Origin.BACKEND)
        if version not in ("", VERSION):
            raise GatewayError(
                Kind.NOT_FOUND,
                f"unknown version '{version}' of model '{name}'",
                origin=Origin.BACKEND,
            )
        return model


def _left(call: Call) -> float | None:
    return None if call.deadline is None else call.deadline - time.monotonic()
