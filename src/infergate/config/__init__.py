"""routes.yaml: one typed schema, every mistake with its line."""

from infergate.config.load import load
from infergate.config.mistakes import ConfigError, Mistake
from infergate.config.schema import Config

__all__ = ["Config", "ConfigError", "Mistake", "load"]
