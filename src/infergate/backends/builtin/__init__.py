"""Example models that run in this process with numpy.

``BuiltinBackend`` (``backend``) serves the models. ``model`` has the interface of a model and the
checks that all models share. Every other module contains one model or a family of models."""

from infergate.backends.builtin.backend import BuiltinBackend, embedded_models
from infergate.backends.builtin.model import Model

__all__ = ["BuiltinBackend", "Model", "embedded_models"]
