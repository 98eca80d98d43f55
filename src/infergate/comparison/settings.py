"""The settings of a mirror's comparison: rules, noise baseline, and storage of mismatches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from infergate.comparison.rules import ComparisonRules


@dataclass(frozen=True, slots=True)
class Baseline:
    """The noise baseline of a comparison: ``percent`` of the compared inferences are also sent to
    ``backend``. If ``backend`` is empty, they are sent once more to the backend that served
    them."""

    backend: str = ""
    percent: float = 1.0


@dataclass(frozen=True, slots=True)
class MismatchStorage:
    """A folder that holds the inferences whose responses differ. It has at most ``max_count`` files
    and ``max_bytes`` in total, and keeps each file for at most ``max_age`` seconds. Only the
    request headers in ``headers`` are stored. Tensors in ``removed`` are not stored, and the data
    of tensors in ``zeroed`` is replaced with zeros. ``headers``, ``removed`` and ``zeroed`` contain
    names or globs."""

    path: Path
    max_count: int
    max_bytes: int
    max_age: float
    headers: Sequence[str] = ()
    removed: Sequence[str] = ()
    zeroed: Sequence[str] = ()

    @property
    def redacted(self) -> tuple[str, ...]:
        """The globs of all redacted tensors."""
        return (*self.removed, *self.zeroed)


@dataclass(frozen=True, slots=True)
class MirrorComparison:
    """The settings for comparing the responses of a mirror with the served responses."""

    rules: ComparisonRules = field(default_factory=ComparisonRules)
    baseline: Baseline | None = None
    storage: MismatchStorage | None = None
