import math
import re
from xml.etree import ElementTree as ET

import pytest
from bench.svg import HEIGHT, WIDTH, Axis, Line, chart, decades, from_zero, separate_labels


def test_a_chart_stays_within_its_frame() -> None:
    x_axis = Axis("x <size>", [(1, "1"), (1000, "1000")], math.log10)
    y_axis = Axis("µs", [(0, "0"), (10, "10")])
    lines = [Line("a & b", [(1, 0), (10, 5), (1000, 10)]), Line("c", [(1, 10), (1000, 9)], 1)]
    root = ET.fromstring(chart("A title", x_axis, y_axis, lines))
    points = [
        (float(each.get("cx", "")), float(each.get("cy", "")))
        for each in root.iter("{http://www.w3.org/2000/svg}circle")
    ]
    assert len(points) == 5
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points)
    left, middle, right = (x for x, _ in points[:3])
    assert middle - left == pytest.approx((right - left) / 3, abs=0.2)  # log10(10) of log10(1000)
    assert points[0][1] > points[1][1] > points[2][1]  # greater values are higher in the picture
    labels = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"A title", "x <size>", "µs", "a & b", "c"} <= set(labels)


def test_light_and_dark_backgrounds_have_colors() -> None:
    document = chart("t", Axis("", [(0, ""), (1, "")]), Axis("", [(0, ""), (1, "")]), [])
    assert "prefers-color-scheme: dark" in document
    assert not re.search(r"<rect", document)  # the page's background is visible


def test_decades_contain_all_values() -> None:
    assert [tick for tick, _ in decades([3, 250]).ticks] == [1, 10, 100, 1000]
    assert [tick for tick, _ in decades([10]).ticks] == [10, 100]


@pytest.mark.parametrize("highest", [0.3, 1, 1.9, 4.2, 9.99, 73, 1000])
def test_a_linear_axis_contains_all_values_with_few_ticks(highest: float) -> None:
    ticks = [tick for tick, _ in from_zero([0.1, highest]).ticks]
    assert ticks[0] == 0
    assert highest <= ticks[-1] <= 2 * highest
    assert 3 <= len(ticks) <= 6


def test_labels_are_separated_in_order() -> None:
    assert separate_labels([50, 10, 12], min_distance=15) == [50, 10, 25]
    assert separate_labels([10, 10, 10], min_distance=15) == [10, 25, 40]
