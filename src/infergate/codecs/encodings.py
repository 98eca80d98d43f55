"""Decodes bodies with the content encodings gzip and deflate, up to a limit, and encodes bodies."""

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
    CorruptDataError,
    InflatedTooLargeError,
    inflate_pieces,
    max_inflated_bytes,
    zlib_window_bits,
)
from infergate.core.limits import KIB, Limits
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpRequest, join_parts, total_size

CONTENT_ENCODING: Final = "content-encoding"
_MAX_SMALL_BYTES: Final = 64 * KIB
_SMALL_LIMITS: Final = Limits(body=256 * KIB)
"""The limits for a short body. Inflating 256 KiB takes half a millisecond."""
_COMPRESSION_LEVEL: Final = 1
"""Higher levels hardly reduce the size of tensors and are many times slower."""


def decode_body(headers: Mapping[str, str], body: Sequence[Buffer], limits: Limits) -> Buffer:
    """Return the decoded body. Raises UNSUPPORTED_ENCODING, TOO_LARGE and BAD_REQUEST."""
    data = join_parts(body)
    if CONTENT_ENCODING not in headers or is_unencoded(headers):
        if len(data) > limits.body:
            raise _too_large(limits)
        return data
    encoding = headers[CONTENT_ENCODING].strip().lower()
    window = zlib_window_bits(encoding, data)
    if window is None:
        raise GatewayError(
            Kind.UNSUPPORTED_ENCODING,
            f"content-encoding '{encoding[:40]}' is not supported; expected gzip, deflate or "
            "identity",
        )
    max_bytes = max_inflated_bytes(data, window)  # the memory accounting charges the same size
    try:
        return b"".join(inflate_pieces(data, window, min(max_bytes, limits.body), MAX_MEMBERS))
    except CorruptDataError as error:
        raise bad_request(f"the {encoding} body {error}") from None
    except InflatedTooLargeError:
        if max_bytes < limits.body:
            raise bad_request(f"the {encoding} body exceeds its declared length") from None
        raise _too_large(limits) from None


def inflate_small(wire: HttpRequest) -> None:
    """Inflate the encoded body of ``wire`` in place if it is short and valid. Never raises."""
    if total_size(wire.body) > _MAX_SMALL_BYTES:
        return
    with contextlib.suppress(GatewayError):  # too long, invalid or another encoding
        wire.body = (decode_body(wire.headers, wire.body, _SMALL_LIMITS),)
        wire.headers = without_encoding(wire.headers)


def without_encoding(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return ``headers`` without the content encoding, for a decoded body."""
    if CONTENT_ENCODING not in headers:
        return headers
    return {name: value for name, value in headers.items() if name != CONTENT_ENCODING}


def max_decoded_bytes(headers: Mapping[str, str], body: Sequence[Buffer]) -> int:
    """Return the maximum length of the decoded ``body``. The length field of a gzip body may reduce
    this maximum."""
    if is_unencoded(headers):
        return total_size(body)
    data = join_parts(body)
    return max_inflated_bytes(
        data, zlib_window_bits(headers[CONTENT_ENCODING].strip().lower(), data)
    )


def is_unencoded(headers: Mapping[str, str]) -> bool:
    """Return whether the body has no content encoding."""
    encoding = headers.get(CONTENT_ENCODING)
    return encoding is None or encoding.strip().lower() in {"identity", ""}


def check_unencoded(headers: Mapping[str, str], protocol: str) -> None:
    """Raise UNSUPPORTED_ENCODING if the body of a request of ``protocol`` is encoded."""
    if not is_unencoded(headers):
        encoding = headers[CONTENT_ENCODING].strip().lower()
        raise GatewayError(
            Kind.UNSUPPORTED_ENCODING,
            f"content-encoding '{encoding[:40]}' is not supported by {protocol}",
        )


def _too_large(limits: Limits) -> GatewayError:
    return GatewayError(
        Kind.TOO_LARGE, f"the body is over the limit of {limits.body} bytes", limit="body"
    )


def preferred_encoding(header: str) -> str:
    """Return the preferred encoding in an ``Accept-Encoding`` header: gzip, deflate, or ``""``."""
    if not header:
        return ""
    weights: dict[str, float] = {}
    for item in header.lower().split(","):
        name, _, parameters = item.partition(";")
        weights[name.strip()] = _quality(parameters)
    wildcard = weights.get("*", 0.0)
    gzip = weights.get("gzip", weights.get("x-gzip", wildcard))
    deflate = weights.get("deflate", wildcard)
    preferred = max(gzip, deflate)
    if preferred <= 0 or preferred < weights.get("identity", 0.0):
        return ""
    return "gzip" if gzip >= deflate else "deflate"


def _quality(parameters: str) -> float:
    """Return an item's ``q`` value. A missing value counts as 1, and an invalid value counts as
    0."""
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                weight = float(value)
            except ValueError:
                return 0.0
            return weight if 0 <= weight <= 1 else 0.0
    return 1.0


def encode_body(body: Sequence[Buffer], encoding: str) -> list[Buffer]:
    """Compress ``body`` with gzip or deflate."""
    deflater = zlib.compressobj(
        _COMPRESSION_LEVEL, zlib.DEFLATED, GZIP if encoding == "gzip" else ZLIB
    )
    return [b"".join([*map(deflater.compress, body), deflater.flush()])]
