"""``infergate schema``: prints the JSON schema of routes.yaml."""

from __future__ import annotations

import json

from infergate.cli.command import Arguments
from infergate.config.reference import json_schema


def run(_: Arguments) -> int:
    """Print the schema, and return 0."""
    print(json.dumps(json_schema(), indent=2))
    return 0
