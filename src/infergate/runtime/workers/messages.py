"""What supervisor and workers ask each other. Each is answered; with what, it says here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from infergate.config.schema import Config
from infergate.core.errors import Kind
from infergate.transport.base import Address

Given = tuple[tuple[Address, int], ...]
"""For each address how many descriptors of it come over the other pipe, in this order: of the
memory with the loads, then of its sockets."""


@dataclass(frozen=True, slots=True)
class Serve:
    """To a new worker: serve ``config``. None, when it accepts."""

    config: Config
    given: Given


@dataclass(frozen=True, slots=True)
class Prepare:
    """To a worker: do all that may fail of serving ``config`` next. None, when that is done."""

    config: Config
    given: Given


@dataclass(frozen=True, slots=True)
class Take:
    """To a worker: serve what was prepared. None."""


@dataclass(frozen=True, slots=True)
class Drop:
    """To a worker: go on as before, whether something was prepared or not. None."""


@dataclass(frozen=True, slots=True)
class Tell:
    """To a worker: its metrics, a piece of them at a time, the first where it is to ``begin`` and
    else the next. A list of families; an empty one: there are no more."""

    begin: bool


@dataclass(frozen=True, slots=True)
class Recall:
    """To a worker: what the console tells besides metrics. Recalled."""


@dataclass(frozen=True, slots=True)
class CarryOut:
    """To a worker: ``asked``, which is ``what``, of the console's. JSON, or Refused."""

    what: str
    asked: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Refused:
    """An answer: a GatewayError, which cannot be pickled."""

    kind: Kind
    public: str


@dataclass(frozen=True, slots=True)
class IsReady:
    """To a worker: whether it can serve. A bool."""


@dataclass(frozen=True, slots=True)
class Drain:
    """To a worker: fail readiness. None."""


@dataclass(frozen=True, slots=True)
class Stop:
    """To a worker: stop accepting, let requests finish for ``grace`` seconds, end. It may be told
    once more, to be quicker. None, at once."""

    grace: float


@dataclass(frozen=True, slots=True)
class Counted:
    """What the gateway has counted of ``model``, told as of ``version``. To a worker: by it; to
    the supervisor: by all. ModelStatistics."""

    model: str
    version: str
