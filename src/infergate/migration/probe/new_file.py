"""Writes a checked configuration file."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from infergate.config.load import parse


class ConfigurationExistsError(Exception):
    """The file exists already and must not be replaced."""


def write_configuration(path: Path, text: str, *, force: bool) -> None:
    """Check ``text`` and write it to ``path`` atomically. Without ``force``, an existing file is
    kept.

    Raises ConfigError, ConfigurationExistsError and OSError."""
    parse(text, str(path), os.environ)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if force:
            temporary.replace(path)
        else:
            path.hardlink_to(temporary)  # unlike a rename, this never replaces a file
    except FileExistsError:
        raise ConfigurationExistsError from None
    finally:
        with suppress(OSError):
            temporary.unlink()
