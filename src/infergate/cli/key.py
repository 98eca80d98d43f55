"""``infergate key``: a new API key, and what the configuration is to know of it."""

from __future__ import annotations

from infergate.access.keys import digest_of, new_key

_TEXT = """\
{key}

The client sends it as 'Authorization: Bearer …' or 'x-api-key: …'. It is stored nowhere: keep it.
The configuration has its hash, under access.keys:

  - {{name: "{name}", sha256: "{digest}"}}

or a line of the file that access.keys_file names:

  {name}: {digest}
"""


def key(name: str) -> str:
    """The text to print for a key of ``name``."""
    made = new_key()
    return _TEXT.format(key=made, name=name, digest=digest_of(made).hex())
