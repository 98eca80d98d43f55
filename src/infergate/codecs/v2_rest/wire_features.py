"""Features of request messages that this codec accepts but some servers reject or misinterpret."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Final

import numpy as np

from infergate.codecs.base import Profile
from infergate.core.datatypes import NUMPY_DTYPES, Datatype
from infergate.core.tensor import Buffer, float32_from_bf16


class WireFeature(enum.Enum):
    """A feature of a request. Some servers reject or misinterpret a request with this feature if it
    passes through."""

    NULL = "null for an optional member"
    """Triton returns 500 with "Unable to parse 'id'"."""
    BINARY_ONLY = "JSON data of a datatype that Triton accepts only as binary data"
    """The datatypes are FP16 and BF16."""
    NON_FINITE = "unquoted words, strings or null for NaN and infinity"
    """Triton accepts unquoted words. MLServer accepts null for NaN, and strings for infinity."""
    SCALAR_DATA = "data that is not an array"
    """Triton returns 500."""
    BASE64 = "BYTES in base64, marked by the parameter ``content_type``"
    """Triton uses the base64 text itself as data."""
    BINARY_OUTPUT_CONFLICT = "``binary_data_output`` in addition to listed outputs"
    """Triton ignores ``binary_data_output``."""
    SHARED_MEMORY = "tensors in shared memory"
    """The gateway checks the regions, because an invalid region may crash a server."""
    CLASSIFICATION = "an output as classes instead of values"
    """Servers without the classification extension ignore the parameter."""
    STREAM = "``stream``: the client wants all responses"
    """Servers ignore the parameter, or return a stream."""


def is_supported(features: frozenset[WireFeature], profile: Profile) -> bool:
    """Return whether a server with ``profile`` interprets ``features`` as this codec does."""
    if not features:
        return True
    if not _NEVER_SUPPORTED.isdisjoint(features) or (
        WireFeature.CLASSIFICATION in features and not profile.supports_classification
    ):
        return False
    if WireFeature.BASE64 in features and not profile.supports_content_type:
        return False
    return not profile.supports_binary or features <= {WireFeature.CLASSIFICATION}


_NEVER_SUPPORTED: Final = frozenset(
    {
        WireFeature.NULL,
        WireFeature.STREAM,
        WireFeature.SHARED_MEMORY,
        WireFeature.NON_FINITE,
        WireFeature.SCALAR_DATA,
    }
)


def features_of(datatype: Datatype, data: Buffer) -> Iterator[WireFeature]:
    """Yield the features of float data that was read from JSON."""
    if datatype not in _FLOATS:
        return
    values = np.frombuffer(data, NUMPY_DTYPES[datatype])
    if datatype is Datatype.BF16:
        values = float32_from_bf16(values)
    if datatype.itemsize == 2:
        yield WireFeature.BINARY_ONLY
    if not np.isfinite(values).all():
        yield WireFeature.NON_FINITE


_FLOATS: Final = frozenset({Datatype.FP16, Datatype.BF16, Datatype.FP32, Datatype.FP64})
