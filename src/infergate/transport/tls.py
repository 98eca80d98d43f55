"""TLS to backends: one store of trusted certificates for HTTP and gRPC.

*Rule.* Trusted is whom OpenSSL trusts by default on this machine: the file and the directory of its
build, or those that SSL_CERT_FILE and SSL_CERT_DIR name. grpcio would ask its own bundled list.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Final

NO_TLS: Final = "no TLS connection to the backend could be made"
"""Told to the client where the server is not trusted or does not speak TLS."""

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_HASHED = re.compile(r"[0-9a-f]{8}\.[0-9]+")
"""The files that OpenSSL looks for in a directory (openssl-rehash)."""


def context(protocol: str = "http/1.1") -> ssl.SSLContext:
    """How a connection is made that is to speak ``protocol`` (ALPN): certificate and host name are
    checked."""
    made = ssl.create_default_context()
    made.set_alpn_protocols([protocol])
    return made


def authorities() -> bytes:
    """The certificates that :func:`context` trusts, in PEM; empty where there are none."""
    found: dict[bytes, None] = {}
    for path in _files():
        try:
            found.update(dict.fromkeys(_CERTIFICATE.findall(path.read_bytes())))
        except OSError:  # missing or not for us to read: OpenSSL passes over it as well
            continue
    return b"\n".join(found)


def _files() -> Iterator[Path]:
    built = ssl.get_default_verify_paths()
    yield Path(os.environ.get(built.openssl_cafile_env, built.openssl_cafile))
    directories = os.environ.get(built.openssl_capath_env, built.openssl_capath)
    for directory in filter(os.path.isdir, directories.split(os.pathsep)):
        for path in sorted(Path(directory).iterdir()):
            if _HASHED.fullmatch(path.name):
                yield path
