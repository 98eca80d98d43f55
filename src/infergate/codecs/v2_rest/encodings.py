"""Content encodings: gzip and deflate, inflated under a limit and applied on request."""

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
"""Limits of a body that is inflated early. Inflating this much takes half a millisecond."""
_LEVEL: Final = 1
"""Higher levels hardly shrink tensors further and are many times slower."""


def decoded(headers: Mapping[str, str], body: Sequence[Buffer], limits: Limits) -> Buffer:
    """Return the whole body with its content encoding undone.

    Raises UNSUPPORTED_ENCODING, TOO_LARGE over ``limits.body``, BAD_REQUEST for a corrupt body.
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
    max_bytes = inflated_most(data, window)  # the memory accounting used the same number
    try:
        return b"".join(pieces(data, window, min(max_bytes, limits.body), MAX_MEMBERS))
    except Corrupt as error:
        raise bad_request(f"the {encoding} body {error}") from None
    except Oversized:
        if max_bytes < limits.body:
            raise bad_request(f"the {encoding} body is longer than its own length field") from None
        raise _too_large(limits) from None


def _undo_little(wire: HttpRequest) -> None:
    """Replace the body in ``wire`` by its inflated form if that is small, so that it is not
    inflated both for its size and for reading. Leaves all other bodies, also invalid ones. Never
    raises."""
    if size(wire.body) > _TRIED:
        return
    with contextlib.suppress(GatewayError):  # too long or invalid
        wire.body = (decoded(wire.headers, wire.body, _LITTLE),)
        wire.headers = {k: v for k, v in wire.headers.items() if k != "content-encoding"}


def inflated_size(wire: HttpRequest) -> int:
    """Return the length of the body or, if it is compressed, its maximum inflated length. A body
    that inflates to little is replaced in ``wire`` by its inflated form. Never raises."""
    if not is_plain(wire.headers):
        _undo_little(wire)
    return body_most(wire.headers, wire.body)


def body_most(headers: Mapping[str, str], body: Sequence[Buffer]) -> int:
    """Return the maximum length of ``body`` with its encoding undone, according to the body
    itself."""
    if is_plain(headers):
        return size(body)
    data = joined(body)
    return inflated_most(data, window_of(headers["content-encoding"].strip().lower(), data))


def is_plain(headers: Mapping[str, str]) -> bool:
    """Whether the body has no content encoding."""
    encoding = headers.get("content-encoding")
    return encoding is None or encoding.strip().lower() in {"identity", ""}


def _too_large(limits: Limits) -> GatewayError:
    return GatewayError(
        Kind.TOO_LARGE, f"the body is over the limit of {limits.body} bytes", limit="body"
    )


def accepted(header: str) -> str:
    """Return the encoding that an ``Accept-Encoding`` header prefers: gzip, deflate, or ``""``."""
    weights: dict[str, float] = {}
    for item in header.lower().split(","):
        name, _, parameters = item.partition(";")
        weights[name.strip()] = _weight(parameters)
    wildcard = weights.get("*", 0.0)
    gzip = weights.get("gzip", weights.get("x-gzip", wildcard))
    deflate = weights.get("deflate", wildcard)
    preferred = max(gzip, deflate)
    if preferred <= 0 or preferred < weights.get("identity", 0.0):
        return ""
    return "gzip" if gzip >= deflate else "deflate"


def _weight(parameters: str) -> float:
    """Return the ``q`` value of one item: 1 if missing, 0 if it is not a number from 0 to 1."""
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
    """Compress ``body`` with gzip or deflate."""
    deflater = zlib.compressobj(_LEVEL, zlib.DEFLATED, GZIP if encoding == "gzip" else ZLIB)
    return [b"".join([*map(deflater.compress, body), deflater.flush()])]
