"""The result of a replay, as ``infergate replay --report FILE.json`` writes it."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter

from infergate.comparison.summary import Summary, SummaryFormatError, validated
from infergate.comparison.verdict import Verdict
from infergate.core.name_rules import escape_unsafe

_FORMAT: Final = 1
_KIND: Final = "replay"
MAX_DAMAGED: Final = 100
"""Maximum number of damaged parts that a result lists. All damaged parts are counted."""
MAX_REASONS: Final = 20
"""Maximum number of different reasons that a result lists."""
_MAX_TEXT: Final = 2048
_Text = Annotated[str, Field(max_length=_MAX_TEXT)]


@dataclass(slots=True)
class ReplayCounts:
    """The numbers of inferences by result and of damaged parts, and durations in seconds."""

    sent: int = 0
    compared: int = 0
    equal: int = 0
    """Compared inferences whose outcomes are equal under the rules."""
    cancelled: int = 0
    """Inferences that the client cancelled during the recording, so that there is no outcome to
    compare."""
    unanswered: int = 0
    """Inferences without a recorded response, for example from an input file of perf_analyzer."""
    redacted: int = 0
    """Inferences that were not compared, because inputs may have been redacted in the recording."""
    not_sent: int = 0
    damaged: int = 0
    """Damaged parts of the files."""
    seconds: float = 0.0
    max_delay: float = 0.0
    """The maximum time in seconds by which an inference was sent late."""


@dataclass(slots=True)
class ReplayResult:
    """The counts, the comparisons by route, model and output, the reasons why inferences were not
    sent, and the damaged parts of the files."""

    counts: ReplayCounts = field(default_factory=ReplayCounts)
    summary: Summary = field(default_factory=Summary)
    reasons: Counter[str] = field(default_factory=Counter)
    damaged: list[str] = field(default_factory=list)
    is_interrupted: bool = False
    """Whether the operator ended the replay before the end of the files."""

    @property
    def is_equal(self) -> bool:
        """Whether every inference was sent, and no compared response differs."""
        return self.summary.verdict() is not Verdict.DIFFERENT and not self.counts.not_sent

    def add_damaged(self, text: str) -> None:
        """Count a damaged part, and list it unless the list is full."""
        self.counts.damaged += 1
        if len(self.damaged) < MAX_DAMAGED:
            self.damaged.append(_printable(text))

    def add_not_sent(self, reason: str) -> None:
        """Count an inference that cannot be sent."""
        self.counts.not_sent += 1
        reason = _printable(reason)
        if reason in self.reasons or len(self.reasons) < MAX_REASONS:
            self.reasons[reason] += 1

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "kind": _KIND,
            "format": _FORMAT,
            "equal": self.is_equal,
            "interrupted": self.is_interrupted,
            "counts": asdict(self.counts),
            "reasons": dict(self.reasons),
            "damaged": self.damaged,
            "summary": self.summary.as_json(),
        }

    @classmethod
    def from_json(cls, value: Any) -> ReplayResult:
        """Return the result that ``value``, a document from ``as_json``, contains. Raises
        SummaryFormatError."""
        identity = _KIND, _FORMAT
        if not isinstance(value, dict) or (value.get("kind"), value.get("format")) != identity:
            raise SummaryFormatError(
                f"the document is not a replay result of format {_FORMAT}, the format that this "
                "version reads"
            )
        fields = validated(_fields, value)
        summary = Summary.from_json(value.get("summary"))
        is_interrupted = bool(value.get("interrupted"))
        return cls(fields.counts, summary, Counter(fields.reasons), fields.damaged, is_interrupted)


@dataclass(slots=True)
class _Fields:
    """The fields of a document that ``from_json`` validates together."""

    counts: ReplayCounts
    reasons: Annotated[dict[_Text, Annotated[int, Field(ge=0)]], Field(max_length=MAX_REASONS)]
    damaged: Annotated[list[_Text], Field(max_length=MAX_DAMAGED)]


def _printable(text: str) -> str:
    """Return ``text`` on one line, with control characters escaped, and truncated."""
    return escape_unsafe(text.replace("\n", "\\n"))[:_MAX_TEXT]


_fields: Final = TypeAdapter(_Fields)
