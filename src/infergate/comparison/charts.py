"""Charts as SVG elements, which take their colors from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Final

from infergate.core.records import record

_WIDTH: Final = 560
_HEIGHT: Final = 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 34, 10, 42
_PLOT_WIDTH: Final = _WIDTH - _LEFT - _RIGHT
_PLOT_HEIGHT: Final = _HEIGHT - _TOP - _BOTTOM
_MAX_LABELS: Final = 9


@record
class ChartAxis:
    """An axis with labelled ticks, from the smallest to the largest value shown. ``scale`` maps a
    value to a distance."""

    title: str
    ticks: Sequence[tuple[float, str]]
    scale: Callable[[float], float] = float

    def position(self, value: float) -> float:
        """Return the position of ``value``: 0 at the first tick, 1 at the last tick."""
        first, last = self.scale(self.ticks[0][0]), self.scale(self.ticks[-1][0])
        return (self.scale(value) - first) / (last - first)


@record
class ChartSeries:
    """Values of one kind: the points of a line, or one bar for each category. The style sheet has a
    color for each ``kind``."""

    kind: str
    name: str
    points: Sequence[tuple[float, float]]


def decades(title: str, values: Sequence[float], label: Callable[[float], str]) -> ChartAxis:
    """Return a logarithmic axis whose ticks are the powers of ten around positive ``values``."""
    low = math.floor(math.log10(min(values)))
    high = max(math.ceil(math.log10(max(values))), low + 1)
    ticks = [(10.0**power, label(10.0**power)) for power in range(low, high + 1)]
    return ChartAxis(title, ticks, math.log10)


def line_chart(
    title: str, x_axis: ChartAxis, y_axis: ChartAxis, lines: Sequence[ChartSeries]
) -> str:
    """Return a chart of ``lines``, each with at least one point."""
    elements = _axes(x_axis, y_axis)
    for line in lines:
        points = [(_x(x_axis.position(x)), _y(y_axis.position(y))) for x, y in line.points]
        track = "L".join(f"{x} {y}" for x, y in points)
        elements.append(f'<path class="line {line.kind}" d="M{track}"/>')
        elements += [f'<circle class="{line.kind}" cx="{x}" cy="{y}" r="2.5"/>' for x, y in points]
    return _figure(title, elements, lines)


def bar_chart(title: str, x_title: str, labels: Sequence[str], bars: Sequence[ChartSeries]) -> str:
    """Return a chart with a group of bars for each of ``labels``, on a logarithmic axis. Each
    point of ``bars`` is the index of a label and a positive height."""
    heights = [height for each in bars for _, height in each.points]
    low, high = 0.6 * min(heights), 1.2 * max(heights)  # so that the lowest bar is visible
    powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    powers_of_ten = [(10.0**power, short_number(10.0**power)) for power in powers]
    y_axis = ChartAxis("", [(low, ""), *powers_of_ten, (high, "")], math.log10)
    step = max(1, math.ceil(len(labels) / _MAX_LABELS))
    ticks = [(float(index), labels[index]) for index in range(0, len(labels), step)]
    elements = _axes(ChartAxis("", [(-0.5, ""), (len(labels) - 0.5, "")]), y_axis)
    width = _PLOT_WIDTH / len(labels)
    elements += [
        _text("tick", _x((index + 0.5) / len(labels)), _HEIGHT - _BOTTOM + 16, label)
        for index, label in ticks
    ]
    elements.append(_text("tick", _LEFT + _PLOT_WIDTH / 2, _HEIGHT - 6, x_title))
    bar_width = 0.85 * width / len(bars)
    for number, each in enumerate(bars):
        for index, height in each.points:
            x = round(_LEFT + index * width + 0.075 * width + number * bar_width, 1)
            y = _y(y_axis.position(height))
            elements.append(
                f'<rect class="{each.kind}" x="{x}" y="{y}" width="{bar_width:.1f}" '
                f'height="{_HEIGHT - _BOTTOM - y:.1f}"><title>{escape(labels[int(index)])}: '
                f"{height:,g}</title></rect>"
            )
    return _figure(title, elements, bars)


def _figure(title: str, elements: Sequence[str], series: Sequence[ChartSeries]) -> str:
    legend = "".join(f'<b><i class="{each.kind}"></i>{escape(each.name)}</b> ' for each in series)
    return "\n".join(
        [
            f"<figure><figcaption>{escape(title)}<span>{legend}</span></figcaption>",
            f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">',
            *elements,
            "</svg></figure>",
        ]
    )


def _axes(x_axis: ChartAxis, y_axis: ChartAxis) -> list[str]:
    elements = []
    for value, label in x_axis.ticks:
        x = _x(x_axis.position(value))
        elements.append(f'<path class="grid" d="M{x} {_TOP}v{_PLOT_HEIGHT}"/>')
        elements.append(_text("tick", x, _HEIGHT - _BOTTOM + 16, label))
    for value, label in y_axis.ticks:
        y = _y(y_axis.position(value))
        elements.append(f'<path class="grid" d="M{_LEFT} {y}h{_PLOT_WIDTH}"/>')
        elements.append(_text("left", _LEFT - 6, y + 4, label))
    elements.append(_text("tick", _LEFT + _PLOT_WIDTH / 2, _HEIGHT - 6, x_axis.title))
    return elements


def _x(position: float) -> float:
    return round(_LEFT + position * _PLOT_WIDTH, 1)


def _y(position: float) -> float:
    return round(_TOP + (1 - position) * _PLOT_HEIGHT, 1)


def _text(kind: str, x: float, y: float, text: str) -> str:
    return f'<text class="{kind}" x="{x}" y="{y}">{escape(text)}</text>' if text else ""


def short_number(value: float) -> str:
    """Return a power of ten as the text of a tick."""
    return f"{value:g}" if 1e-4 < value < 1e5 else f"1e{round(math.log10(value))}"
