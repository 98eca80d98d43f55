"""What several processes count, as one: their metrics added up.

*Rule 1.* Counters and histograms are added, and so are gauges: they tell of what is under way in
each process. What is no amount is in one of two tables.
*Rule 2.* What a process that is no more has counted still counts: a counter that falls would look
like one that began anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from infergate.observe.names import Names

_ALIKE: Final = frozenset(
    {
        "infergate_build",
        "infergate_config",
        "infergate_config_last_reload_successful",
        "infergate_config_loaded_timestamp_seconds",
    }
)
"""Families that all processes tell alike, or that one speaks for all of: the first that was added
is taken."""
_MOST: Final = frozenset({"infergate_config_generations", "infergate_draining"})
"""Gauges of which the largest is told."""
_LEAST: Final = frozenset({"infergate_certificate_expiry_seconds", "process_start_time_seconds"})
"""Those of which the smallest is: who alerts wants to know of the first."""
_AMOUNTS: Final = frozenset({"counter", "histogram", "summary"})
"""Types of families that only grow."""
_CREATED: Final = "_created"

_Key = tuple[str, tuple[tuple[str, str], ...]]


class Summed(Collector):
    """The families of all that were added."""

    def __init__(self) -> None:
        self._families: Final[dict[str, Metric]] = {}
        self._samples: Final[dict[str, dict[_Key, Sample]]] = {}

    def add(self, families: Iterable[Metric], *, past: bool = False) -> None:
        """What a process tells. ``past``: it is no more, and only what it has counted matters."""
        for family in families:
            if past and family.type not in _AMOUNTS:
                continue
            self._families.setdefault(family.name, family)
            samples = self._samples.setdefault(family.name, {})
            if not (samples and family.name in _ALIKE):
                for sample in family.samples:
                    _add(samples, family.name, sample)

    def keep(self, names: Names) -> None:
        """Forget what is told of routes and backends that have none of these names."""
        for samples in self._samples.values():
            for key in [k for k, sample in samples.items() if not names.has(sample.labels)]:
                del samples[key]

    def collect(self) -> Iterator[Metric]:
        """See Collector."""
        for name, family in self._families.items():
            told = Metric(name, family.documentation, family.type, family.unit)
            told.samples = list(self._samples[name].values())
            yield told


def _add(samples: dict[_Key, Sample], family: str, sample: Sample) -> None:
    key = (sample.name, tuple(sorted(sample.labels.items())))
    known = samples.get(key)
    if known is None:
        samples[key] = sample
        return
    if sample.name.endswith(_CREATED) or family in _LEAST:
        value = min(known.value, sample.value)
    elif family in _MOST:
        value = max(known.value, sample.value)
    else:
        value = known.value + sample.value
    exemplar = max(
        filter(None, (known.exemplar, sample.exemplar)),
        key=lambda each: each.timestamp or 0.0,
        default=None,
    )
    samples[key] = Sample(sample.name, sample.labels, value, None, exemplar)
