"""Matches names with globs."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable


def name_matcher(globs: Iterable[str]) -> Callable[[str], object] | None:
    """Return a function that returns a true value for names that match one of ``globs``, with case
    and as a whole, or None without globs."""
    patterns = list(map(fnmatch.translate, globs))
    return re.compile("|".join(patterns)).fullmatch if patterns else None
