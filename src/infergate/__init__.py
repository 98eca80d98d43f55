"""infergate: a translating gateway for model inference."""

__version__ = "0.1.0"
