"""What a request may hold that this codec takes and not every server does."""

from __future__ import annotations

import enum

import numpy as np

from infergate.codecs.base import Profile
from infergate.core.datatypes import NUMPY, Datatype
from infergate.core.tensor import Buffer


class Form(enum.Enum):
    """A form of which some server that is sent it as it stands makes something else than we do."""

    NULL = "null for a member that may be left out"
    """Triton: 500, "Unable to parse 'id'"."""
    BINARY_ONLY = "elements in JSON that servers with the binary extension take only in that"
    """FP16, BF16, and words for floats that are no numbers (Triton)."""
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
    if (
        Form.NULL in forms
        or Form.STREAM in forms
        or Form.SHARED in forms
        or (Form.CLASSES in forms and not profile.classifies)
    ):
        return False
    return not profile.binary or forms <= {Form.CLASSES}


def is_binary_only(datatype: Datatype, data: Buffer) -> bool:
    """Whether elements that stood in JSON have the form BINARY_ONLY."""
    match datatype:
        case Datatype.FP16 | Datatype.BF16:
            return True
        case Datatype.FP32 | Datatype.FP64:
            return not np.isfinite(np.frombuffer(data, NUMPY[datatype])).all()
        case _:
            return False
