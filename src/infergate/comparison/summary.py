"""The summary of many comparisons, by route, model and output.

Summaries of several processes can be merged; the result does not depend on the order. Clients may
choose the names of models (on routes with patterns), and servers choose the names of outputs. A
summary is therefore limited to MAX_MODELS models per route and MAX_OUTPUTS outputs per model; other
models and outputs are aggregated under OTHER. Comparisons whose responses do not prove that the
model exists are also aggregated under OTHER, because invented names must not displace names of
models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from infergate.comparison.json_types import Name
from infergate.comparison.model_summary import ModelSummary, bounded_entry
from infergate.comparison.outcomes import OTHER, Comparison
from infergate.comparison.verdict import Judge, Verdict, judge, worst_verdict
from infergate.core.errors import Kind

MAX_MODELS: Final = 32
_MAX_ROUTES: Final = 4096
_FORMAT: Final = 1
T = TypeVar("T")


class SummaryFormatError(ValueError):
    """A document is not a summary or replay result that this version reads."""


@dataclass(slots=True)
class Summary:
    """Comparisons by the name of the route in the configuration and the client's model name."""

    routes: Annotated[
        dict[Name, Annotated[dict[Name, ModelSummary], Field(max_length=MAX_MODELS + 1)]],
        Field(max_length=_MAX_ROUTES),
    ] = field(default_factory=dict)

    def add(  # noqa: PLR0913 - two are keyword-only
        self,
        route: str,
        model: str,
        comparison: Comparison,
        noise: Comparison | None = None,
        *,
        time: float = 0.0,
        request_id: str = "",
    ) -> None:
        """Add a comparison.

        ``noise`` is a comparison of the expected server with itself. ``time`` is in seconds since
        the Unix epoch, or 0 to omit the comparison from the timelines. ``request_id`` identifies
        the request in the list of worst cases."""
        summary = self._model(route, _entry_name(model, comparison))
        if noise is not None:
            summary.add_noise(noise)
        summary.add(comparison, time, request_id[:_MAX_ID])

    def classify(
        self, route: str, model: str, comparison: Comparison, judge: Judge = judge
    ) -> Verdict:
        """Return the verdict on ``comparison``, which must have been added. ``judge`` weighs the
        differences of all comparisons."""
        return self._model(route, _entry_name(model, comparison)).classify(comparison, judge)

    def merge(self, other: Summary) -> None:
        """Add the comparisons of ``other``, which is not changed."""
        for route, models in other.routes.items():
            for name, summary in models.items():
                self._model(route, name).merge(summary)

    def by_model(self) -> Iterator[Summary]:
        """Yield a summary for each model. The summaries share their contents with this summary."""
        for route, models in list(self.routes.items()):
            for name, summary in list(models.items()):
                yield Summary({route: {name: summary}})

    def verdict(self) -> Verdict:
        """Return the worst verdict of all models."""
        models = [each for models in self.routes.values() for each in models.values()]
        return worst_verdict(*(each.verdict() for each in models))

    def as_json(self) -> dict[str, Any]:
        """Return the summary as JSON values; infinity is null."""
        encoded: dict[str, Any] = _adapter.dump_python(self, mode="json")
        return {"format": _FORMAT, **encoded}

    @classmethod
    def from_json(cls, value: Any) -> Summary:
        """Read a summary that ``as_json()`` wrote. Raises SummaryFormatError."""
        if not isinstance(value, dict) or value.get("format") != _FORMAT:
            raise SummaryFormatError(
                f"the document is not a summary of format {_FORMAT}, which this version reads"
            )
        return validated(_adapter, value)

    def _model(self, route: str, name: str) -> ModelSummary:
        models = self.routes.setdefault(route, {})
        return bounded_entry(models, name, MAX_MODELS, ModelSummary)


def validated(adapter: TypeAdapter[T], value: Any) -> T:
    """Return ``value``, a JSON document, as an object. Raises SummaryFormatError."""
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        position = ".".join(map(str, first["loc"])) or "the document"
        raise SummaryFormatError(f"{position}: {first['msg']}") from None


def _entry_name(model: str, comparison: Comparison) -> str:
    """Return the name of the entry of ``comparison``. The name depends only on the arguments, so
    that merged summaries do not depend on the order of comparisons."""
    kinds = {comparison.expected_kind, comparison.actual_kind}
    return OTHER if kinds <= _MODEL_MAY_NOT_EXIST else model


_MODEL_MAY_NOT_EXIST: Final = frozenset({Kind.NOT_FOUND.value, Kind.BAD_REQUEST.value})
"""The kinds of errors with which servers reject a request for an unknown model."""
_adapter: Final = TypeAdapter(Summary)
_MAX_ID: Final = 256
