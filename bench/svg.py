"""Draws line charts as SVG, readable on light and dark backgrounds."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 760, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 190, 40, 50
_LINE_HEIGHT = 15
_STYLE = """\
text { font: 12px system-ui, sans-serif; fill: #333 }
.title { font-weight: 600; font-size: 14px }
.tick { text-anchor: middle } .left { text-anchor: end }
.grid { stroke: #8884; stroke-width: 1 }
path { fill: none; stroke-width: 2 } .dashed { stroke-dasharray: 6 4 }
path.c0 { stroke: #0969da } text.c0, circle.c0 { fill: #0969da }
path.c1 { stroke: #bc4c00 } text.c1, circle.c1 { fill: #bc4c00 }
path.c2 { stroke: #6e7781 } text.c2, circle.c2 { fill: #6e7781 }
@media (prefers-color-scheme: dark) {
  text { fill: #ddd }
  path.c0 { stroke: #58a6ff } text.c0, circle.c0 { fill: #58a6ff }
  path.c1 { stroke: #f0883e } text.c1, circle.c1 { fill: #f0883e }
  path.c2 { stroke: #9aa4ae } text.c2, circle.c2 { fill: #9aa4ae }
}"""
_COLORS = 3


@dataclass(frozen=True)
class Axis:
    """An axis. ``ticks`` are values with labels, from the smallest to the largest value shown.
    ``scale`` maps a value to a distance."""

    title: str
    ticks: Sequence[tuple[float, str]]
    scale: Callable[[float], float] = float

    def position(self, value: float) -> float:
        """Return the position of ``value``, from 0 at the first tick to 1 at the last tick."""
        first, last = self.scale(self.ticks[0][0]), self.scale(self.ticks[-1][0])
        return (self.scale(value) - first) / (last - first)


@dataclass(frozen=True)
class Line:
    """The points of a line from left to right. ``color`` is 0, 1 or 2. A dashed line is for a
    second kind of value."""

    name: str
    points: Sequence[tuple[float, float]]
    color: int = 0
    dashed: bool = False


def decades(values: Sequence[float], format_value: Callable[[float], str] = "{:g}".format) -> Axis:
    """Return a logarithmic axis without a title. Its ticks are the powers of ten around
    ``values``."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    powers = range(low, max(high, low + 1) + 1)
    return Axis("", [(10.0**power, format_value(10.0**power)) for power in powers], math.log10)


def from_zero(values: Sequence[float]) -> Axis:
    """Return a linear axis without a title. It ranges from 0 to a round number that is at least the
    largest value."""
    high = max(values)
    step = 10.0 ** math.floor(math.log10(high))
    step = next(each for each in (step / 5, step / 2, step, step * 2) if high / each <= 5)
    return Axis("", [(step * i, f"{step * i:g}") for i in range(math.ceil(high / step) + 1)])


def chart(title: str, x_axis: Axis, y_axis: Axis, lines: Sequence[Line]) -> str:
    """Return a complete SVG document."""

    def x(value: float) -> float:
        return round(_LEFT + x_axis.position(value) * (WIDTH - _LEFT - _RIGHT), 1)

    def y(value: float) -> float:
        return round(HEIGHT - _BOTTOM - y_axis.position(value) * (HEIGHT - _TOP - _BOTTOM), 1)

    right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM
    elements = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>\n{_STYLE}\n</style>",
        f'<text class="title" x="{_LEFT}" y="20">{escape(title)}</text>',
    ]
    for value, name in x_axis.ticks:
        elements.append(f'<path class="grid" d="M{x(value)} {_TOP}V{bottom}"/>')
        elements.append(_text(name, x(value), bottom + 18, "tick"))
    for value, name in y_axis.ticks:
        elements.append(f'<path class="grid" d="M{_LEFT} {y(value)}H{right}"/>')
        elements.append(_text(name, _LEFT - 8, y(value) + 4, "left"))
    elements.append(_text(x_axis.title, (_LEFT + right) / 2, HEIGHT - 10, "tick"))
    elements.append(_text(y_axis.title, _LEFT, _TOP - 6, ""))
    for line in lines:
        color = f"c{line.color % _COLORS}"
        track = "L".join(f"{x(a)} {y(b)}" for a, b in line.points)
        elements.append(f'<path class="{color}{" dashed" if line.dashed else ""}" d="M{track}"/>')
        elements += [
            f'<circle class="{color}" cx="{x(a)}" cy="{y(b)}" r="3"/>' for a, b in line.points
        ]
    ends = separate_labels([y(line.points[-1][1]) for line in lines])
    for line, end in zip(lines, ends, strict=True):
        elements.append(_text(line.name, right + 10, end + 4, f"c{line.color % _COLORS}"))
    return "\n".join([*elements, "</svg>", ""])


def separate_labels(positions: Sequence[float], min_distance: float = _LINE_HEIGHT) -> list[float]:
    """Return positions of labels at line ends, in the same order. Labels that would overlap are
    moved down."""
    moved = list(positions)
    below = -math.inf
    for index in sorted(range(len(positions)), key=positions.__getitem__):
        below = moved[index] = max(positions[index], below + min_distance)
    return moved


def _text(text: str, x: float, y: float, kind: str) -> str:
    return f'<text class="{kind}" x="{x}" y="{y}">{escape(text)}</text>'
