"""Tools that build packages, install their lowest versions, and lint workflows."""

from __future__ import annotations

from .installed import Installed, install


def prepare_release_tools() -> Installed:
    """Install the tools if they are missing."""
    return install(
        "release_tools",
        ("build==1.3.0", "uv==0.13.9", "check-jsonschema==0.39.0", "zizmor==1.32.0"),
    )
