"""Matches names with globs."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable


def name_matcher(globs: Iterable[str]) -> Callable[[str], object] | None:
    """Return a predicate for complete names that match any of ``globs``, or None if there are no
    globs. Case matters."""
    patterns = list(map(fnmatch.translate, globs))
    return re.compile("|".join(patterns)).fullmatch if patterns else None
