"""Metrics as a scrape reads them: Prometheus' text, or OpenMetrics for who asks for it, which alone
has exemplars."""

from __future__ import annotations

from typing import NamedTuple

from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector


class Exposition(NamedTuple):
    """What is answered, and its media type."""

    content_type: str
    body: bytes


def exposition(metrics: Collector, accept: str = "") -> Exposition:
    """``metrics`` in the form that the header ``accept`` asks for."""
    encode, content_type = choose_encoder(accept)
    return Exposition(content_type, encode(metrics))
