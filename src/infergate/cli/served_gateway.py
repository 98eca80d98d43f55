"""The gateway that ``infergate serve`` runs in a single process."""

from __future__ import annotations

from typing import Final

from infergate.config.schema import Config
from infergate.library.gateway import Gateway
from infergate.runtime.assemble import assemble
from infergate.runtime.config_history import ConfigHistory
from infergate.runtime.memory import freeze_objects
from infergate.runtime.running import RunningGateway


class ServedGateway(Gateway):
    """A gateway whose configuration applies to the entire process. The admin listener reports
    ``history``. The caller must have checked ``config``."""

    def __init__(self, config: Config, history: ConfigHistory) -> None:
        self._history: Final = history
        super().__init__(config)

    @property
    def is_creating_plugins(self) -> bool:
        """Whether a reload is waiting for plug-ins to be created. Such a reload may be
        cancelled."""
        return self._require_running().is_creating_plugins

    def _adapt_config(self, config: Config) -> Config:
        return config

    def _assemble(self, config: Config) -> RunningGateway:
        running = assemble(config, history=self._history)
        running.on_retired = freeze_objects
        return running
