"""The configuration file, routes.yaml: its schema, loading and checking.

The entry point is ``load``, which returns a ``Config`` or raises a ``ConfigError`` with all errors
and their lines. Read ``schema`` first, with the modules of its sections and the value types in
``fields`` and ``values``. Then read ``load``, which uses the other modules: ``source`` parses YAML
with line numbers, ``renamed_keys`` accepts old names of keys, ``schema`` validates, ``explain``
rewords pydantic's errors, and ``outline`` and ``check`` find conflicts between entries. ``compile``
converts a Config into the types that the rest of infergate uses, ``redacted`` prints a Config
without secrets, and ``reference`` writes docs/configuration.md and docs/routes.schema.json."""

from infergate.config.load import load
from infergate.config.mistakes import ConfigError, Mistake
from infergate.config.schema import Config

__all__ = ["Config", "ConfigError", "Mistake", "load"]
