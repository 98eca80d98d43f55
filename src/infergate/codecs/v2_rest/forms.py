"""What a request may hold that this codec takes and not every server does."""

from __future__ import annotations

import enum

import numpy as np

from infergate.core.datatypes import NUMPY, Datatype
from infergate.core.tensor import Buffer


class Form(enum.Enum):
    """A form of which a server that is sent it as it stands makes something else than we do."""

    NULL = "null for a member that may be left out"
    """Triton: 500, "Unable to parse 'id'"."""
    BINARY_ONLY = "elements in JSON that servers with the binary extension take only in that"
    """FP16, BF16, and words for floats that are no numbers (Triton)."""
    TWO_PLACES = "``binary_data_output`` beside listed outputs"
    """Triton does not heed the former."""


def is_binary_only(datatype: Datatype, data: Buffer) -> bool:
    """Whether elements that stood in JSON have the form BINARY_ONLY."""
    match datatype:
        case Datatype.FP16 | Datatype.BF16:
            return True
        case Datatype.FP32 | Datatype.FP64:
            return not np.isfinite(np.frombuffer(data, NUMPY[datatype])).all()
        case _:
            return False
