"""How a server is asked whether it can serve, in its backend's own protocol.

*Rule 1.* It is asked as clients ask: V2 and the legacy APIs have a question of their own, GraphPipe
its metadata; where it makes nothing of that, in the other way that its protocol has.
*Rule 2.* One that refuses the question (it has none such, or not for us) is there and may well
serve: that is no reason to let it alone. Over V2 REST a refusal is a no: Triton's own is 400.
"""

from __future__ import annotations

import time
from typing import Any, Final

from infergate.backends.endpoints import Lease, Outcome
from infergate.codecs.base import Codec, Rephrasing
from infergate.codecs.profiles import GENERIC
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import Limits
from infergate.core.messages import Health, ServerReadyRequest
from infergate.transport.base import Upstream

_QUESTION: Final = ServerReadyRequest()
_REFUSALS: Final = frozenset(
    {
        Kind.BAD_REQUEST,
        Kind.UNAUTHENTICATED,
        Kind.FORBIDDEN,
        Kind.NOT_FOUND,
        Kind.METHOD_NOT_ALLOWED,
        Kind.UNSUPPORTED,
        Kind.RATE_LIMITED,
    }
)
_OTHERWISE: Final = _REFUSALS | {Kind.BACKEND_GARBAGE, Kind.BACKEND_ERROR}
"""What comes of a question that a server makes nothing of; see ``remote``."""


class Checking:
    """Asks over ``upstream`` in the words of ``codec``."""

    def __init__(
        self, codec: Codec[Any, Any], upstream: Upstream[Any, Any], limits: Limits
    ) -> None:
        self._codec: Final = codec
        self._upstream: Final = upstream
        self._limits: Final = limits

    async def check(self, lease: Lease, timeout: float) -> bool:
        """Whether ``lease`` says within ``timeout`` seconds that it is ready."""
        deadline = time.monotonic() + timeout
        lease.take()
        try:
            kind = await self._asked(lease, self._codec.build_request(_QUESTION, GENERIC), deadline)
            if kind in _OTHERWISE and isinstance(self._codec, Rephrasing):
                wire = self._codec.rephrase(_QUESTION, kind)
                if wire is not None:
                    kind = await self._asked(lease, wire, deadline)
        finally:
            lease.finished(Outcome.UNTOLD)
        return kind is None or kind in _REFUSALS

    async def _asked(self, lease: Lease, wire: Any, deadline: float) -> Kind | None:
        """What is wrong; None: nothing."""
        left = deadline - time.monotonic()
        if left <= 0:
            return Kind.TIMEOUT
        try:
            answer = await self._upstream.exchange(wire, lease.endpoint, left)
            told = self._codec.parse_response(answer, _QUESTION, self._limits)
        except GatewayError as error:
            return error.kind
        return None if told == Health(ok=True) else Kind.NO_BACKEND
