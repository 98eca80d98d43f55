"""The observers of routes: the recorder and the payload log. The modules of an observer are
imported only if the observer is configured."""

# ruff: noqa: PLC0415 - see the module's docstring

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from infergate.config.schema import Config
from infergate.core.limits import Limits
from infergate.core.offload import Offload
from infergate.gateway.observed_route import ExchangeObserver
from infergate.routing.table import RouteTable
from infergate.runtime.running import GatewayParts
from infergate.runtime.worker_group import WorkerGroup

if TYPE_CHECKING:
    from infergate.recording.payload_log import PayloadLog
    from infergate.recording.recorder import Recorder


def make_recorder(
    config: Config, group: WorkerGroup, previous: GatewayParts | None
) -> Recorder | None:
    """Return the recorder of ``previous`` if its settings are unchanged, or a new recorder. Return
    None if no route is recorded."""
    if config.recording is None or all(route.record is None for route in config.routes):
        return None
    if previous is not None and previous.config.recording == config.recording and previous.recorder:
        return previous.recorder
    from infergate.runtime import recording

    return recording.make_recorder(config.recording, config.workers, group)


def make_payload_log(
    config: Config,
    limits: Limits,
    offload: Offload | None,
    group: WorkerGroup,
    previous: GatewayParts | None,
) -> PayloadLog | None:
    """Return the payload log of ``previous`` if none of its settings has changed, or a new log.
    Return None without the section ``payload_log``. Raises OSError if a folder or a certificate
    cannot be used."""
    if config.payload_log is None:
        return None
    if (
        previous is not None
        and previous.config.payload_log == config.payload_log
        and previous.helper_pool is offload
        and previous.limits == limits
    ):
        return previous.payload_log
    from infergate.runtime import payload_log

    return payload_log.make_payload_log(
        config.payload_log, config.engine, limits, offload, group.metrics
    )


def make_observers(
    config: Config, table: RouteTable, recorder: Recorder | None, payload_log: PayloadLog | None
) -> Mapping[int, Sequence[ExchangeObserver]]:
    """Return the observers of the routes in ``table``, by the route's position."""
    by_position: dict[int, list[ExchangeObserver]] = {}
    if recorder is None and payload_log is None:
        return by_position
    for position, (section, route) in enumerate(zip(config.routes, table.routes, strict=True)):
        observers: list[ExchangeObserver] = []
        if recorder is not None and section.record is not None:
            observers.append(recorder.observer(route.label, section.record.percent))
        if payload_log is not None and (logged := section.payload_log) is not None:
            observers.append(
                payload_log.observer(route.label, logged.percent, logged.mode, errors=logged.errors)
            )
        if observers:
            by_position[position] = observers
    return by_position
