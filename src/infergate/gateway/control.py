"""Operations that change servers' state: off unless the operator switched them on.

*Strategy.* What concerns one model goes along its route, to every endpoint of the backend; what
concerns a server goes to every backend that has it. There is one answer.
*Rule 1.* An operation is done when all endpoints have done it: else the first one's error is told,
and how many failed. Nothing is undone.
*Rule 2.* Each is told to the log ``infergate.audit``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from infergate.backends.base import Backend
from infergate.codecs.base import Profile
from infergate.core.call import Call
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import (
    OPERATIONS,
    Answer,
    LogSettingsRequest,
    ModelLoadRequest,
    ModelUnloadRequest,
    Operation,
    RepositoryOperation,
    SettingsOperation,
    TraceSettingsRequest,
)
from infergate.gateway.audit import audited
from infergate.gateway.bound import Bound
from infergate.gateway.rename import model_to_backend


@dataclass(frozen=True, slots=True)
class Allowed:
    """What is switched on."""

    repository: bool = False
    settings: bool = False

    @property
    def extensions(self) -> tuple[str, ...]:
        """What of V2 is served with it."""
        repository = ("model_repository",) if self.repository else ()
        settings = ("trace", "logging") if self.settings else ()
        return (*repository, *settings)


NOTHING: Final = Allowed()


class Routing(Protocol):
    """The gateway, as far as it is needed here."""

    @property
    def backends(self) -> Sequence[Backend]:
        """All of them."""
        ...

    def bind_any(self, model: str, call: Call) -> Bound:
        """The first route of a model, whatever version, noted on ``call``. Raises NOT_FOUND."""
        ...


class Control:
    """Loads and unloads models, and sees to trace and log settings."""

    def __init__(self, allowed: Allowed, gateway: Routing) -> None:
        self._allowed: Final = allowed
        self._gateway: Final = gateway

    async def perform(self, operation: Operation, call: Call) -> Answer:
        """Raises NO_BACKEND for models where that is off (as a Triton that polls its repository),
        UNSUPPORTED, and what a backend says."""
        match operation:
            case ModelLoadRequest() | ModelUnloadRequest():
                if not self._allowed.repository:
                    raise GatewayError(
                        Kind.NO_BACKEND,
                        "explicit model load / unload is not allowed if polling is enabled",
                    )
                return await audited(operation, call, self._of_model(operation, call))
            case TraceSettingsRequest() | LogSettingsRequest():
                if not self._allowed.settings:
                    raise GatewayError(
                        Kind.UNSUPPORTED,
                        f"{OPERATIONS[type(operation)]} is off; it is switched on by "
                        "'control: {settings: true}' in the gateway's configuration",
                    )
                return await audited(operation, call, self._settings(operation, call))
        raise GatewayError(Kind.UNSUPPORTED, f"{OPERATIONS[type(operation)]} is not served")

    async def _of_model(
        self, operation: RepositoryOperation | TraceSettingsRequest, call: Call
    ) -> Answer:
        bound = self._gateway.bind_any(operation.model, call)
        theirs = model_to_backend(operation, bound.route)
        return (await bound.backend.everywhere(theirs, call))[0]

    async def _settings(self, operation: SettingsOperation, call: Call) -> Answer:
        if isinstance(operation, TraceSettingsRequest) and operation.model:
            bound = self._gateway.bind_any(operation.model, call)
            if not (await bound.backend.kind(call)).traces:
                raise GatewayError(
                    Kind.UNSUPPORTED, f"backend '{bound.backend.name}' has no trace settings"
                )
            return await self._of_model(operation, call)
        has = _HAS[type(operation)]
        kinds = await asyncio.gather(*(each.kind(call) for each in self._gateway.backends))
        having = [
            each for each, kind in zip(self._gateway.backends, kinds, strict=True) if has(kind)
        ]
        if not having:
            raise GatewayError(
                Kind.UNSUPPORTED, f"no backend has what {OPERATIONS[type(operation)]} asks for"
            )
        call.backend = ",".join(each.name for each in having)
        answers = await asyncio.gather(
            *(each.everywhere(operation, call) for each in having), return_exceptions=True
        )
        return _first(answers)


_HAS: Final[dict[type, Callable[[Profile], bool]]] = {
    TraceSettingsRequest: lambda kind: kind.traces,
    LogSettingsRequest: lambda kind: kind.logs,
}


def _first(answers: Sequence[Sequence[Answer] | BaseException]) -> Answer:
    """One answer for all backends (Rule 1)."""
    for each in answers:
        if isinstance(each, BaseException):
            raise each
    told = answers[0]
    assert not isinstance(told, BaseException)
    return told[0]
