"""What a request may hold that this codec takes and not every server does."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Final

import numpy as np

from infergate.codecs.base import Profile
from infergate.core.datatypes import NUMPY, Datatype
from infergate.core.tensor import Buffer, float32_from_bf16


class Form(enum.Enum):
    """A form of which some server that is sent it as it stands makes something else than we do."""

    NULL = "null for a member that may be left out"
    """Triton: 500, "Unable to parse 'id'"."""
    BINARY_ONLY = "elements in JSON that servers with the binary extension take only in that"
    """FP16 and BF16 (Triton)."""
    NON_FINITE = "words, or null, for floats that are no numbers"
    """Servers differ in which of them they take: Triton bare words, MLServer null."""
    BARE = "data that is no array"
    """Triton: 500."""
    BASE64 = "BYTES in base64, as the parameter ``content_type`` marks them"
    """Triton takes the text itself for the data."""
    TWO_PLACES = "``binary_data_output`` beside listed outputs"
    """Triton does not heed the former."""
    SHARED = "tensors in shared memory"
    """The gateway compares each place with its region first: a server may crash on one past its
    end."""
    CLASSES = "classes of an output instead of its values"
    """Servers without that extension do not heed it."""
    STREAM = "``stream``: all answers are wanted"
    """Servers do not heed it, or would answer with a stream."""


def is_taken(forms: frozenset[Form], profile: Profile) -> bool:
    """Whether a server of ``profile`` makes the same as we do of a message that holds ``forms``."""
    if not forms:
        return True
    if not _NEVER_TAKEN.isdisjoint(forms) or (Form.CLASSES in forms and not profile.classifies):
        return False
    if Form.BASE64 in forms and not profile.content_types:
        return False
    return not profile.binary or forms <= {Form.CLASSES}


_NEVER_TAKEN: Final = frozenset({Form.NULL, Form.STREAM, Form.SHARED, Form.NON_FINITE, Form.BARE})


def forms_of(datatype: Datatype, data: Buffer) -> Iterator[Form]:
    """The forms of elements that stood in JSON as numbers, words or null."""
    if datatype not in _FLOATS:
        return
    values = np.frombuffer(data, NUMPY[datatype])
    if datatype is Datatype.BF16:
        values = float32_from_bf16(values)
    if datatype.itemsize == 2:
        yield Form.BINARY_ONLY
    if not np.isfinite(values).all():
        yield Form.NON_FINITE


_FLOATS: Final = frozenset({Datatype.FP16, Datatype.BF16, Datatype.FP32, Datatype.FP64})
