"""Writes metrics in Prometheus' text format, or in OpenMetrics, which has exemplars.

prometheus_client writes the headers of all families, and the samples of its own family types. The
library takes several microseconds per line, so this module writes the rows of each
``MetricFamily``, in chunks and on demand."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Final, NamedTuple

from prometheus_client.core import Exemplar, Metric
from prometheus_client.exposition import choose_encoder, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from infergate.observe.family import HistogramValue, Labels, MetricFamily, Row

_CHUNK_CHARACTERS: Final = 1 << 16
"""Minimum characters per chunk. Writing a chunk takes less than half a millisecond."""
_OPENMETRICS: Final = "application/openmetrics-text"
_VERSION: Final = re.compile(r"version=[^;]*")
_SUPPORTED_VERSION: Final = "version=1.0.0"
_END: Final = b"# EOF\n"
_EXPONENT_FROM: Final = 1_000_000
"""The smallest number that Go's number format writes with an exponent."""
_LE: Final = "le"
_format_float: Final[Callable[[float], str]] = floatToGoString

Encode = Callable[[Collector], bytes]


class Exposition(NamedTuple):
    """The response to a scrape: its media type, and the body as a lazy iterator of chunks."""

    content_type: str
    chunks: Iterator[bytes]


def exposition(metrics: Collector, accept: str = "") -> Exposition:
    """Return ``metrics`` in the format that the Accept header ``accept`` requests."""
    try:
        _, content_type = choose_encoder(accept)
    except TypeError:  # raised for an invalid version in the header
        _, content_type = choose_encoder("")
    for other in ("dots", "values"):  # the names of all metrics are valid in the classic charset
        content_type = content_type.replace(f"escaping={other}", "escaping=underscores")
    if content_type.startswith(_OPENMETRICS):
        content_type = _VERSION.sub(_SUPPORTED_VERSION, content_type)
        return Exposition(content_type, _chunks(metrics, openmetrics, _END.decode()))
    return Exposition(content_type, _chunks(metrics, generate_latest))


def _chunks(metrics: Collector, encode: Encode, end: str = "") -> Iterator[bytes]:
    """Yield chunks of at least ``_CHUNK_CHARACTERS``, except the last."""
    texts: list[str] = []
    missing = _CHUNK_CHARACTERS
    for text in _family_texts(metrics, encode):
        texts.append(text)
        missing -= len(text)
        if missing <= 0:
            yield "".join(texts).encode()
            texts, missing = [], _CHUNK_CHARACTERS
    yield "".join((*texts, end)).encode()


def _family_texts(metrics: Collector, encode: Encode) -> Iterator[str]:
    for family in metrics.collect():
        if not isinstance(family, MetricFamily):
            yield _encode_family(family, encode)
            continue
        head = Metric(family.name, family.documentation, family.type, family.unit)
        yield _encode_family(head, encode)
        if family.type == "histogram":
            yield from map(
                _histogram_formatter(family, exemplars=encode is openmetrics), family.rows
            )
        else:
            yield from map(_row_formatter(family), family.rows)


class _SingleFamily(NamedTuple):
    family: Metric

    def collect(self) -> Iterable[Metric]:
        return (self.family,)


def _encode_family(family: Metric, encode: Encode) -> str:
    return encode(_SingleFamily(family)).removesuffix(_END).decode()


# ---- rows


def _row_formatter(family: MetricFamily) -> Callable[[Row], str]:
    name = family.name + ("_total" if family.type == "counter" else "")
    order = _sorted_indices(family.labels)
    template = f"{name}{_label_template([family.labels[i] for i in order])} %s\n"

    def text(row: Row) -> str:
        labels, value = row
        assert not isinstance(value, HistogramValue)
        return template % (*[_escape(labels[i]) for i in order], _number(value))

    return text


def _histogram_formatter(family: MetricFamily, *, exemplars: bool) -> Callable[[Row], str]:
    name, names = family.name, family.labels
    bounds = list(map(_format_float, (*family.bounds, math.inf)))
    order = _sorted_indices(names)
    before = [index for index in order if names[index] < _LE]
    after = order[len(before) :]
    head_template = "".join(
        (f"{name}_bucket{{", *(f'{names[i]}="%s",' for i in before), f'{_LE}="')
    )
    tail_template = "".join(('"', *(f',{names[i]}="%s"' for i in after), "} "))
    all_template = _label_template([names[index] for index in order])

    def text(row: Row) -> str:
        labels, value = row
        assert isinstance(value, HistogramValue)
        first = [_escape(labels[index]) for index in before]
        last = [_escape(labels[index]) for index in after]
        head, tail = head_template % (*first,), tail_template % (*last,)
        all_labels = all_template % (*first, *last)
        counts = list(map(_number, accumulate(value.counts)))
        count = counts[-1]
        if exemplars:
            for index, item in value.exemplars.items():
                counts[index] += _exemplar(item)
        buckets = [
            f"{head}{bound}{tail}{item}\n" for bound, item in zip(bounds, counts, strict=True)
        ]
        total = f"{name}_count{all_labels} {count}\n{name}_sum{all_labels} {_number(value.sum)}\n"
        return "".join((*buckets, total))

    return text


def _sorted_indices(labels: Labels) -> list[int]:
    """Return the indices of ``labels`` in the order of a line, which is alphabetical."""
    return sorted(range(len(labels)), key=labels.__getitem__)


def _label_template(names: Iterable[str]) -> str:
    pairs = ",".join(f'{name}="%s"' for name in names)
    return f"{{{pairs}}}" if pairs else ""


def _escape(label: str) -> str:
    return label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if type(value) is int and 0 <= value < _EXPONENT_FROM:
        return f"{value}.0"
    return _format_float(value)


def _exemplar(exemplar: Exemplar) -> str:
    labels = ",".join(
        f'{name}="{_escape(exemplar.labels[name])}"' for name in sorted(exemplar.labels)
    )
    timestamp = "" if exemplar.timestamp is None else f" {exemplar.timestamp}"
    return f" # {{{labels}}} {_format_float(exemplar.value)}{timestamp}"
