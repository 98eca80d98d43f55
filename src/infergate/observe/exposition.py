"""Metrics as a scrape reads them: Prometheus' text, or OpenMetrics for who asks for it, which alone
has exemplars.

*Strategy.* The library writes the heads of families, and those that are its own. For a line it
takes several microseconds; rows are written here, in pieces, for which they are made as they are
wanted.
"""

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

from infergate.observe.family import Family, Histogram, Labels, Row

_PIECE: Final = 1 << 16
"""Characters: less than half a millisecond's work."""
_OPENMETRICS: Final = "application/openmetrics-text"
_VERSION: Final = re.compile(r"version=[^;]*")
_OUR_VERSION: Final = "version=1.0.0"
_END: Final = b"# EOF\n"
_PLAIN: Final = 1_000_000
"""From there on Go writes numbers with an exponent."""
_LE: Final = "le"
_go: Final[Callable[[float], str]] = floatToGoString

Encode = Callable[[Collector], bytes]


class Exposition(NamedTuple):
    """What is answered, made as it is pulled, and its media type."""

    content_type: str
    pieces: Iterator[bytes]


def exposition(metrics: Collector, accept: str = "") -> Exposition:
    """``metrics`` in the form that the header ``accept`` asks for."""
    try:
        _, content_type = choose_encoder(accept)
    except TypeError:  # what stands for a version in it is none
        _, content_type = choose_encoder("")
    for other in ("dots", "values"):  # our names are those of old, and need none of these
        content_type = content_type.replace(f"escaping={other}", "escaping=underscores")
    if content_type.startswith(_OPENMETRICS):
        content_type = _VERSION.sub(_OUR_VERSION, content_type)  # it names what was asked for
        return Exposition(content_type, _pieces(metrics, openmetrics, _END.decode()))
    return Exposition(content_type, _pieces(metrics, generate_latest))


def _pieces(metrics: Collector, encode: Encode, end: str = "") -> Iterator[bytes]:
    """Of ``_PIECE`` characters or a little more, but for the last."""
    gathered: list[str] = []
    room = _PIECE
    for text in _texts(metrics, encode):
        gathered.append(text)
        room -= len(text)
        if room <= 0:
            yield "".join(gathered).encode()
            gathered, room = [], _PIECE
    yield "".join((*gathered, end)).encode()


def _texts(metrics: Collector, encode: Encode) -> Iterator[str]:
    """The text of each row, and of a family that has none."""
    for family in metrics.collect():
        if not isinstance(family, Family):
            yield _written(family, encode)
            continue
        head = Metric(family.name, family.documentation, family.type, family.unit)
        yield _written(head, encode)
        if family.type == "histogram":
            yield from map(_lines(family, exemplars=encode is openmetrics), family.rows)
        else:
            yield from map(_line(family), family.rows)


class _Alone(NamedTuple):
    """The collector of one family."""

    family: Metric

    def collect(self) -> Iterable[Metric]:
        return (self.family,)


def _written(family: Metric, encode: Encode) -> str:
    return encode(_Alone(family)).removesuffix(_END).decode()


# ---- rows


def _line(family: Family) -> Callable[[Row], str]:
    """What writes a row of a counter or a gauge."""
    name = family.name + ("_total" if family.type == "counter" else "")
    order = _in_order(family.labels)
    form = f"{name}{_braced([family.labels[place] for place in order])} %s\n"

    def text(row: Row) -> str:
        labels, value = row
        assert not isinstance(value, Histogram)
        return form % (*[_escaped(labels[place]) for place in order], _number(value))

    return text


def _lines(family: Family, *, exemplars: bool) -> Callable[[Row], str]:
    """What writes a row of a histogram."""
    name, names = family.name, family.labels
    bounds = list(map(_go, (*family.bounds, math.inf)))
    order = _in_order(names)
    before = [place for place in order if names[place] < _LE]
    after = order[len(before) :]
    head_form = "".join((f"{name}_bucket{{", *(f'{names[p]}="%s",' for p in before), f'{_LE}="'))
    tail_form = "".join(('"', *(f',{names[p]}="%s"' for p in after), "} "))
    all_form = _braced([names[place] for place in order])

    def text(row: Row) -> str:
        labels, told = row
        assert isinstance(told, Histogram)
        first = [_escaped(labels[place]) for place in before]
        last = [_escaped(labels[place]) for place in after]
        head, tail = head_form % (*first,), tail_form % (*last,)
        every = all_form % (*first, *last)
        counts = list(map(_number, accumulate(told.counts)))
        count = counts[-1]
        if exemplars:
            for place, each in told.exemplars.items():
                counts[place] += _exemplar(each)
        buckets = [
            f"{head}{bound}{tail}{each}\n" for bound, each in zip(bounds, counts, strict=True)
        ]
        total = f"{name}_count{every} {count}\n{name}_sum{every} {_number(told.sum)}\n"
        return "".join((*buckets, total))

    return text


def _in_order(labels: Labels) -> list[int]:
    """The places of ``labels`` by their names, as lines have them."""
    return sorted(range(len(labels)), key=labels.__getitem__)


def _braced(names: Iterable[str]) -> str:
    told = ",".join(f'{name}="%s"' for name in names)
    return f"{{{told}}}" if told else ""


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if type(value) is int and 0 <= value < _PLAIN:
        return f"{value}.0"
    return _go(value)


def _exemplar(told: Exemplar) -> str:
    labels = ",".join(f'{name}="{_escaped(told.labels[name])}"' for name in sorted(told.labels))
    when = "" if told.timestamp is None else f" {told.timestamp}"
    return f" # {{{labels}}} {_go(told.value)}{when}"
