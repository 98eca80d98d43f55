"""Example models that run inside this process, in numpy, without a server.

``BuiltinBackend`` (``backend``) serves them; ``model`` is the contract of a model and the checks
that all models share. Each other module holds one model or a family of models.
"""

from infergate.backends.builtin.backend import BuiltinBackend, embedded_models
from infergate.backends.builtin.model import Model

__all__ = ["BuiltinBackend", "Model", "embedded_models"]
