"""Percent-decoding of names in HTTP paths."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes

from infergate.core.errors import bad_request

_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")


def decode_segment(segment: str, label: str) -> str:
    """Return the name in a percent-encoded path segment. ``label`` describes the name in errors.
    Raises BAD_REQUEST for an invalid escape, for text that is not UTF-8, and for "." and ".."."""
    if "%" not in segment and segment.isascii():
        text = segment
    elif _BAD_ESCAPE.search(segment):
        raise bad_request(f"the {label} in the path has an invalid percent-escape")
    else:
        try:
            text = unquote_to_bytes(segment).decode()
        except UnicodeError:
            raise bad_request(f"the {label} in the path is not UTF-8") from None
    if text in (".", ".."):  # HTTP intermediaries would resolve such a segment
        raise bad_request(f"the {label} may not be '{text}'")
    return text
