"""Content encodings: gzip and deflate, undone under a cap, and applied on request."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Final

from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.limits import Limits
from infergate.core.tensor import Buffer
from infergate.core.wire import joined

_GZIP: Final = 31
_ZLIB: Final = 15
_RAW: Final = -15
_LEVEL: Final = 1
"""Tensors hardly shrink further at higher levels, which cost many times more."""


def decoded(headers: Mapping[str, str], body: Sequence[Buffer], limits: Limits) -> Buffer:
    """The whole body, its encoding undone.

    Raises UNSUPPORTED_ENCODING, TOO_LARGE over ``limits.body``, BAD_REQUEST for a corrupt one.
    """
    encoding = headers.get("content-encoding", "identity").strip().lower()
    data = joined(body)
    match encoding:
        case "identity" | "":
            if len(data) > limits.body:
                raise _too_large(limits)
            return data
        case "gzip" | "x-gzip":
            return _inflated(data, _GZIP, encoding, limits)
        case "deflate":
            # the standard's deflate is zlib; some clients send it bare. A zlib header's two bytes
            # are a multiple of 31 and name method 8.
            bare = not (len(data) > 1 and data[0] & 15 == 8 and (data[0] << 8 | data[1]) % 31 == 0)
            return _inflated(data, _RAW if bare else _ZLIB, encoding, limits)
        case _:
            raise GatewayError(
                Kind.UNSUPPORTED_ENCODING,
                f"content-encoding '{encoding[:40]}' is not supported (gzip, deflate, identity)",
            )


def _too_large(limits: Limits) -> GatewayError:
    return GatewayError(Kind.TOO_LARGE, f"the body is over the limit of {limits.body} bytes")


def _inflated(data: Buffer, window: int, encoding: str, limits: Limits) -> bytes:
    inflater = zlib.decompressobj(window)
    try:
        inflated = inflater.decompress(data, limits.body + 1)
    except zlib.error as error:
        raise bad_request(f"the {encoding} body is corrupt: {error}") from None
    if len(inflated) > limits.body:
        raise _too_large(limits)
    if not inflater.eof:
        raise bad_request(f"the {encoding} body ends too early")
    if inflater.unused_data:
        raise bad_request(
            f"{len(inflater.unused_data)} bytes follow the end of the {encoding} body"
        )
    return inflated


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
    deflater = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP if encoding == "gzip" else _ZLIB)
    return [b"".join([*map(deflater.compress, body), deflater.flush()])]
