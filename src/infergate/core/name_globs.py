"""Matches names with globs."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable


def name_matcher(globs: Iterable[str]) -> Callable[[str], object] | None:
    """Return a predicate that tests whether a complete name matches any of ``globs``, or None if
    there are no globs. Matching is case-sensitive."""
    patterns = list(map(fnmatch.translate, globs))
    return re.compile("|".join(patterns)).fullmatch if patterns else None
