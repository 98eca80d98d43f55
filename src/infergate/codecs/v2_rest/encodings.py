"""Content encodings: gzip and deflate, undone under a cap, and applied on request."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Mapping, Sequence
from typing import Final

from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.inflation import (
    GZIP,
    MAX_MEMBERS,
    ZLIB,
    Corrupt,
    Oversized,
    inflated_most,
    pieces,
    window_of,
)
from infergate.core.limits import KIB, Limits
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpRequest, joined, size

_TRIED: Final = 64 * KIB
_LITTLE: Final = Limits(body=256 * KIB)
"""Half a millisecond's inflating."""
_LEVEL: Final = 1
"""Tensors hardly shrink further at higher levels, which cost many times more."""


def decoded(headers: Mapping[str, str], body: Sequence[Buffer], limits: Limits) -> Buffer:
    """The whole body, its encoding undone.

    Raises UNSUPPORTED_ENCODING, TOO_LARGE over ``limits.body``, BAD_REQUEST for a corrupt one.
    """
    data = joined(body)
    if is_plain(headers):
        if len(data) > limits.body:
            raise _too_large(limits)
        return data
    encoding = headers["content-encoding"].strip().lower()
    window = window_of(encoding, data)
    if window is None:
        raise GatewayError(
            Kind.UNSUPPORTED_ENCODING,
            f"content-encoding '{encoding[:40]}' is not supported (gzip, deflate, identity)",
        )
    told = inflated_most(data, window)  # what it was counted by
    try:
        return b"".join(pieces(data, window, min(told, limits.body), MAX_MEMBERS))
    except Corrupt as error:
        raise bad_request(f"the {encoding} body {error}") from None
    except Oversized:
        if told < limits.body:
            raise bad_request(f"the {encoding} body is longer than its own length field") from None
        raise _too_large(limits) from None


def _undo_little(wire: HttpRequest) -> None:
    """Undo the encoding of a body that inflates to little, in ``wire`` itself: it is weighed and
    then read, and need not be inflated for each. Others stay, wrong ones too. Never raises."""
    if size(wire.body) > _TRIED:
        return
    with contextlib.suppress(GatewayError):  # longer, or wrong
        wire.body = (decoded(wire.headers, wire.body, _LITTLE),)
        wire.headers = {k: v for k, v in wire.headers.items() if k != "content-encoding"}


def inflated_size(wire: HttpRequest) -> int:
    """How long the body is, or how long it is at most when its encoding is undone. One that
    inflates to little is left in ``wire`` as it then is. Never raises."""
    if not is_plain(wire.headers):
        _undo_little(wire)
    return body_most(wire.headers, wire.body)


def body_most(headers: Mapping[str, str], body: Sequence[Buffer]) -> int:
    """How long ``body`` is at most when its encoding is undone, as it tells itself."""
    if is_plain(headers):
        return size(body)
    data = joined(body)
    return inflated_most(data, window_of(headers["content-encoding"].strip().lower(), data))


def is_plain(headers: Mapping[str, str]) -> bool:
    """Whether the body has no encoding."""
    encoding = headers.get("content-encoding")
    return encoding is None or encoding.strip().lower() in {"identity", ""}


def _too_large(limits: Limits) -> GatewayError:
    return GatewayError(
        Kind.TOO_LARGE, f"the body is over the limit of {limits.body} bytes", limit="body"
    )


def accepted(header: str) -> str:
    """The encoding an ``Accept-Encoding`` header prefers: gzip, deflate, or ``""`` for none."""
    weights: dict[str, float] = {}
    for item in header.lower().split(","):
        name, _, rest = item.partition(";")
        weights[name.strip()] = _weight(rest)
    anything = weights.get("*", 0.0)
    gzip = weights.get("gzip", weights.get("x-gzip", anything))
    deflate = weights.get("deflate", anything)
    best = max(gzip, deflate)
    if best <= 0 or best < weights.get("identity", 0.0):
        return ""
    return "gzip" if gzip >= deflate else "deflate"


def _weight(parameters: str) -> float:
    """The ``q`` of one item; 1 where none is given, 0 where it is no number from 0 to 1."""
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                weight = float(value)
            except ValueError:
                return 0.0
            return weight if 0 <= weight <= 1 else 0.0
    return 1.0


def encoded(body: Sequence[Buffer], encoding: str) -> list[Buffer]:
    """``body`` in gzip or deflate."""
    deflater = zlib.compressobj(_LEVEL, zlib.DEFLATED, GZIP if encoding == "gzip" else ZLIB)
    return [b"".join([*map(deflater.compress, body), deflater.flush()])]
