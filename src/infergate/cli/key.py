"""``infergate key``: generates an API key and its configuration entry."""

from __future__ import annotations

from infergate.access.keys import digest_of, new_key
from infergate.cli.command import Arguments

_TEXT = """\
{key}

The client sends it as 'Authorization: Bearer …' or 'x-api-key: …'. Save it: it is not stored.
Add its hash to the configuration, under access.keys:

  - {{name: "{name}", sha256: "{digest}"}}

or add this line to the file in access.keys_file:

  {name}: {digest}
"""


def run(arguments: Arguments) -> int:
    """Print a new key for the owner in ``arguments``, and return 0."""
    secret = new_key()
    print(_TEXT.format(key=secret, name=arguments.name, digest=digest_of(secret).hex()), end="")
    return 0
