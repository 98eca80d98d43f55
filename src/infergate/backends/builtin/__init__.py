"""Models that run inside this process: numpy only, no server needed."""

from infergate.backends.builtin.backend import BuiltinBackend, embedded_models
from infergate.backends.builtin.model import Model

__all__ = ["BuiltinBackend", "Model", "embedded_models"]
