"""The models behind the matrix: they answer with what they are given, and tell what that was."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from infergate.backends.builtin.backend import BuiltinBackend
from infergate.backends.builtin.model import (
    Model,
    Signature,
    UnaryModel,
    check_outputs,
    tensors_by_name,
)
from infergate.core.call import Call
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, Operation, Response
from infergate.core.tensor import NO_PARAMETERS, Parameters, Tensor

_FOREVER: Final = 3600.0
_LATER: Final = 0.2


class Echo(UnaryModel):
    """The nth input comes back as the nth output; with ``tells`` as the answer's parameters, the
    request's id and version."""

    def __init__(self, signature: Signature, tells: Parameters = NO_PARAMETERS) -> None:
        self.signature: Final = signature
        self._tells: Final = tells
        self._outputs: Final = {
            given.name: output.name
            for given, output in zip(signature.inputs, signature.outputs, strict=True)
        }

    @property
    def metadata(self) -> ModelMetadata:
        """See Model."""
        return self.signature.metadata

    def infer(self, request: InferRequest) -> InferResponse:
        """See Model."""
        given = self.signature.checked_inputs(request)
        check_outputs(request.model, request.outputs, self._outputs.values())
        returned = tensors_by_name(
            Tensor(self._outputs[each.name], each.datatype, each.shape, each.data)
            for each in given.values()
        )
        answer = self.signature.build_response(request, returned.values())
        return InferResponse(
            answer.model, request.version, answer.id, self._tells, answer.outputs, is_last=True
        )


class Refusing(Echo):
    """Every inference ends with ``error``."""

    def __init__(self, signature: Signature, error: GatewayError) -> None:
        super().__init__(signature)
        self.error: Final = error

    def infer(self, request: InferRequest) -> InferResponse:
        """See Model."""
        del request
        raise self.error


class Hanging(Echo):
    """No inference ends."""


@dataclass(frozen=True, slots=True)
class Seen:
    """An inference as it reached a model, the seconds it was ``allowed`` (None: no bound), and what
    it was ``given``, if anything."""

    request: InferRequest
    allowed: float | None
    given: InferResponse | None


class Witness(BuiltinBackend):
    """Serves models, and remembers the inferences that reached them."""

    def __init__(self, models: Iterable[Model]) -> None:
        served = tuple(models)
        super().__init__("witness", served)
        self.models: Final = {model.metadata.name: model.metadata for model in served}
        self._hanging: Final = {
            model.metadata.name for model in served if isinstance(model, Hanging)
        }
        self._seen: list[Seen] = []

    def taken(self) -> list[Seen]:
        """What was seen since this was last asked."""
        seen, self._seen = self._seen, []
        return seen

    async def perform(self, operation: Operation, call: Call) -> Response:
        """See Backend."""
        if not isinstance(operation, InferRequest):
            return await super().perform(operation, call)
        allowed = None if call.deadline is None else call.deadline - time.monotonic()
        given: InferResponse | None = None
        try:
            if operation.model in self._hanging:
                # Past the time that is allowed: whoever asks a server gives up before it does.
                await asyncio.sleep(_FOREVER if allowed is None else allowed + _LATER)
                raise GatewayError(Kind.TIMEOUT, "the model did not answer in time")
            answer = await super().perform(operation, call)
            assert isinstance(answer, InferResponse)
            given = answer
        finally:
            self._seen.append(Seen(operation, allowed, given))
        return answer
