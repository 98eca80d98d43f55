"""``infergate key``: generates an API key and its configuration entry."""

from __future__ import annotations

from infergate.access.keys import digest_of, new_key

_TEXT = """\
{key}

The client sends it as 'Authorization: Bearer …' or 'x-api-key: …'. It is stored nowhere: save it.
Add its hash to the configuration, under access.keys:

  - {{name: "{name}", sha256: "{digest}"}}

or as a line to the file of access.keys_file:

  {name}: {digest}
"""


def new_key_text(name: str) -> str:
    """Generate a key for the owner ``name`` and return the text to print."""
    secret = new_key()
    return _TEXT.format(key=secret, name=name, digest=digest_of(secret).hex())
