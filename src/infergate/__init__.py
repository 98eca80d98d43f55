"""infergate, a translating gateway for model inference.

The entry point is ``infergate.cli``; docs/architecture.md describes the packages.
"""

__version__ = "0.1.0"
